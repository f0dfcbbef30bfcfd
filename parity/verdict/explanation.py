"""The explanation of a diagnosis: hands the tensors behind it to `parity.verdict.patterns`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from parity.base.interruption import raisable
from parity.capture.captures import argument_keys
from parity.capture.names import TapName
from parity.case.pairing import UNKNOWN
from parity.execution.errors import error_text
from parity.inputs.masks import bits
from parity.runners.registry import REGISTRY
from parity.verdict.causes import OtherCall, Run, cause
from parity.verdict.comparison import Comparison
from parity.verdict.evidence import Evidence, Results, shape_of
from parity.verdict.judgement import MODEL_OUTPUT, RunnerJudgement, TapJudgement
from parity.verdict.patterns import FailedTensor, all_at, explain, is_place, named_axes
from parity.verdict.rule import Verdict

NO_CAUSE = "the search for a cause ended with an error of this suite's: "
MOST_OTHER_CALLS = 4
"""Largest number of other calls of a module that a cause must hold in."""


def explain_tap(
    evidence: Evidence, results: Results, tap: TapJudgement, taps: Sequence[TapJudgement] = ()
) -> tuple[str, ...]:
    """The patterns that explain a tap's failure, in words; empty if no known pattern does.

    Args:
        evidence: The basis of the verdicts.
        results: The runner's.
        tap: The tap. One that passes is one that padding leaks into.
        taps: All taps, for other calls of the tap's module.
    """
    if tap.passed:
        return _explain_leak(evidence, results, tap.tap)
    if tap.isolated is not None and not tap.isolated.passed:
        other_calls = [(other, results.isolated.get(other.tap)) for other in _other_calls(tap, taps)]
        return explain_alone(evidence, results.isolated.get(tap.tap), tap, other_calls)
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


def _other_calls(tap: TapJudgement, taps: Sequence[TapJudgement]) -> list[TapJudgement]:
    """The same result of the last other calls of a module, each one alone."""
    own = TapName.parse(tap.tap)
    names = ((other, TapName.parse(other.tap)) for other in taps if other.isolated is not None)
    alike = [other for other, name in names if name != own and replace(name, call=own.call) == own]
    return alike[-MOST_OTHER_CALLS:]


def explain_alone(
    evidence: Evidence,
    port: torch.Tensor | None,
    tap: TapJudgement,
    other_calls: Sequence[tuple[TapJudgement, torch.Tensor | None]] = (),
) -> tuple[str, ...]:
    """The patterns that explain the result of a module alone, or of an output of the model.

    Args:
        evidence: The basis of the verdicts.
        port: The result.
        tap: Its tap.
        other_calls: Taps of other calls of the module, with the port's results.
    """
    if tap.isolated is None:
        return _explain(evidence, port, tap)
    failed = _failed_tensor(evidence, evidence.oracle_isolated.get(tap.tap), port, tap.tap, tap.isolated)
    if failed is None:
        return ()
    own = evidence.kinds[tap.tap].outputs if tap.tap in evidence.kinds else ()
    patterns = _patterns(failed, tap.tap, evidence.oracle_isolated, own)
    return with_cause(_cause(evidence, failed, tap.tap, other_calls), patterns)


def with_cause(cause: Sequence[str], patterns: Sequence[str]) -> tuple[str, ...]:
    """A known cause, and patterns behind it. The places of wrong elements tell nothing more."""
    return (*cause, *(text for text in patterns if not cause or not is_place(text)))


def _cause(
    evidence: Evidence,
    failed: FailedTensor,
    tap: str,
    other_calls: Sequence[tuple[TapJudgement, torch.Tensor | None]],
) -> tuple[str, ...]:
    """The programming error that gives the port's result of a module alone; empty without a known one."""
    runnable = _alone(evidence, tap)
    if runnable is None:
        return ()
    others = []
    for other, port in other_calls:
        oracle = evidence.oracle_isolated.get(other.tap)
        result = _failed_tensor(evidence, oracle, port, other.tap, other.isolated, may_pass=True)
        other_runnable = _alone(evidence, other.tap)
        if result is not None and other_runnable is not None:
            others.append(OtherCall(*other_runnable, result))
    return _searched(lambda: cause(*runnable, failed, other_calls=others))


def _searched(search: Callable[[], str]) -> tuple[str, ...]:
    """The cause that a search finds, if any. An error of the search is told, and costs no verdict."""
    try:
        return tuple(filter(None, [search()]))
    except raisable() as error:
        return (f"{NO_CAUSE}{error_text(error)}",)


def _alone(evidence: Evidence, tap: str) -> tuple[Run, Mapping[str, torch.Tensor]] | None:
    """The oracle's run of a module alone for one result, and its arguments; None where it cannot run."""
    call, run_oracle = evidence.kinds.get(tap), evidence.run_oracle
    if call is None or run_oracle is None:
        return None
    keys = argument_keys(call.args, call.kwargs)
    own = {key: evidence.reference.call_inputs[key] for key in keys.values()}

    def run(arguments: Mapping[str, torch.Tensor]) -> torch.Tensor:
        changed = {keys[name]: tensor for name, tensor in arguments.items()}
        return run_oracle(call, own | changed)[tap]

    return run, {name: own[key] for name, key in keys.items()}


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
    right = {
        other.path
        for other in comparison.taps
        if other.isolated is not None and other.isolated.passed and not _has_no_result(other)
    }

    def search() -> str:
        try:
            return cause(
                lambda inputs: rerun.until(target, inputs),
                rerun.inputs(),
                failed,
                lambda: right.isdisjoint(rerun.running) and (not inside or inside in rerun.running),
            )
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
    return not tap.accumulated.passed and math.isnan(tap.accumulated.port.l2)


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


def _explain(evidence: Evidence, port: torch.Tensor | None, tap: TapJudgement) -> tuple[str, ...]:
    if (failed := _failed_inside(evidence, port, tap)) is None:
        return ()
    return tuple(_patterns(failed, tap.tap, evidence.oracle, _by_nearness(evidence)))


def _patterns(
    failed: FailedTensor, tap: str, tensors: Mapping[str, torch.Tensor], others: Iterable[str]
) -> list[str]:
    """The patterns that explain a tensor; where none does, the tensor of another name that it is."""
    patterns = explain(failed)
    if any(not is_place(text) for text in patterns):
        return patterns
    return [*with_cause(_exchanged(failed, tap, tensors, others), patterns)]


def _exchanged(
    failed: FailedTensor, tap: str, tensors: Mapping[str, torch.Tensor], others: Iterable[str]
) -> tuple[str, ...]:
    """The first other tensor of the oracle that a wrong one is, in words.

    Args:
        failed: The wrong tensor.
        tap: Its name.
        tensors: The oracle's by name.
        others: Names of the tensors to look at, in their order.
    """
    for other in others:
        if other == tap or other not in tensors or shape_of(tensors, other) != failed.oracle.shape:
            continue
        tensor = tensors[other].to(torch.float64).numpy()
        # Integers that are all equal, such as one count, may be so by chance.
        tells = failed.dtype.is_floating_point or np.unique(tensor[failed.counted]).size > 1
        if tells and failed.is_explained_by(tensor):
            return (f"equals the oracle's {other}",)
    return ()


def _by_nearness(evidence: Evidence) -> list[str]:
    """Names of the oracle's outputs, then of its other results of the full forward, the last first."""
    names = [name for name in map(TapName.parse, evidence.oracle) if not (name.samples or name.appends)]
    outputs = [name for name in names if name.is_output_of(evidence.entry)]
    return [*map(str, outputs), *(str(name) for name in reversed(names) if name not in outputs)]


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
