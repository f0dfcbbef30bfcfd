"""The explanation of a diagnosis: hands the tensors behind it to `parity.verdict.patterns`."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np
import torch

from parity.base.interruption import raisable
from parity.capture.captures import argument_keys
from parity.capture.names import TapName
from parity.case.pairing import UNKNOWN
from parity.execution.errors import error_text
from parity.inputs.masks import bits
from parity.runners.oracle.rerun import Rerun
from parity.runners.registry import REGISTRY
from parity.verdict.causes import OtherResult, Program, Run, cause, overflow
from parity.verdict.comparison import Comparison
from parity.verdict.equal_tensors import NamedTensor, equal_tensor, of_call, of_model
from parity.verdict.evidence import Evidence, Results
from parity.verdict.judgement import MODEL_OUTPUT, RunnerJudgement, TapJudgement
from parity.verdict.patterns import FailedTensor, all_at, explain, is_place, named_axes
from parity.verdict.rule import Verdict

NO_CAUSE = "the search for a cause ended with an error of this suite's: "
MOST_OTHERS = 4
"""Largest numbers of other calls, other results of a call, and right outputs that a cause must hold in."""


def explain_tap(
    evidence: Evidence, results: Results, tap: TapJudgement, taps: Sequence[TapJudgement] = ()
) -> tuple[str, ...]:
    """The patterns that explain a tap's failure, in words; empty if no known pattern does.

    Args:
        evidence: The basis of the verdicts.
        results: The runner's.
        tap: The tap. One that passes is one that padding leaks into.
        taps: All taps, for other results of the tap's module.
    """
    if tap.passed:
        return _explain_leak(evidence, results, tap.tap)
    if tap.isolated is not None and not tap.isolated.passed:
        others = [(other, results.isolated.get(other.tap)) for other in _others(tap, taps)]
        return explain_alone(evidence, results.isolated.get(tap.tap), tap, others, _right(taps))
    port = results.untapped.get(tap.tap)
    port = results.tapped.get(tap.tap) if port is None else port
    return _explain(evidence, port, tap)


def with_translation(judgement: RunnerJudgement, runner: str) -> RunnerJudgement:
    """The judgement, with the cause of a failure where the runner's program is the reference's own.

    Only the libraries that translate the program stand between it and the reference.
    """
    libraries = REGISTRY[runner].translated_by if runner in REGISTRY else ""
    diagnosis = judgement.diagnosis
    if not libraries or diagnosis is None or diagnosis.kind == "none":
        return judgement
    text = (
        f"it is the reference's own program, which eager PyTorch runs right: {libraries} makes the difference"
    )
    return replace(judgement, diagnosis=replace(diagnosis, explanation=(text, *diagnosis.explanation)))


def _others(tap: TapJudgement, taps: Sequence[TapJudgement]) -> list[TapJudgement]:
    """Other results of a tap's call, and the same result of the module's last other calls, each one alone."""
    own = TapName.parse(tap.tap)
    names = [
        (other, TapName.parse(other.tap)) for other in taps if other.isolated is not None and other is not tap
    ]
    beside = [other for other, name in names if name.module_call == own.module_call]
    alike = [other for other, name in names if name.call != own.call and replace(name, call=own.call) == own]
    return [*beside[:MOST_OTHERS], *alike[-MOST_OTHERS:]]


def _right(taps: Iterable[TapJudgement]) -> frozenset[str]:
    """Paths of the modules that pass alone. One that the port never calls is a part of the code around it."""
    alone = [
        (tap.path, tap.isolated.passed)
        for tap in taps
        if tap.isolated is not None and not _has_no_result(tap)
    ]
    return frozenset(path for path, _ in alone) - {path for path, passed in alone if not passed}


def explain_alone(
    evidence: Evidence,
    port: torch.Tensor | None,
    tap: TapJudgement,
    others: Sequence[tuple[TapJudgement, torch.Tensor | None]] = (),
    right: frozenset[str] = frozenset(),
) -> tuple[str, ...]:
    """The patterns that explain the result of a module alone, or of an output of the model.

    Args:
        evidence: The basis of the verdicts.
        port: The result.
        tap: Its tap.
        others: Taps of other results of the module, with the port's results.
        right: Paths of modules that pass alone: no operation of theirs is the cause.
    """
    if tap.isolated is None:
        return _explain(evidence, port, tap)
    failed = _failed_tensor(evidence, evidence.oracle_isolated.get(tap.tap), port, tap.tap, tap.isolated)
    if failed is None:
        return ()
    patterns = _patterns(failed, of_call(evidence, tap.tap))
    return with_cause(_cause(evidence, failed, tap, others, right), patterns)


def with_cause(cause: Sequence[str], patterns: Sequence[str]) -> tuple[str, ...]:
    """A known cause, and patterns behind it. The places of wrong elements tell nothing more."""
    return (*cause, *(text for text in patterns if not cause or not is_place(text)))


def _cause(
    evidence: Evidence,
    failed: FailedTensor,
    tap: TapJudgement,
    others: Sequence[tuple[TapJudgement, torch.Tensor | None]],
    right: frozenset[str],
) -> tuple[str, ...]:
    """The programming error that gives the port's result of a module alone; empty without a known one."""
    program = _alone(evidence, tap.tap, right)
    if program is None:
        return ()
    of_others = []
    for other, port in others:
        oracle = evidence.oracle_isolated.get(other.tap)
        result = _failed_tensor(evidence, oracle, port, other.tap, other.isolated, may_pass=True)
        if result is not None and (other_program := _alone(evidence, other.tap, right)) is not None:
            of_others.append(OtherResult(other_program, result))
    dtype = evidence.precision.dtype
    return _searched(lambda: cause(program, failed, of_others) or overflow(program, failed, dtype))


def _searched(search: Callable[[], str]) -> tuple[str, ...]:
    """The cause that a search finds, if any. An error of the search is told, and costs no verdict."""
    try:
        return tuple(filter(None, [search()]))
    except raisable() as error:
        return (f"{NO_CAUSE}{error_text(error)}",)


def _alone(evidence: Evidence, tap: str, right: frozenset[str]) -> Program | None:
    """The oracle's program of a module alone for one result; None where it cannot run.

    Operations of the modules at the `right` paths stay as they are.
    """
    call, rerun = evidence.kinds.get(tap), evidence.rerun
    if call is None or rerun is None:
        return None
    keys = argument_keys(call.args, call.kwargs)
    own = {key: evidence.call_inputs[key] for key in keys.values()}

    def run(arguments: Mapping[str, torch.Tensor]) -> torch.Tensor:
        changed = {keys[name]: tensor for name, tensor in arguments.items()}
        return rerun.call(call, own | changed)[tap]

    return Program(
        run,
        {name: own[key] for name, key in keys.items()},
        is_changeable=lambda: right.isdisjoint(rerun.running),
        exchanged=_exchanged(rerun, call.path, run),
        choices=evidence.choices_isolated.get(call.tap),
    )


def _exchanged(rerun: Rerun, path: str, run: Run) -> dict[str, Run]:
    """Runs of a module alone with exchanged weights or modules, or with weights of another one, in words."""

    def changed(exchange: Callable[[], AbstractContextManager[None]]) -> Run:
        def other(arguments: Mapping[str, torch.Tensor]) -> torch.Tensor:
            with exchange():
                return run(arguments)

        return other

    return {text: changed(exchange) for text, exchange in rerun.weights_exchanged(path).items()}


def explain_between(evidence: Evidence, results: Results, comparison: Comparison) -> tuple[str, ...]:
    """The programming error in the code between modules that gives the wrong tensor; empty without one.

    The oracle runs from its inputs up to the tensor. Operations of modules that pass alone stay as they are.
    A module that the port never calls is a part of the code: the port may use its weight alone. The same
    holds for the code of a module that does not run alone; only its operations are changed then.
    """
    diagnosis, rerun = comparison.diagnosis, evidence.rerun
    target, failed, inside = diagnosis.argument or diagnosis.tap, None, ""
    tap = comparison.tap(diagnosis.tap)
    if diagnosis.kind == "between":
        failed = _between_modules(evidence, results, comparison)
    elif diagnosis.kind == "module" and tap is not None and _fails_inside_alone(tap):
        inside, failed = tap.path, _failed_inside(evidence, results.tapped.get(tap.tap), tap)
    elif _has_no_result(tap):
        target, failed = _wrong_output(evidence, results, comparison)
    if failed is None or rerun is None:
        return ()
    right = _right(comparison.taps)

    def is_changeable() -> bool:
        return right.isdisjoint(rerun.running) and (not inside or inside in rerun.running)

    def until(tensor: str) -> Program:
        run = functools.partial(rerun.until, tensor)
        return Program(run, rerun.inputs(), is_changeable, choices=evidence.choices)

    def search() -> str:
        try:
            right_outputs = itertools.islice(_right_outputs(evidence, results, comparison), MOST_OTHERS)
            others = [OtherResult(until(output), result) for output, result in right_outputs]
            text = cause(until(target), failed, others)
            return text or overflow(until(target), failed, evidence.precision.dtype)
        except KeyError:
            # An output under the port's name, or a call that another batch makes.
            return ""

    return _searched(search)


def _between_modules(evidence: Evidence, results: Results, comparison: Comparison) -> FailedTensor | None:
    """The wrong argument or output that the code between modules makes."""
    name = TapName.parse(comparison.diagnosis.argument)
    for call in comparison.calls:
        if call.wrong is not None and (call.call, call.wrong.name) == (str(name.module_call), name.argument):
            return call.wrong.failed
    tap = None if name.argument else comparison.tap(comparison.diagnosis.tap)
    if tap is None:
        return None
    return _failed_inside(evidence, results.untapped.get(tap.tap), tap)


def _fails_inside_alone(tap: TapJudgement) -> bool:
    """Whether a module does not run alone, and has a wrong result inside the model."""
    has_calls = tap.kind not in (UNKNOWN, MODEL_OUTPUT)
    return has_calls and tap.isolated is None and tap.accumulated is not None and not tap.accumulated.passed


def _has_no_result(tap: TapJudgement | None) -> bool:
    """Whether a module of the reference has no result inside the port's model. It may run alone."""
    if tap is None or tap.accumulated is None or tap.kind in (UNKNOWN, MODEL_OUTPUT):
        return False
    return not tap.accumulated.passed and math.isnan(tap.accumulated.limit.l2)


def _wrong_output(
    evidence: Evidence, results: Results, comparison: Comparison
) -> tuple[str, FailedTensor | None]:
    """The first wrong output of the model, by its tap; None if each one is right or has no numbers."""
    for tap in comparison.taps:
        if tap.kind == MODEL_OUTPUT:
            failed = _failed_inside(evidence, results.untapped.get(tap.tap), tap)
            if failed is not None:
                return tap.tap, failed
    return "", None


def _right_outputs(
    evidence: Evidence, results: Results, comparison: Comparison
) -> Iterator[tuple[str, FailedTensor]]:
    """The outputs of the model that are right, by their taps. No cause makes them wrong."""
    for tap in comparison.taps:
        if tap.kind == MODEL_OUTPUT and tap.passed and tap.accumulated is not None:
            truth = evidence.truth_inside(tap.tap, tap.accumulated.bound)
            port = results.untapped.get(tap.tap)
            result = _failed_tensor(evidence, truth, port, tap.tap, tap.accumulated, may_pass=True)
            if result is not None:
                yield tap.tap, result


def _explain(evidence: Evidence, port: torch.Tensor | None, tap: TapJudgement) -> tuple[str, ...]:
    if (failed := _failed_inside(evidence, port, tap)) is None:
        return ()
    return tuple(_patterns(failed, of_model(evidence, tap.tap)))


def _patterns(failed: FailedTensor, others: Iterable[NamedTensor]) -> list[str]:
    """The patterns that explain a tensor; where none does, another tensor that it is."""
    patterns = explain(failed)
    if any(not is_place(text) for text in patterns):
        return patterns
    return [*with_cause(equal_tensor(failed, others), patterns)]


def _failed_inside(evidence: Evidence, port: torch.Tensor | None, tap: TapJudgement) -> FailedTensor | None:
    """A result inside the model beyond its limit; None without numbers to compare."""
    verdict = tap.accumulated
    truth = None if verdict is None else evidence.truth_inside(tap.tap, verdict.bound)
    return _failed_tensor(evidence, truth, port, tap.tap, verdict)


def _failed_tensor(
    evidence: Evidence,
    oracle: torch.Tensor | None,
    port: torch.Tensor | None,
    tap: str,
    verdict: Verdict | None,
    may_pass: bool = False,
) -> FailedTensor | None:
    """A result beyond its limit, or within it too if it may pass; None without numbers to compare."""
    if oracle is None or port is None or verdict is None or math.isnan(verdict.limit.l2):
        return None
    if verdict.passed and not may_pass:
        return None
    shape = tuple(oracle.shape)
    return FailedTensor(
        oracle=oracle.to(torch.float64).numpy(),
        port=port.to(torch.float64).numpy(),
        counted=evidence.counted(tap, shape),
        limit=verdict.limit,
        axes=named_axes(shape, evidence.batch_size, evidence.valid),
        dtype=port.dtype,
    )


def _explain_leak(evidence: Evidence, results: Results, tap: str) -> tuple[str, ...]:
    """The number of elements that garbage in the padding changes, and their distance from the padding."""
    clean, poisoned = results.tapped.get(tap), results.poisoned.get(tap)
    if clean is None or poisoned is None or clean.shape != poisoned.shape:
        return ()
    shape = tuple(clean.shape)
    mask = evidence.mask(shape, tap)
    valid = np.ones(shape, dtype=bool) if mask is None else np.broadcast_to(mask, shape)
    changed = valid & (bits(clean) != bits(poisoned))
    if not changed.any():
        return ()
    places = all_at(changed, named_axes(shape, evidence.batch_size, evidence.valid))
    return (
        f"{int(changed.sum())} of {int(valid.sum())} valid elements change{places}",
        *_reach(evidence, changed),
    )


def _reach(evidence: Evidence, changed: np.ndarray) -> tuple[str, ...]:
    """The largest distance of a changed element from the padding, in positions, if an axis is padded."""
    for axis, size in enumerate(changed.shape[1:], start=1):
        if size not in evidence.valid or changed.shape[0] != evidence.batch_size:
            continue
        valid = evidence.valid[size]
        is_changed = changed.any(axis=tuple(other for other in range(1, changed.ndim) if other != axis))
        # Number of valid positions of the same sequence behind each position.
        behind = valid[:, ::-1].cumsum(axis=1)[:, ::-1] - 1
        distance = int(behind[is_changed].max()) + 1
        padded = valid & ~valid.all(axis=1, keepdims=True)
        if (is_changed == padded).all():
            return ("every valid position of the sequences with padding: something runs over the padding",)
        return (f"no further than {distance} positions from the padding",)
    return ()
