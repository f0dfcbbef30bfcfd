"""Calls and outputs that one side alone has, and calls that the port joins or splits."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from parity.capture.captures import ModuleCall
from parity.capture.names import TapName
from parity.case.pairing import ABSENT
from parity.verdict.arguments import is_received, other_form
from parity.verdict.elements import EXTRA_CALL, NO_CALL
from parity.verdict.evidence import Evidence, Results, shape_of
from parity.verdict.judgement import MODEL_OUTPUT, TapJudgement

ONE_SIDED = "set one_sided in the case if that is right"
"""The remedy where a case does not allow calls of one side alone."""
REMEDY = f"call it in the port's forward, {ABSENT}"


def missing(evidence: Evidence, results: Results, tap: str) -> str:
    """The reason why the port has no result at one of the reference's taps."""
    name = TapName.parse(tap)
    if name.is_output_of(evidence.entry):
        return f"missing: the port's {evidence.entry} returns no such output"
    theirs, ours = _calls(evidence.reference.tensors), _calls(results.tapped)
    if not ours.get(name.path):
        oftener = [path for path in theirs if ours.get(path, 0) > theirs[path]]
        # Not a module inside another one of them.
        outer = (path for path in oftener if not any(path.startswith(f"{other}.") for other in oftener))
        others = "".join(f"; {_counts(path, ours, theirs)}" for path in itertools.islice(outer, 1))
        return f"{NO_CALL[0]}{name.path}{others}; {REMEDY}"
    if ours[name.path] < theirs[name.path]:
        return f"missing: {_counts(name.path, ours, theirs)}{_remedy(evidence, name.path)}"
    return f"missing: the port's {name.path} returns no such output"


def extra(evidence: Evidence, results: Results, tap: str) -> str:
    """The reason why the reference has no result at one of the port's taps."""
    name = TapName.parse(tap)
    if name.is_output_of(evidence.entry) or not results.taps_modules:
        return f"extra: the reference's {evidence.entry} returns no such output"
    theirs, ours = _calls(evidence.reference.tensors), _calls(results.tapped)
    if not theirs.get(name.path):
        return f"{EXTRA_CALL[0]}{name.path}"
    if ours.get(name.path, 0) > theirs[name.path]:
        return f"extra: {_counts(name.path, ours, theirs)}{_remedy(evidence, name.path)}"
    return f"extra: the reference's {name.path} returns no such output"


def spare_result(evidence: Evidence, results: Results, tap: str, kind: str) -> str:
    """The reason why a result counts as absent that one side alone returns, from a call of both sides.

    Empty if the call has no result of both sides, or the case allows no module of one side. The results
    behind such a tensor are judged: a right port leaves out what nothing reads, such as a last state.
    """
    name = TapName.parse(tap)
    sides = {"reference": evidence.reference.tensors, "port": results.tapped}
    having = [side for side, tensors in sides.items() if tap in tensors]
    if len(having) != 1 or name.appends or name.is_output_of(evidence.entry):
        return ""
    own = (other for other in evidence.reference.tensors if other in results.tapped)
    is_paired = any(TapName.parse(other).module_call == name.module_call for other in own)
    is_allowed = is_paired and evidence.absence(name.path, kind)
    return f"the {having[0]} alone returns its result {name.output}" if is_allowed else ""


def looks_up_rows(evidence: Evidence, call: ModuleCall, port: torch.Tensor) -> str:
    """The reason why a bag counts as absent whose rows the port's module looks up; empty if it is compared.

    The port then adds the rows up in the code behind its table, whose results are judged.
    """
    shape = tuple(evidence.reference.tensors[call.outputs[0]].shape)
    rows = (*port.shape[:-2], *port.shape[-1:])
    is_looked_up = call.kind == "EmbeddingBag" and port.ndim == len(shape) + 1 and rows == shape
    if not is_looked_up or not evidence.absence(call.path, call.kind):
        return ""
    return "the port looks its rows up alone; the results behind them are judged"


def without_spare_calls(
    evidence: Evidence, results: Results, taps: tuple[TapJudgement, ...]
) -> tuple[TapJudgement, ...]:
    """Calls that one side alone makes are gaps, except where one may cause the first other failure.

    A right port may look a row up once and use it twice. Too few runs of a shared layer change a result: that
    of the module that makes the calls, unless the entry makes them. A call of the port that has the result of
    another one gives nothing new.
    """
    tapped: dict[str, Mapping[str, torch.Tensor]] = {
        "reference": evidence.reference.tensors,
        "port": results.tapped,
    }
    callers = {side: {TapName.parse(tap).module_call for tap in tensors} for side, tensors in tapped.items()}
    spare: dict[str, str] = {}
    for tap in taps:
        name = TapName.parse(tap.tap)
        sides = [side for side, calls in callers.items() if name.module_call in calls]
        is_right_alone = tap.isolated is None or tap.isolated.passed
        is_spare = not tap.passed and is_right_alone and len(sides) == 1
        if is_spare and not name.is_output_of(evidence.entry) and evidence.absence(tap.path, tap.kind):
            spare[tap.tap] = sides[0]
    failed = [place for place, tap in enumerate(taps) if not tap.passed and tap.tap not in spare]
    made = {"reference": evidence.reference.arguments, "port": results.received.arguments}

    def is_without_effect(tap: str, side: str) -> bool:
        received = made[side].get(str(TapName.parse(tap).module_call))
        callers = [other for other in taps if received and received.parent and other.path == received.parent]
        return bool(callers) and all(caller.accumulated and caller.passed for caller in callers)

    def is_repeated(tap: str, side: str) -> bool:
        own, tensors = TapName.parse(tap), tapped[side]
        return any(
            torch.equal(tensors[other], tensors[tap])
            for other in tapped["port"]
            if replace(TapName.parse(other), call=own.call) == own and other in tapped["reference"]
        )

    def gives_nothing(tap: str, side: str) -> bool:
        is_made = side == "reference" and is_received(evidence, results, tap)
        return is_made or is_without_effect(tap, side) or is_repeated(tap, side)

    def judged(place: int, tap: TapJudgement) -> TapJudgement:
        side = spare.get(tap.tap)
        # The place of a call that the reference never makes is unknown.
        may_be_the_cause = bool(failed) and (side == "port" or place < failed[0])
        if side is None:
            return tap
        if may_be_the_cause and not gives_nothing(tap.tap, side):
            return tap
        return TapJudgement(tap.tap, tap.path, tap.kind, None, None, f"the {side} alone makes this call")

    return tuple(judged(place, tap) for place, tap in enumerate(taps))


def without_partner(evidence: Evidence, results: Results) -> dict[str, str]:
    """The numbers of calls of the modules whose calls have no partner, in words, by path.

    A port may join two calls of a shared module into one, or split one into two. Both sides then call it a
    different number of times, and results of one number have other shapes. Nothing inside the model is
    comparable with such a call. Where all shapes are equal, calls pair by their number: a shared layer that
    runs too seldom is a fault. Calls with other sizes are added: see `of_other_sizes`.
    """
    reference, port = evidence.reference.tensors, results.tapped
    theirs, ours = _calls(reference), _calls(port)
    unequal = [path for path in theirs if path in ours and ours[path] != theirs[path]]
    names = (TapName.parse(tap) for tap in reference if tap in port)
    joined = {
        name.path
        for name in names
        if name.path in unequal
        and not name.is_output_of(evidence.entry)
        and shape_of(reference, str(name)) != shape_of(port, str(name))
    }
    counts = {
        path: _counts(path, ours, theirs)
        for path in unequal
        if path in joined or any(path.startswith(f"{outer}.") for outer in joined)
    }
    return {**results.other_sizes, **counts}


def of_other_sizes(evidence: Evidence, results: Results, taps: Sequence[TapJudgement]) -> dict[str, str]:
    """The arguments of other sizes of the modules that fail inside the model for them alone, by path.

    A port may run each expert on all rows and choose behind them, where PyTorch's sends it the rows that it
    chose. Nothing inside the model is comparable with such a call, as with one that joins two. Every failing
    result is one of such a call, and right alone: the model's outputs are right.
    """
    sizes: dict[str, str] = {}
    for tap in taps:
        if tap.passed:
            continue
        call, port = evidence.kinds.get(tap.tap), results.tapped.get(tap.tap)
        is_wrong_alone = tap.isolated is not None and not tap.isolated.passed
        is_unjudged = tap.isolated is None and bool(evidence.oracle_isolated)
        if call is None or call.appends or port is None or is_wrong_alone or is_unjudged:
            return {}
        form = other_form(evidence, results, call, fails_alone=True)
        if not form or tuple(port.shape) == shape_of(evidence.reference.tensors, tap.tap):
            return {}
        sizes[tap.path] = f"the port's call has other sizes, {form}"
    return sizes


def judged_alone(
    evidence: Evidence, results: Results, taps: Sequence[TapJudgement], numbers: Mapping[str, str]
) -> tuple[TapJudgement, ...]:
    """The judgements on taps, where failures inside the model do not count of calls without a partner.

    The module alone and the results behind it are judged. A module that takes another shape may be wrong
    alone and right inside the model, so that its failure alone counts only with a failing output. A case may
    ask for equal calls: the failure then has both numbers of calls.

    Args:
        evidence: Tells whether the case allows calls of one side alone.
        results: The port's results.
        taps: The judgements.
        numbers: See `without_partner`.
    """
    outputs = (tap for tap in taps if tap.kind == MODEL_OUTPUT)
    is_right = all(tap.passed for tap in outputs)

    def judged(tap: TapJudgement) -> TapJudgement:
        name = TapName.parse(tap.tap)
        counts, verdict, alone = numbers.get(name.path), tap.accumulated, tap.isolated
        if counts is None or tap.gap or name.appends or tap.kind == MODEL_OUTPUT:
            return tap
        fails = verdict is not None and not verdict.passed
        if remedy := _remedy(evidence, name.path):
            told = f"; {counts}{remedy}" if fails and counts not in verdict.reason else ""
            return (
                replace(tap, accumulated=replace(verdict, reason=f"{verdict.reason}{told}")) if told else tap
            )
        call = evidence.kinds.get(tap.tap)
        if alone and not alone.passed and is_right and other_form(evidence, results, call, fails_alone=True):
            alone = None
        verdict = None if fails else verdict
        if verdict is None and alone is None:
            return TapJudgement(tap.tap, tap.path, tap.kind, None, None, counts)
        return TapJudgement.of(tap.tap, tap.path, tap.kind, verdict, alone)

    return tuple(map(judged, taps))


def without_calls(results: Results, paths: Iterable[str]) -> Results:
    """The results without the arguments of the calls of some modules."""
    left_out = set(paths)
    arguments = results.received.arguments
    compared = {call: own for call, own in arguments.items() if TapName.parse(call).path not in left_out}
    return replace(results, received=replace(results.received, arguments=compared))


def _remedy(evidence: Evidence, path: str) -> str:
    return "" if evidence.allows_one_side(path) else f"; {ONE_SIDED}"


def _calls(taps: Iterable[str]) -> dict[str, int]:
    """Number of calls of each module in the full forward, in the order of the taps."""
    names = (TapName.parse(tap) for tap in taps)
    # Not a set, whose order changes from process to process: a replay has the same words.
    calls = dict.fromkeys(name.module_call for name in names if not name.appends)
    counts: dict[str, int] = {}
    for call in calls:
        counts[call.path] = counts.get(call.path, 0) + 1
    return counts


def _counts(path: str, ours: Mapping[str, int], theirs: Mapping[str, int]) -> str:
    port, reference = ("once" if side[path] == 1 else f"{side[path]} times" for side in (ours, theirs))
    return f"the port calls {path} {port}, the reference {reference}"


def has_module(results: Results, path: str) -> bool:
    """Whether the runner has any result of the module at a path, or an error."""
    taps = itertools.chain(results.tapped, results.isolated, results.isolated_problems)
    return any(TapName.parse(tap).path == path for tap in taps)
