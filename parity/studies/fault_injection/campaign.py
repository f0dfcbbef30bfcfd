"""The campaign: every fault of every case in every precision, and runs without one; resumable."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from parity.base.code import present_code
from parity.base.errors import UserError
from parity.base.interruption import remaining
from parity.base.precision import PRECISIONS
from parity.case import Case, CaseReference, load_case
from parity.execution.folder import in_use
from parity.studies.fault_injection import workers
from parity.studies.fault_injection.faults import CleanFinding, Fault, Finding, Outcome, resolved
from parity.studies.fault_injection.store import ABOUT, Store, opened, without_empty
from parity.studies.packages import packages_of

Advance = Callable[[int, int, str], None]
"""Called with the number of finished items, the known number of all, and the name of the current work."""


@dataclass(frozen=True)
class Plan:
    """The extent of a campaign.

    Attributes:
        cases: The cases, each in all precisions.
        precisions: Names in `PRECISIONS`.
        share: Share of the faults, in [0, 1], drawn by name. A smaller share is part of a larger one.
        clean_runs: Number of runs without a fault.
        operators: First letters of the operators' names; empty for all.
    """

    cases: tuple[Case, ...]
    precisions: tuple[str, ...]
    share: float
    clean_runs: int
    operators: str = ""


def run(plan: Plan, folder: Path, advance: Advance) -> tuple[list[Finding], list[CleanFinding]]:
    """Do the part of the plan that `folder` does not hold yet. Returns all findings of the plan.

    Raises:
        UserError: The folder holds other files or is in use, or the suite fails without a fault.
    """
    code = present_code(sorted({package for case in plan.cases for package in packages_of(case)}))
    with in_use("--save", folder, ABOUT):
        opened(folder, code)
        with (
            without_empty(folder),
            remaining(f"{folder} holds the findings so far: the same command goes on"),
        ):
            findings = _faults(plan, folder, advance) if plan.share else []
            clean = _clean_runs(plan, folder, advance) if plan.clean_runs else []
            if not findings and not plan.clean_runs:
                problem = "leaves no fault, and there is no run without one"
                raise UserError("--share", plan.share, problem, "give a larger one")
            return findings, clean


def _faults(plan: Plan, folder: Path, advance: Advance) -> list[Finding]:
    """All findings of the plan. Cases of one family follow each other, and the next one skips some faults."""
    store = Store(folder / "findings.jsonl", Finding)
    findings = {finding.identity: finding for finding in store.lines}
    wanted: dict[str, None] = {}
    unreached: dict[str, set[tuple[str, str, str]]] = {}
    operators: set[str] = set()
    done = 0
    for cases in _rounds(plan.cases):
        units = [(case.reference.model_dump_json(), name) for case in cases for name in plan.precisions]
        # Few units are cut into parts, so that every core has work to the end.
        parts = -(-2 * workers.cores() // len(units))
        known = frozenset(findings)
        detected = frozenset(
            finding.fault.identity for finding in findings.values() if finding.outcome is Outcome.DETECTED
        )
        tasks = [
            (_findings_of_part, (*unit, plan.operators, plan.share, part, parts, known, detected))
            for unit in units
            for part in range(parts)
        ]
        for report in workers.reports(tasks):
            if isinstance(report, Finding):
                store.add(report)
                findings[report.identity] = report
                done += 1
            elif isinstance(report, _Work):
                wanted |= dict.fromkeys(report.names)
                operators |= report.operators
                done += len(known.intersection(report.names))
                unreached.setdefault(report.precision, set()).update(report.unreached)
            advance(done, len(wanted), next(reversed(wanted), "").split(" | ")[0])
    store.close()
    if not any(operator.startswith(plan.operators) for operator in operators):
        raise UserError(
            "--faults",
            plan.operators,
            "begins no operator's name",
            f"give the first letters of one of: {', '.join(sorted(operators))}",
        )
    return resolved([findings[name] for name in wanted], unreached)


def _rounds(cases: tuple[Case, ...]) -> list[list[Case]]:
    """The cases in rounds, one of each family in a round. Cases without a family are in the first one."""
    rounds: list[list[Case]] = [[]]
    counts: dict[str, int] = {}
    for case in cases:
        number = counts[case.family] = counts.get(case.family, -1) + 1 if case.family else 0
        rounds += [[] for _ in range(number + 1 - len(rounds))]
        rounds[number].append(case)
    return rounds


@dataclass(frozen=True)
class _Work:
    """The work of a part: names of its findings, and faults in functions of the case that it cannot reach.

    `operators` are those of all faults, whatever the plan's.
    """

    precision: str
    names: tuple[str, ...]
    unreached: tuple[tuple[str, str, str], ...]
    operators: frozenset[str]


def _findings_of_part(
    case_json: str,
    precision: str,
    operators: str,
    share: float,
    part: int,
    parts: int,
    known: frozenset[str],
    detected: frozenset[str],
) -> Iterator[_Work | Finding]:
    """A part of the faults of one case in one precision: its work, then the findings of the new ones."""
    from parity.studies.fault_injection.bench import Bench
    from parity.studies.fault_injection.handwritten import Edit
    from parity.studies.fault_injection.harness import HarnessBench
    from parity.studies.fault_injection.other_forms import OtherForms, try_in_every_form
    from parity.studies.fault_injection.trial import try_fault

    def is_wanted(fault: Fault) -> bool:
        return fault.operator.startswith(operators) and drawn(fault.identity, share)

    @functools.cache
    def other_forms() -> OtherForms:
        return OtherForms(bench, bench.modules_by_hand())

    bench = Bench(load_case(CaseReference.model_validate_json(case_json)), PRECISIONS[precision])
    harness = HarnessBench(bench)
    every = [*bench.faults(), *bench.faults_of_the_suite()]
    # One case of a family has to detect a fault of that family.
    faults = {
        bench.name_of(fault): fault
        for fault in filter(is_wanted, every)
        if bench.name_of(fault) in known
        or not (isinstance(fault, Edit) and fault.family and fault.identity in detected)
    }
    unreached = [(f.operator, f.target, f.detail) for f in filter(is_wanted, bench.unreached())]
    mine = list(faults)[part::parts]
    yield _Work(
        precision,
        tuple(mine),
        tuple(unreached) if part == 0 else (),
        frozenset(fault.operator for fault in every),
    )
    for name in mine:
        if name not in known:
            fault = faults[name]
            if isinstance(fault, Edit) and fault.in_harness:
                yield harness.try_fault(fault)
            elif isinstance(fault, Edit) and fault.family:
                yield try_in_every_form(bench, other_forms, fault)
            else:
                yield try_fault(bench, fault)


def drawn(name: str, share: float) -> bool:
    """Whether a fault belongs to a share of all faults. The answer is the same in every run."""
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return number < share * 2.0**64


def _clean_runs(plan: Plan, folder: Path, advance: Advance) -> list[CleanFinding]:
    store = Store(folder / "clean.jsonl", CleanFinding)
    known = frozenset(finding.number for finding in store.lines)
    cases = tuple(case.reference.model_dump_json() for case in plan.cases)
    cores = workers.cores()
    # Ranges, since a number of runs may be larger than memory.
    shares = [range(core, plan.clean_runs, cores) for core in range(cores)]
    tasks = [(_run_clean, (numbers, known, cases, plan.precisions)) for numbers in shares]
    for finding in workers.reports(tasks):
        store.add(finding)
        advance(len(store.lines), max(plan.clean_runs, len(store.lines)), f"no fault in {finding.case}")
    store.close()
    return [finding for finding in store.lines if finding.number < plan.clean_runs]


def _run_clean(
    numbers: range, known: frozenset[int], cases: tuple[str, ...], precisions: tuple[str, ...]
) -> Iterator[CleanFinding]:
    from parity.studies.fault_injection.clean import clean_run

    loaded = [load_case(CaseReference.model_validate_json(case)) for case in cases]
    for number in numbers:
        if number not in known:
            yield clean_run(number, loaded, precisions)
