"""Which module diverges first, from the verdicts on all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from parity.verdict.rule import Verdict

CLOSE = 10.0
"""Times its limit up to which a module may fail by what those inside it may do. It chooses words alone."""


@dataclass
class TapRow:
    """One tap of one runner: both verdicts, or the reason why the port has no such module."""

    tap: str
    path: str
    kind: str
    accumulated: Verdict | None
    isolated: Verdict | None
    gap: str = ""

    @property
    def passed(self) -> bool:
        return bool(self.gap) or all(v.passed for v in (self.accumulated, self.isolated) if v is not None)


@dataclass
class Diagnosis:
    """Where a runner diverges first, in words.

    `kind` is "none", "module" (a module is wrong on its own), "amplification" (every module is right on
    its own and the error grows on the way) or "check" (a check other than the taps failed).
    """

    kind: str = "none"
    tap: str = ""
    text: str = ""
    amplification: float | None = None
    why: tuple[str, ...] = ()


def diagnose(rows: list[TapRow], checks: Mapping[str, Verdict], leak: str) -> Diagnosis:
    """Name the first module that diverges.

    Rows are in the order in which modules finish, a module after the modules inside it, so that the first
    isolated failure is the innermost one.
    """
    for row in rows:
        if row.isolated is not None and not row.isolated.passed:
            text = f"{row.path} ({row.kind}) diverges on its own: {row.isolated.reason}"
            return Diagnosis("module", row.tap, text + _nearest_inside(rows, row))
    structural = next(
        (
            r
            for r in rows
            if r.accumulated is not None and np.isnan(r.accumulated.port.l2) and not r.accumulated.passed
        ),
        None,
    )
    if structural is not None:
        assert structural.accumulated is not None
        return Diagnosis("module", structural.tap, f"{structural.tap}: {structural.accumulated.reason}")
    for row in rows:
        if row.accumulated is None or row.accumulated.passed:
            continue
        if row.isolated is None:
            return Diagnosis("module", row.tap, f"{row.tap} ({row.kind}): {row.accumulated.reason}")
        alone = row.isolated.port.l2
        factor = row.accumulated.port.l2 / alone if alone else None
        grown = f"{factor:.3g} times its own error" if factor else "its own error is zero"
        return Diagnosis(
            "amplification",
            row.tap,
            f"every module is right on its own; the error carried into {row.path} is over its limit: {grown}",
            factor,
        )
    if leak:
        return Diagnosis(
            "check", leak, f"padding leaks: garbage in padded positions changes valid bits at {leak}"
        )
    for name, verdict in checks.items():
        if not verdict.passed:
            return Diagnosis("check", name, f"{name}: {verdict.reason}")
    return Diagnosis()


def _nearest_inside(rows: list[TapRow], failed: TapRow) -> str:
    """Of the modules inside one that fails, which are all right on their own, the one to look at first.

    An error below a module's limit may be above that of the module around it, where what follows cuts off, or
    cancels, more of what was right. An error far above the limit has another cause, in the module's own code.
    """
    assert failed.isolated is not None
    if failed.isolated.margin > CLOSE:
        return ""
    margin, path = max(
        (
            (row.isolated.margin, row.path)
            for row in rows
            if row.path.startswith(f"{failed.path}.") and row.isolated is not None and row.isolated.passed
        ),
        default=(0.0, ""),
    )
    if not margin:
        return ""
    return f"; of the modules inside, {path} is nearest to its own limit, {margin:.2g} of it"
