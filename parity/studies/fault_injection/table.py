"""The outcomes of a campaign by operator, as Markdown and as counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tabulate import tabulate

from parity.studies.fault_injection.faults import CleanFinding, Finding, Outcome


@dataclass
class Row:
    """Counts of one operator; `injected` is the sum of the six outcomes."""

    injected: int = 0
    broken: int = 0
    equivalent: int = 0
    below: int = 0
    detected: int = 0
    localised: int = 0
    missed: int = 0
    elsewhere: int = 0
    margins: list[float] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        """Count one finding."""
        self.injected += 1
        self.broken += finding.outcome is Outcome.BROKEN
        self.equivalent += finding.outcome is Outcome.EQUIVALENT
        self.below += finding.outcome is Outcome.BELOW_LIMIT
        self.detected += finding.outcome is Outcome.DETECTED
        self.missed += finding.outcome is Outcome.MISSED
        self.elsewhere += finding.outcome is Outcome.NOT_ASKED
        self.localised += finding.localised
        if finding.outcome is Outcome.DETECTED and finding.margin is not None:
            self.margins.append(finding.margin)

    @property
    def detection(self) -> float:
        """Share of detected faults among detected and missed ones; 1 without any."""
        return self.detected / (self.detected + self.missed) if self.detected + self.missed else 1.0

    @property
    def strict_detection(self) -> float:
        """`detection` with faults below the limit counted as missed."""
        effective = self.detected + self.below + self.missed
        return self.detected / effective if effective else 1.0

    @property
    def localisation(self) -> float:
        """Share of localised faults among the detected ones; 1 without any."""
        return self.localised / self.detected if self.detected else 1.0

    @property
    def worst_margin(self) -> float | None:
        """The smallest margin of a detected fault."""
        return min(self.margins, default=None)


def summarise(findings: Iterable[Finding], key: str = "operator") -> dict[str, Row]:
    """Rows by operator, or by another field of a finding, with the total last."""
    rows: defaultdict[str, Row] = defaultdict(Row)
    total = Row()
    for finding in findings:
        rows[getattr(finding, key)].add(finding)
        total.add(finding)
    return dict(sorted(rows.items())) | {"all": total}


def markdown(findings: list[Finding], clean: list[CleanFinding]) -> str:
    """Tables by operator, case and precision; clean runs; missed, misplaced and equivalent faults."""
    parts = [_table(key, summarise(findings, key)) for key in ("operator", "case", "precision")]
    parts.append("## Runs without a fault\n\n" + _clean(clean))
    missed = [f for f in findings if f.outcome is Outcome.MISSED]
    parts.append("## Missed\n\n" + _missed(missed))
    parts.append(
        "## Below the limit\n\n" + _missed([f for f in findings if f.outcome is Outcome.BELOW_LIMIT])
    )
    misplaced = [f for f in findings if f.outcome is Outcome.DETECTED and not f.localised]
    parts.append("## Detected, named elsewhere\n\n" + _misplaced(misplaced))
    parts.append(
        "## Equivalents\n\n" + _equivalents([f for f in findings if f.outcome is Outcome.EQUIVALENT])
    )
    return "\n\n".join(parts) + "\n"


def _table(key: str, rows: dict[str, Row]) -> str:
    columns = ("injected", "cannot be made", "equivalent", "asked elsewhere", "below the limit")
    columns += ("detected", "missed")
    shares = ("detected, %", "with those below, %", "localised, %", "least margin")
    lines = []
    for name, row in rows.items():
        counts = (row.injected, row.broken, row.equivalent, row.elsewhere, row.below)
        counts += (row.detected, row.missed)
        rates = (row.detection, row.strict_detection, row.localisation)
        margin = "" if row.worst_margin is None else f"{row.worst_margin:.3g}"
        lines.append((name, *map(str, counts), *(f"{100 * rate:.2f}" for rate in rates), margin))
    return _markdown_table((key, *columns, *shares), lines, "l" + "r" * 11)


def _markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]], sides: str) -> str:
    """A table in Markdown, with "l" or "r" for the side of each column's text."""
    aligned = [{"l": "left", "r": "right"}[side] for side in sides]
    # tabulate 0.9 cannot align the columns of an empty table.
    return tabulate(rows, heads, tablefmt="pipe", colalign=aligned if rows else None, disable_numparse=True)


def _cell(text: str) -> str:
    return "`" + text.replace("|", "\\|").replace("`", "'").replace("\n", " ") + "`"


def _clean(runs: list[CleanFinding]) -> str:
    groups: defaultdict[tuple[str, str, str], list[CleanFinding]] = defaultdict(list)
    for run in runs:
        groups[run.case, run.precision, run.runner].append(run)
    rows = [(*place, *_alarms(members)) for place, members in sorted(groups.items())]
    rows.append(("all", "", "", *_alarms(runs)))
    table = _markdown_table(("case", "precision", "runner", "runs", "false alarms"), rows, "lllrr")
    alarms = [
        f"* run {run.number}, {run.case} {run.precision} {run.runner}, {', '.join(run.batches)}: {run.alarm} "
        f"{_cell(run.reference.model_dump_json())}"
        for run in runs
        if run.alarm
    ]
    return "\n".join([table, "", *alarms])


def _alarms(runs: list[CleanFinding]) -> tuple[str, str]:
    """Numbers of runs and of false alarms."""
    return str(len(runs)), str(sum(bool(run.alarm) for run in runs))


def _missed(findings: list[Finding]) -> str:
    rows = []
    for f in sorted(findings, key=lambda f: -(f.margin or 0.0)):
        effect = "" if f.effect is None else f"{f.effect:.2g}"
        margin = "" if f.margin is None else f"{f.margin:.2f}"
        rows.append((_fault(f), f"{f.case} {f.precision}", effect, margin, f.proof))
    heads = ("fault", "where", "size of the effect", "error over its limit", "reason")
    return _markdown_table(heads, rows, "llrrl")


def _fault(finding: Finding) -> str:
    return f"{finding.operator}, {_cell(finding.target)}, {_cell(finding.detail)}"


def _misplaced(findings: list[Finding]) -> str:
    rows = []
    for f in findings:
        homes = ", ".join(_cell(home or "the model itself") for home in f.homes)
        rows.append((_fault(f), f"{f.case} {f.precision}", homes, f"{_cell(f.named)} ({f.kind})"))
    return _markdown_table(("fault", "where", "in", "named"), rows, "llll")


def _equivalents(findings: list[Finding]) -> str:
    """A line for each fault, with the cases and precisions where it is equivalent, and its largest effect."""
    groups: defaultdict[tuple[str, str, str], list[Finding]] = defaultdict(list)
    for finding in findings:
        groups[finding.operator, finding.target, finding.detail].append(finding)
    rows = []
    for _, members in sorted(groups.items()):
        effect = max(member.effect or 0.0 for member in members)
        places = sorted({f"{member.case} {member.precision}" for member in members})
        where = ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")
        rows.append((_fault(members[0]), where, f"{effect:.2g}", members[0].proof))
    return _markdown_table(("fault", "in", "largest effect", "proof of the first"), rows, "llrl")
