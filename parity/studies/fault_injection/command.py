"""The verb `self-test`: the campaign, its verdict and its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from parity.base.errors import UserError
from parity.base.files import replacing
from parity.base.precision import PRECISIONS
from parity.studies.fault_injection.campaign import Advance, Plan, run
from parity.studies.fault_injection.faults import CleanFinding, Finding, Outcome
from parity.studies.fault_injection.table import markdown, summarise

LEAST_LOCALISED = 0.99


@dataclass(frozen=True)
class SelfTest:
    """The findings of a campaign."""

    findings: list[Finding]
    clean: list[CleanFinding]

    @property
    def exit_code(self) -> int:
        """0 if no fault with an effect is missed, 99 % are localised, and there is no false alarm; else 1."""
        total = summarise(self.findings)["all"]
        alarms = any(finding.alarm for finding in self.clean)
        return int(total.missed > 0 or total.localisation < LEAST_LOCALISED or alarms)


def self_test(plan: Plan, folder: Path, advance: Advance) -> SelfTest:
    """Run or continue a campaign and write `table.md` beside its findings. Raises `UserError`."""
    if not 0.0 <= plan.share <= 1.0:
        raise UserError("--share", plan.share, "is no share of the faults", "give 0 to 1")
    if plan.clean_runs < 0:
        raise UserError("--clean-runs", plan.clean_runs, "is negative", "give 0 or more")
    if plan.share == 0 and plan.clean_runs == 0:
        problem = "leaves no fault, and --clean-runs 0 no run without one"
        raise UserError("--share", plan.share, problem, "give more than 0 of one of them")
    for name in plan.precisions:
        if PRECISIONS[name].needs_cuda and not torch.cuda.is_available():
            raise UserError(
                "--precision", name, "needs a CUDA device and PyTorch sees none", "choose other precisions"
            )
    result = SelfTest(*run(plan, folder, advance))
    with replacing(folder / "table.md") as temporary:
        temporary.write_text(markdown(result.findings, result.clean))
    return result


def render_self_test(result: SelfTest) -> RenderableType:
    """The table by operator, the missed faults and the false alarms, for a terminal."""
    table = Table(box=None, header_style="bold", collapse_padding=True, pad_edge=False)
    table.add_column("operator", no_wrap=True)
    for name in ("injected", "left out", "detected", "missed", "localised", "least margin"):
        table.add_column(name, justify="right")
    rows = summarise(result.findings)
    for operator, row in rows.items():
        counts = (row.injected, row.injected - row.detected - row.missed, row.detected, row.missed)
        table.add_row(
            operator,
            *map(str, counts),
            f"{row.localisation:.1%}",
            "" if row.worst_margin is None else f"{row.worst_margin:.3g}",
            style="bold" if operator == "all" else "red" if row.missed else "",
        )
    total = rows["all"]
    left_out = (
        f"left out: {total.broken} cannot be made, {total.equivalent} equivalent, "
        f"{total.elsewhere} asked elsewhere, {total.below} below the limit"
    )
    lines: list[RenderableType] = [table, Text(), Text(left_out)]
    for finding in result.findings:
        if finding.outcome is Outcome.MISSED:
            margin = "no numbers" if finding.margin is None else f"{finding.margin:.2f} of its limit"
            lines.append(Text(f"missed: {finding.identity}, {margin}; {finding.proof}", style="red"))
    alarms = [finding for finding in result.clean if finding.alarm]
    lines += [
        Text(f"false alarm in run {a.number}: {a.case} {a.precision} {a.runner}, seed {a.seed}: {a.alarm}")
        for a in alarms
    ]
    lines.append(Text(f"{len(result.clean)} runs without a fault, {len(alarms)} false alarms"))
    return Group(*lines)
