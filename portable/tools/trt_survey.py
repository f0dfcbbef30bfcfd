"""Builds every operation of the dialect with TensorRT, in every legal element type, as one small graph each.

    python portable/tools/trt_survey.py

prints a table. Each operation has the element types with an engine, and TensorRT's message for the others.
portable/TENSORRT.md keeps the table. The tests build the same graphs and compare.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterable, Mapping

from trt_cases import cases
from trt_graphs import Case

from tripy_portable import trt

_NOISE = (
    # The function and the kind of error, in front; where in TensorRT's source, at the end.
    (r"^.*?Error Code \d+: [^(]*\((\[[^\]]*\] ?)?", ""),
    (r" In [^()]* at /.*$", ""),
    # Numbers that differ between runs, and the text behind the name of the operation.
    (r"for operation:\s+\d+: (\w+):.*", r"for operation \1"),
    (r"\(Unnamed Layer\* \d+\) ", ""),
    (r"#\d+", ""),
    (r"\s+", " "),
    (r"\|", "/"),
)


def outcome(case: Case) -> str:
    """TensorRT's first error without its internals; empty for a built engine."""
    try:
        trt.build(case.program())
    except trt.Refused as refused:
        said = next(message.text for message in refused.messages if message.is_error)
        for pattern, replacement in _NOISE:
            said = re.sub(pattern, replacement, said, flags=re.DOTALL)
        return said.strip(" .)")
    return ""


def row(operation: str, said: Mapping[Case, str]) -> str:
    """One operation's line of the table.

    Args:
        operation: the dialect's name.
        said: outcomes of all of its cases.
    """
    built = sum(not text for text in said.values())
    refused: dict[str, list[Case]] = {}
    for case, text in said.items():
        if text:
            refused.setdefault(text, []).append(case)
    accepted = _summary(case for case, text in said.items() if not text)
    refusals = "; ".join(f"{_summary(cases)}: \u201c{text}\u201d" for text, cases in refused.items())
    return f"| {operation} | {built} of {len(said)} | {accepted} | {refusals} |"


def _summary(cases: Iterable[Case]) -> str:
    """Cases by variant; variants with the same element types share a line."""
    elements: dict[str, list[str]] = {}
    for case in cases:
        elements.setdefault(case.variant, []).append(case.element)
    variants: dict[tuple[str, ...], list[str]] = {}
    for variant, names in elements.items():
        variants.setdefault(tuple(names), []).append(variant)
    return "; ".join(
        f"{', '.join(name or 'plain' for name in names)} ({' '.join(types)})"
        for types, names in variants.items()
    )


def main() -> None:
    """Prints the table, one line for each operation."""
    sys.stdout.write(
        "| operation | built | in variants and element types | refusals, with TensorRT's message |\n"
    )
    sys.stdout.write("|---|---|---|---|\n")
    for operation, group in itertools.groupby(cases(), key=lambda case: case.operation):
        sys.stdout.write(row(operation, {case: outcome(case) for case in group}) + "\n")


if __name__ == "__main__":
    main()
