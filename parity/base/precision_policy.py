"""A precision for each module of a port: the patterns of a policy, and their meaning for a model's modules.

A policy is a YAML or JSON file of patterns with precisions, or with schemes of quantisation
(`parity.base.quantisation`):

    "blocks.*.attention.bias": fp32
    "embedding": fp16
    "*": bf16
    "blocks.*": int8_channel
    "head": bf16+int8_channel

A pattern is the path of a module, in which `*` stands for any text within one name; `*` alone is the whole
model. A pattern covers the modules that it matches and all modules inside. If several patterns cover a
module, the innermost match decides, and among equals the first in the file. A module without a pattern stays
in fp32. Schemes are apart from precisions: a quantised module computes in the precision that its pattern of a
precision gives it. A pattern may have one of each.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from parity.base.errors import UserError
from parity.base.files import read_file
from parity.base.module_patterns import MODEL, matches, outwards
from parity.base.precision import PRECISIONS
from parity.base.quantisation import SCHEMES
from parity.base.strict_yaml import YAMLProblem, parse_yaml

BASE = "fp32"
"""The precision of a port's inputs, and of every module that no pattern covers."""
BOTH = "+"
"""Between a precision and a scheme of one pattern."""
CASTABLE = tuple(name for name, precision in PRECISIONS.items() if not precision.needs_cuda)
"""Precisions that a cast can give a single module. tf32 is a switch of the whole process."""


@dataclass(frozen=True)
class Policy:
    """Patterns with the names of precisions and schemes, in the file's order.

    Raises:
        UserError: A name that is neither a scheme nor a precision that a cast can give; two schemes or two
            precisions of one pattern.
    """

    patterns: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        for pattern, value in self.patterns:
            names = value.split(BOTH)
            for name in names:
                if name not in CASTABLE and name not in SCHEMES:
                    raise UserError(
                        f"--policy[{pattern!r}]",
                        name or "''",
                        "is no precision of a module, and no scheme of quantisation",
                        f"use one of {', '.join((*CASTABLE, *SCHEMES))}",
                    )
            for kind, known in (("precisions", CASTABLE), ("schemes", SCHEMES)):
                if sum(name in known for name in names) > 1:
                    fix = "give one precision, one scheme, or one of each"
                    raise UserError(f"--policy[{pattern!r}]", value, f"names two {kind}", fix)

    @property
    def schemes(self) -> dict[str, str]:
        """The patterns with schemes of quantisation."""
        return self._of(SCHEMES)

    @property
    def precisions(self) -> dict[str, str]:
        """The patterns with precisions."""
        return self._of(CASTABLE)

    def _of(self, names: Collection[str]) -> dict[str, str]:
        return {
            pattern: name for pattern, value in self.patterns for name in value.split(BOTH) if name in names
        }

    @classmethod
    def of(cls, assignment: Mapping[str, str]) -> Policy:
        """The policy with these patterns, or paths; the empty path is the model."""
        return cls(tuple((path or MODEL, precision) for path, precision in assignment.items()))

    def resolve(self, paths: Iterable[str]) -> dict[str, str]:
        """The precision of each module, and of the model itself under the empty path.

        Args:
            paths: Paths of all modules of the model.

        Raises:
            UserError: A pattern matches no module.
        """
        known = ["", *paths]
        own: dict[str, str] = {}
        for pattern, precision in self.precisions.items():
            covered = [path for path in known if matches(pattern, path)]
            if not covered:
                near = difflib.get_close_matches(pattern, known, n=1)
                raise UserError(
                    "--policy",
                    pattern,
                    "matches no module",
                    (f"did you mean {near[0]}? " if near else "")
                    + f"The model's modules begin {', '.join(known[1:4])}",
                )
            for path in covered:
                own.setdefault(path, precision)
        return {path: next((own[outer] for outer in outwards(path) if outer in own), BASE) for path in known}


def compact(precisions: Mapping[str, str]) -> Policy:
    """A short policy that gives modules these precisions.

    Args:
        precisions: By path, an outer module before its inner ones. The empty path is the model.
    """
    lines = {"": precisions[""]}
    for path, precision in precisions.items():
        if precision != next(lines[outer] for outer in outwards(path) if outer in lines):
            lines[path] = precision
    for path, precision in list(lines.items()):
        pattern = re.sub(r"\b\d+\b", MODEL, path)
        alike = [similar for similar in precisions if matches(pattern, similar)]
        if len(alike) > 1 and all(precisions[similar] == precision for similar in alike):
            lines = {line: name for line, name in lines.items() if line not in alike} | {pattern: precision}
    return Policy.of(lines)


def read_policy(path: Path) -> Policy:
    """Read a policy's file. Raises `UserError` if it cannot be read or holds anything else."""
    try:
        content = parse_yaml(read_file(path).decode())
    except (OSError, UnicodeDecodeError, YAMLProblem) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            "--policy", str(path), f"cannot be read ({reason})", "give a YAML or JSON file"
        ) from error
    if not isinstance(content, dict) or not content:
        raise UserError("--policy", str(path), "holds no patterns", 'write one a line, such as "*": fp16')
    return Policy(tuple((str(pattern), str(precision)) for pattern, precision in content.items()))


def owner_of(name: str, paths: Iterable[str]) -> str:
    """The path of the innermost module that a parameter belongs to, by its name in the state dict."""
    known = set(paths)
    return next((outer for outer in outwards(name) if outer in known), "")
