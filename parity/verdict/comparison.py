"""The comparison of a runner's captures with those of the reference and the oracle.

A comparison reads captures only. A replayed run therefore gives the same verdicts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from parity.capture.captures import ModuleCall
from parity.capture.names import TapName
from parity.case.pairing import RETURNS_INPUT, UNKNOWN
from parity.verdict.appends import in_appends
from parity.verdict.arguments import judge_arguments, other_form, same_arguments
from parity.verdict.bound import bound_for
from parity.verdict.broadcasts import with_broadcasts
from parity.verdict.call_order import in_order
from parity.verdict.calls import (
    extra,
    has_module,
    judged_alone,
    looks_up_rows,
    missing,
    of_other_sizes,
    spare_result,
    without_calls,
    without_partner,
    without_spare_calls,
)
from parity.verdict.choices.conditioned import under_hidden_choices, under_port_choices
from parity.verdict.diagnosis import by_values, diagnose
from parity.verdict.elements import RAISES
from parity.verdict.evidence import Evidence, Results, shape_of
from parity.verdict.flips import row_mask, rows_left_out
from parity.verdict.forms_of_values import in_another_order, in_forms
from parity.verdict.judgement import MODEL_OUTPUT, CallJudgement, Diagnosis, TapJudgement
from parity.verdict.padding import (
    first_padding_leak,
    in_front_of_leak,
    inside_through_padding,
    through_padding,
)
from parity.verdict.rule import Verdict, failure
from parity.verdict.small_numbers import among_small_numbers
from parity.verdict.standards import Standards, nothing_left
from parity.verdict.tolerance import tolerate

LARGE = 1 << 20
"""Elements of a tap from which threads judge several taps at a time. Small arrays need the interpreter."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The verdicts on one runner for one batch in one precision.

    Attributes:
        taps: In the order in which the reference's modules finish.
        checks: Verdicts on incremental outputs, by name.
        padding_leak: First tap that changes with the content of the padding; empty if none does.
        observer_difference: Largest absolute change of an output by tapping the modules.
        diagnosis: Place of the first divergence.
        calls: Calls that receive other arguments than the reference's.
        evidence: The evidence of the verdicts, under the port's choices.
        results: The runner's results, with calls, axes and factors of the reference; None if none differ.
        without_partner: Words for the modules whose calls have no partner, by path.
    """

    taps: tuple[TapJudgement, ...]
    checks: Mapping[str, Verdict]
    padding_leak: str
    observer_difference: float
    diagnosis: Diagnosis
    calls: tuple[CallJudgement, ...] = ()
    evidence: Evidence | None = field(default=None, compare=False, repr=False)
    results: Results | None = field(default=None, compare=False, repr=False)
    without_partner: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def passed(self) -> bool:
        return self.diagnosis.kind == "none"

    def tap(self, name: str) -> TapJudgement | None:
        """The judgement on a tap; None for the name of a check or of no tap."""
        return next((tap for tap in self.taps if tap.tap == name), None)


def compare(evidence: Evidence, results: Results) -> Comparison:
    """Judge one runner against the reference and the oracle."""
    return compare_runners(evidence, [results])[0]


def compare_runners(evidence: Evidence, runners: Sequence[Results]) -> list[Comparison]:
    """Judge runners against the reference and the oracle, in their order."""
    compared = _compare_as_called(evidence, runners)
    return [_in_port_forms(own, evidence, results) for own, results in zip(compared, runners, strict=True)]


def _in_port_forms(comparison: Comparison, evidence: Evidence, results: Results) -> Comparison:
    """The comparison of a failing runner, with the numbers, forms and sizes of calls that the port tells."""
    for told in (_in_order, _in_forms, _in_other_sizes):
        comparison = told(comparison, evidence, results)
    evidence, results = comparison.evidence or evidence, comparison.results or results
    diagnosis = in_another_order(evidence, results, comparison.taps, comparison.diagnosis)
    return replace(comparison, diagnosis=diagnosis)


def _in_forms(comparison: Comparison, evidence: Evidence, results: Results) -> Comparison:
    """The comparison of a failing runner, in the reference's forms where the values tell them."""
    results = comparison.results or results
    if comparison.passed:
        return comparison
    formed = in_forms(comparison.evidence or evidence, results, comparison.taps)
    if formed is results:
        return comparison
    return replace(_compare_as_called(evidence, [formed])[0], results=formed)


def _in_other_sizes(comparison: Comparison, evidence: Evidence, results: Results) -> Comparison:
    """The comparison of a failing runner, without results of calls with other sizes where only these fail."""
    results = comparison.results or results
    sizes = of_other_sizes(comparison.evidence or evidence, results, comparison.taps)
    if not sizes:
        return comparison
    sized = replace(results, other_sizes=sizes)
    return replace(_compare_as_called(evidence, [sized])[0], results=sized)


def _in_order(comparison: Comparison, evidence: Evidence, results: Results) -> Comparison:
    """The comparison of a failing runner, with the numbers of calls that the arguments tell."""
    moved = results if comparison.passed else in_order(evidence, results, same_arguments(evidence, results))
    if moved is results:
        return comparison
    other = replace(_compare_as_called(evidence, [moved])[0], results=moved)
    # A wrong argument tells more than a wrong output behind exchanged calls.
    is_output = TapName.parse(other.diagnosis.tap).is_output_of(evidence.entry)
    return comparison if moved.reordered and is_output else other


def _compare_as_called(evidence: Evidence, runners: Sequence[Results]) -> list[Comparison]:
    """Judge runners with the calls of a module paired by their number."""
    grounds = [under_port_choices(evidence, results) for results in runners]
    alike = [results for own, results in zip(grounds, runners, strict=True) if own is evidence]
    shared = iter(_compare_alike(evidence, alike))
    compared = [
        _searched(
            next(shared) if own is evidence else _compare_alike(own, [results])[0],
            own,
            results,
            evidence,
        )
        for own, results in zip(grounds, runners, strict=True)
    ]
    return [_among_programs(own, results) for own, results in zip(compared, runners, strict=True)]


def _among_programs(comparison: Comparison, results: Results) -> Comparison:
    """The comparison of a failing runner whose modules all pass alone, if it passes among right programs."""
    evidence = comparison.evidence
    if comparison.diagnosis.kind != "amplification" or evidence is None or any(evidence.ties.values()):
        return comparison
    among = _compare_alike(replace(evidence, among_programs=True), [results])[0]
    return among if among.passed else comparison


def _searched(comparison: Comparison, evidence: Evidence, results: Results, natural: Evidence) -> Comparison:
    """The comparison of a failing runner, under choices of its own that no integer or boolean shows."""
    if comparison.passed:
        return comparison
    taps = [by_values(tap) for tap in comparison.taps]
    alone = [tap.tap for tap in taps if tap.isolated is not None and not tap.isolated.passed]
    whole = any(tap.accumulated is not None and not tap.accumulated.passed for tap in taps)
    own = under_hidden_choices(evidence, results, natural, alone, whole or bool(comparison.calls))
    return comparison if own is evidence else _compare_alike(own, [results], evidence)[0]


def _compare_alike(
    evidence: Evidence, runners: Sequence[Results], before: Evidence | None = None
) -> list[Comparison]:
    """Judge runners under the same choices, tap by tap: all share a tap's standards.

    Args:
        evidence: The basis of the verdicts.
        runners: The results of each runner.
        before: The evidence before a search for choices, if one took any.
    """
    flips = [rows_left_out(evidence, results.tapped, before) for results in runners]
    taps = [dict.fromkeys(_taps_in_order(evidence, results)) for results in runners]
    judged: list[dict[str, TapJudgement]] = [{} for _ in runners]
    apart = [without_partner(evidence, results) for results in runners]

    def judge(tap: str) -> list[TapJudgement | None]:
        standards = Standards(evidence)
        return [
            _judge_tap(standards, evidence, results, tap, rows, paths) if tap in own else None
            for own, results, rows, paths in zip(taps, runners, flips, apart, strict=True)
        ]

    names = list(dict.fromkeys(itertools.chain.from_iterable(taps)))
    for tap, of_runners in zip(names, _side_by_side(judge, names, evidence), strict=True):
        for judgements, judgement in zip(judged, of_runners, strict=True):
            if judgement is not None:
                judgements[tap] = judgement
    checks: list[dict[str, Verdict]] = [{} for _ in runners]
    for tap, reference in evidence.reference_incremental.items():
        standards = Standards(evidence)
        full = evidence.incremental_outputs[tap]
        for results, rows, verdicts in zip(runners, flips, checks, strict=True):
            if results.has_appends:
                port, excluded = results.incremental.get(tap), row_mask(rows, reference)
                verdicts[tap] = standards.judge(
                    tap, evidence.oracle.get(full), reference, port, excluded, sampled_tap=full
                ) or nothing_left(evidence.precision)
    return [
        _compared(evidence, results, tuple(judgements[tap] for tap in own), verdicts, rows, paths)
        for own, results, judgements, verdicts, rows, paths in zip(
            taps, runners, judged, checks, flips, apart, strict=True
        )
    ]


def _side_by_side(
    judge: Callable[[str], list[TapJudgement | None]], taps: Sequence[str], evidence: Evidence
) -> Iterable[list[TapJudgement | None]]:
    """The judgements on taps, in their order.

    NumPy works on large arrays without the interpreter, so that threads judge large taps at the same time.
    """
    tensors = evidence.reference.tensors
    largest = max((math.prod(shape_of(tensors, tap)) for tap in tensors), default=0)
    if evidence.threads == 1 or largest < LARGE:
        return map(judge, taps)
    with ThreadPoolExecutor(max_workers=evidence.threads) as threads:
        return list(threads.map(judge, taps))


def _compared(
    evidence: Evidence,
    results: Results,
    taps: tuple[TapJudgement, ...],
    checks: Mapping[str, Verdict],
    flips: np.ndarray | None,
    apart: Mapping[str, str],
) -> Comparison:
    """The comparison of a runner whose taps and incremental outputs are judged."""
    taps = judged_alone(evidence, results, taps, apart)
    taps, tolerated = tolerate(evidence, without_spare_calls(evidence, results, taps))
    outputs = tolerated.before(len(evidence.reference.tensors))
    checks = {name: outputs.applied(verdict) for name, verdict in checks.items()}
    looks_for_leaks = results.taps_modules and evidence.has_padding
    leak = first_padding_leak(evidence, results) if looks_for_leaks else ""
    observer = _largest_difference(results) if results.taps_modules else 0.0
    # Without modules no call has arguments, and the code of the entry makes all outputs.
    if not results.received.arguments and (evidence.reference.calls or not results.taps_modules):
        diagnosis = in_appends(evidence, results, diagnose(taps, checks, leak, tolerated=tolerated))
        return Comparison(taps, checks, leak, observer, diagnosis, evidence=evidence, without_partner=apart)
    calls = judge_arguments(
        evidence,
        without_calls(results, apart),
        _right_taps(evidence, taps),
        with_floats=not all(tap.passed for tap in taps),
        excluded=lambda tensor: row_mask(flips, tensor),
        tolerated=tolerated,
    )
    calls = with_broadcasts(calls, taps)
    diagnosis = diagnose(taps, checks, leak, calls, evidence.entry, tolerated)
    if diagnosis.kind in ("module", "amplification", "between"):
        diagnosis = through_padding(evidence, results, taps, diagnosis)
        diagnosis = inside_through_padding(evidence, results, taps, calls, diagnosis)
        diagnosis = among_small_numbers(evidence, results, taps, diagnosis)
    diagnosis = in_front_of_leak(evidence, results, leak, diagnosis)
    diagnosis = in_appends(evidence, results, diagnosis)
    return Comparison(taps, checks, leak, observer, diagnosis, calls, evidence, without_partner=apart)


def _right_taps(evidence: Evidence, taps: Sequence[TapJudgement]) -> int:
    """Number of the reference's taps before the first one that fails inside the model."""
    taps = [by_values(tap) for tap in taps]
    failed = {tap.tap for tap in taps if tap.accumulated is not None and not tap.accumulated.passed}
    names = list(evidence.reference.tensors)
    return next((place for place, name in enumerate(names) if name in failed), len(names))


def _taps_in_order(evidence: Evidence, results: Results) -> list[str]:
    """The reference's taps in the order in which modules finish, then the taps of the runner only."""
    taps = evidence.reference.tensors
    if not results.taps_modules:
        expected = [tap for tap in taps if TapName.parse(tap).is_output_of(evidence.entry)]
        return expected + [tap for tap in results.untapped if tap not in expected]
    # Modules of the incremental forward are judged alone.
    appends = results.appends and results.appends_alone and bool(evidence.oracle_isolated)
    expected = [tap for tap in taps if appends or not TapName.parse(tap).appends]
    extra = {*results.tapped, *results.isolated, *results.untapped} - set(taps)
    return expected + sorted(extra)


def _judge_tap(
    standards: Standards,
    evidence: Evidence,
    results: Results,
    tap: str,
    flips: np.ndarray | None,
    apart: Collection[str],
) -> TapJudgement:
    """The judgement on one tap; `apart` has the paths of the modules whose calls have no partner."""
    call = evidence.kinds.get(tap)
    is_output = TapName.parse(tap).is_output_of(evidence.entry)
    path = call.path if call else tap
    kind = call.kind if call else (MODEL_OUTPUT if is_output else UNKNOWN)
    if spare := spare_result(evidence, results, tap, kind):
        return TapJudgement(tap, TapName.parse(tap).path, kind, None, None, spare)
    if tap not in evidence.reference.tensors:
        own = TapName.parse(tap).path
        is_called = any(call.path == own for call in evidence.reference.calls)
        if not is_output and not is_called and (absence := evidence.absence(own, kind)):
            return TapJudgement(tap, own, kind, None, None, absence)
        surplus = failure(extra(evidence, results, tap), bound_for(evidence.precision, 1))
        return TapJudgement.of(tap, path, kind, surplus)
    reference = evidence.reference.tensors[tap]
    # The shipped model is untapped, so its outputs are judged.
    port = results.untapped.get(tap) if is_output else results.tapped.get(tap)
    if call and port is None and results.isolated.get(tap) is None:
        gap = evidence.gaps.get(kind) or results.fused.get(kind)
        # A module of the port with other calls or outputs is a difference, and not absent.
        if gap := gap or ("" if has_module(results, path) else evidence.absence(path, kind)):
            if gap == RETURNS_INPUT and _changes_input(evidence, call, reference):
                gap = "is named in inert, and changes its input; the results behind it are judged"
            return TapJudgement(tap, path, kind, None, None, gap)
    if call and port is not None and (rows := looks_up_rows(evidence, call, port)):
        return TapJudgement(tap, path, kind, None, None, rows)
    contaminated = row_mask(flips, reference)
    accumulated = isolated = None
    if call is None or not call.appends:
        accumulated = standards.judge(tap, evidence.oracle.get(tap), reference, port, contaminated)
    is_alone = call is not None and not call.opaque and not other_form(evidence, results, call)
    if call and is_alone and results.taps_modules and evidence.oracle_isolated:
        isolated = _judge_isolated(standards, evidence, results, call, tap, contaminated)
        fails_alone = isolated is not None and not isolated.passed and accumulated is not None
        # With a result of another shape, nothing inside the model tells more.
        fails_alone = fails_alone and (port is None or port.shape == reference.shape)
        if fails_alone and path not in apart and other_form(evidence, results, call, fails_alone):
            isolated = None
    if port is None and accumulated is not None:
        accumulated = replace(accumulated, reason=missing(evidence, results, tap))
    if accumulated is not None and accumulated.reason and (form := evidence.reference.forms.get(tap)):
        accumulated = replace(accumulated, reason=f"{accumulated.reason}; {form}")
    return TapJudgement.of(tap, path, kind, accumulated, isolated)


def _changes_input(evidence: Evidence, call: ModuleCall, result: torch.Tensor) -> bool:
    """Whether a result of the reference's module is none of the tensors of its shape that it receives."""
    inputs = evidence.reference.call_inputs
    received = [inputs[key] for key in call.tensor_keys if key in inputs]
    alike = [tensor for tensor in received if tensor.shape == result.shape]
    # NaN of an input stays NaN.
    equal = (((tensor == result) | (tensor.isnan() & result.isnan())).all() for tensor in alike)
    return bool(alike) and not any(equal)


def _judge_isolated(
    standards: Standards,
    evidence: Evidence,
    results: Results,
    call: ModuleCall,
    tap: str,
    contaminated: np.ndarray | None,
) -> Verdict | None:
    problem = results.isolated_problems.get(call.tap)
    if problem:
        return failure(f"{RAISES}: {problem}", bound_for(evidence.precision, 1))
    contains_flip = any(flipped.startswith(f"{call.path}.") for flipped in evidence.boundary)
    return standards.judge(
        tap,
        evidence.oracle_isolated.get(tap),
        evidence.reference_isolated.get(tap, evidence.reference.tensors[tap]),
        results.isolated.get(tap),
        contaminated if contains_flip else None,
        isolated=True,
    )


def _largest_difference(results: Results) -> float:
    """The largest absolute change of an output by tapping the modules."""
    largest = 0.0
    for tap, plain in results.untapped.items():
        observed = results.tapped.get(tap)
        if observed is not None and observed.shape == plain.shape and plain.numel():
            difference = (observed.double() - plain.double()).abs()
            largest = max(largest, float(difference.max()))
    return largest
