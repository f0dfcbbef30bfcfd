"""The evidence under the port's choices.

Where the port's integers or booleans differ from the oracle's, the port may have chosen otherwise within
rounding. Oracle, rounding samples and reference then run again and take the port's choices. Choices that
rounding does not explain stay the oracle's, so that the port's fail (`parity.verdict.choices.admissible`).
All results behind a choice are compared under the same choice, and none is left out.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from parity.capture.names import TapName
from parity.runners.oracle.choice import ROUNDING
from parity.runners.oracle.choices import DifferentChoices, Prescribed
from parity.runners.oracle.replays import Replay
from parity.verdict.bound import Bound, bound_for
from parity.verdict.choices.admissible import admissible, limits
from parity.verdict.choices.proposals import propose
from parity.verdict.choices.search import search
from parity.verdict.port_choices import PortChoices

if TYPE_CHECKING:
    from parity.verdict.evidence import Evidence, Results

ROUNDS = 3
"""Most searches for choices that rounding does not explain: a wrong one changes those behind it."""
ATTEMPTS = 2
"""Most attempts to repeat a run: in the first one, a model may make constants and keep them."""
SEARCHES = 3
"""Most searches for choices that no result shows: one that is taken changes those behind it."""


def under_port_choices(evidence: Evidence, results: Results) -> Evidence:
    """The evidence under the choices that the port's integers and booleans show.

    It is the given evidence where all of them are equal, and where the models cannot run again.
    """
    if evidence.replays is None:
        return evidence
    if evidence.oracle_isolated:
        evidence = _calls(evidence, results)
    if not _differ(
        evidence.reference.tensors, evidence.oracle, _of_port(evidence, results, evidence.exact_taps)
    ):
        return evidence
    port = _of_port(evidence, results, evidence.reference.tensors)

    explained = _explained(evidence.replays.whole, port, _bounds(evidence))
    return evidence if explained is None else _with_whole(evidence, evidence.oracle, explained)


def under_hidden_choices(
    evidence: Evidence, results: Results, natural: Evidence, alone: Collection[str], whole: bool
) -> Evidence:
    """The evidence under choices that no integer or boolean of a failing port shows.

    Floating-point results of whole numbers may show them. It is the given evidence where no other choice
    brings the oracle nearer to the port.

    Args:
        evidence: The evidence of the comparison.
        results: The port's results.
        natural: The evidence under the oracle's own choices. Modules ran alone on its reference's tensors.
        alone: Taps that fail alone.
        whole: Whether the port fails inside the model.
    """
    replays = evidence.replays
    if replays is None:
        return evidence
    again = {}
    recorded = natural.reference
    for call in recorded.calls:
        port = {tap: results.isolated[tap] for tap in call.outputs if tap in results.isolated}
        if port.keys().isdisjoint(alone):
            continue
        bound = bound_for(evidence.precision_alone(call), recorded.longest_sums[call.path])
        run = functools.partial(replays.call, call, recorded.call_inputs)
        explained = _searched(
            run, port, lambda tap, bound=bound: bound, bound, evidence.batch_size, evidence.oracle_isolated
        )
        if explained is not None:
            again[call.tap] = explained
    evidence = _with_calls(evidence, natural.oracle_isolated, again)
    if not whole:
        return evidence
    port = _of_port(evidence, results, evidence.reference.tensors)
    longest = bound_for(evidence.precision, evidence.model_longest_sum)
    explained = _searched(
        replays.whole, port, _bounds(evidence), longest, evidence.batch_size, evidence.oracle
    )
    return evidence if explained is None else _with_whole(evidence, natural.oracle, explained)


def _bounds(evidence: Evidence) -> Callable[[str], Bound]:
    """The bound of a tap inside the model."""
    return lambda tap: bound_for(
        evidence.precision, evidence.longest_sum(tap, isolated=False), evidence.modules(tap, isolated=False)
    )


def _with_whole(evidence: Evidence, natural: Mapping[str, torch.Tensor], explained: _Explained) -> Evidence:
    """The evidence with the whole model run again; `natural` is the oracle under its own choices."""
    replay = explained.replay
    own, again = evidence.reference, replay.reference_capture
    reference = replace(
        own,
        tensors={**own.tensors, **again.tensors},
        arguments=again.arguments,
        call_inputs={**own.call_inputs, **again.call_inputs},
    )
    return replace(
        evidence,
        reference=reference,
        reference_isolated=evidence.reference_isolated or own.tensors,
        inputs_isolated=evidence.call_inputs,
        choices=explained.choices,
        oracle={**evidence.oracle, **replay.oracle},
        oracle_received=replay.oracle_capture,
        ties={**evidence.ties, **_ties(natural, replay.oracle)},
    )


def _of_port(evidence: Evidence, results: Results, taps: Iterable[str]) -> dict[str, torch.Tensor]:
    """The judged results of the port inside the model, by tap."""
    sides = {
        tap: results.untapped if TapName.parse(tap).is_output_of(evidence.entry) else results.tapped
        for tap in taps
    }
    return {tap: side[tap] for tap, side in sides.items() if tap in side}


def _differ(
    reference: Mapping[str, torch.Tensor],
    oracle: Mapping[str, torch.Tensor],
    port: Mapping[str, torch.Tensor],
) -> bool:
    """Whether an integer or boolean of the port or of the reference is not the oracle's."""
    for tap, tensor in port.items():
        exact = oracle.get(tap)
        if exact is not None and any(
            side.shape == exact.shape and bool((side != exact).any()) for side in (tensor, reference[tap])
        ):
            return True
    return False


def _calls(evidence: Evidence, results: Results) -> Evidence:
    """The evidence with the calls of modules alone under the port's choices."""
    own = evidence.reference_isolated or evidence.reference.tensors
    again = {}
    for call in evidence.reference.calls:
        taps = [tap for tap in call.outputs if tap in results.isolated]
        exact = {tap: results.isolated[tap] for tap in taps if tap in evidence.exact_taps}
        if not _differ(own, evidence.oracle_isolated, exact):
            continue
        port = {tap: results.isolated[tap] for tap in taps}
        bound = bound_for(evidence.precision_alone(call), evidence.reference.longest_sums[call.path])
        run = functools.partial(evidence.replays.call, call, evidence.reference.call_inputs)
        explained = _explained(run, port, lambda tap, bound=bound: bound)
        if explained is not None:
            again[call.tap] = explained
    return _with_calls(evidence, evidence.oracle_isolated, again)


def _with_calls(
    evidence: Evidence, natural: Mapping[str, torch.Tensor], again: Mapping[str, _Explained]
) -> Evidence:
    """The evidence with calls of modules run again alone; `natural` as in `_with_whole`."""
    if not again:
        return evidence
    oracle = dict(evidence.oracle_isolated)
    reference = dict(evidence.reference_isolated or evidence.reference.tensors)
    ties = dict(evidence.ties_isolated)
    for replay in (explained.replay for explained in again.values()):
        ties |= _ties(natural, replay.oracle)
        oracle |= replay.oracle
        reference |= replay.reference
    return replace(
        evidence,
        oracle_isolated=oracle,
        reference_isolated=reference,
        choices_isolated={
            **evidence.choices_isolated,
            **{tap: explained.choices for tap, explained in again.items()},
        },
        ties_isolated=ties,
    )


@dataclass(frozen=True)
class _Explained:
    """Oracle and reference under the port's choices that rounding explains.

    Attributes:
        replay: Their results.
        taken: These choices.
        shown: All choices that the port's results show.
        bound: The bound of a choice, by its number.
    """

    replay: Replay
    taken: Prescribed
    shown: Prescribed
    bound: Callable[[int], Bound]

    @property
    def choices(self) -> PortChoices:
        """The choices for other programs."""
        known = {}
        for number in self.shown:
            choice = self.replay.choices.choices[number]
            known[number] = choice.sizes[0], limits(choice, self.bound(number))[0]
        return PortChoices(self.taken, self.shown, known)


def _explained(
    run: Callable[[Prescribed, bool], Replay], port: Mapping[str, torch.Tensor], bound: Callable[[str], Bound]
) -> _Explained | None:
    """A replay under the port's choices, without those that rounding does not explain.

    It is None for a model without choices, and for one whose choices differ from run to run.
    """
    for _ in range(ATTEMPTS):
        with contextlib.suppress(DifferentChoices):
            return _repeated(run, port, bound)
    return None


def _repeated(
    run: Callable[[Prescribed, bool], Replay], port: Mapping[str, torch.Tensor], bound: Callable[[str], Bound]
) -> _Explained | None:
    """The result of `_explained`. Raises `DifferentChoices` for a run with other choices than the first."""
    replay = run({}, False)
    choices = [choice for choice in replay.choices.choices if choice is not None]
    if not choices:
        return None
    found = _proposed(run, replay, port, bound)
    exact = {tap: tensor for tap, tensor in port.items() if not tensor.dtype.is_floating_point}
    # The reference's rounded numbers may explain what those around the oracle's do not.
    if any(choice.operation in ROUNDING for choice in choices) and _differ(exact, found.replay.oracle, exact):
        return _proposed(run, run({}, True), port, bound)
    return found


def _proposed(
    run: Callable[[Prescribed, bool], Replay],
    replay: Replay,
    port: Mapping[str, torch.Tensor],
    bound: Callable[[str], Bound],
) -> _Explained:
    """A replay under the choices that the port's results show in `replay`, the run under the oracle's own."""
    shown, taps = propose(replay.choices, replay.oracle, port)

    def of_choice(number: int) -> Bound:
        return bound(taps[number])

    return _Explained(*_settled(run, dict(shown), of_choice), shown, of_choice)


def _settled(
    run: Callable[[Prescribed, bool], Replay], prescribed: Prescribed, bound: Callable[[int], Bound]
) -> tuple[Replay, Prescribed]:
    """A replay under prescribed choices, without those that rounding does not explain."""
    for _ in range(ROUNDS):
        replay = run(prescribed, True)
        refused, choices = False, replay.choices.choices
        for number, (values, mask) in prescribed.items():
            choice = choices[number] if number < len(choices) else None
            if choice is None:
                raise DifferentChoices(f"choice {number} is none any more")
            right = admissible(choice, values.to(choice.value.dtype), bound(number)) | ~mask
            if not right.all():
                prescribed[number] = values, mask & right
                refused = True
        if not refused:
            return replay, prescribed
    return run(prescribed, True), prescribed


def _searched(
    run: Callable[[Prescribed, bool], Replay],
    port: Mapping[str, torch.Tensor],
    bound: Callable[[str], Bound],
    hidden: Bound,
    rows: int,
    known: Mapping[str, torch.Tensor],
) -> _Explained | None:
    """A replay under choices that bring the oracle nearer to the port than `known`, its results so far.

    It is None where there are none.
    """
    explained = _explained(run, port, bound)
    if explained is None:
        return None
    replay, prescribed = explained.replay, explained.taken
    try:
        for _ in range(SEARCHES):
            before = prescribed
            prescribed = search(
                lambda choices: run(choices, False).oracle, replay, prescribed, port, hidden, rows
            )
            if prescribed is before:
                break
            replay, prescribed = _settled(run, prescribed, lambda number: hidden)
    except DifferentChoices:
        return None
    if prescribed is not explained.taken:
        return _Explained(replay, prescribed, _joined(explained.shown, prescribed), lambda number: hidden)
    # Floating-point numbers of the port may show choices too.
    shows = any(mask.any() for _, mask in explained.taken.values())
    both = port.keys() & replay.oracle.keys() & known.keys()
    return (
        explained if shows and any(not torch.equal(replay.oracle[tap], known[tap]) for tap in both) else None
    )


def _joined(shown: Prescribed, found: Prescribed) -> Prescribed:
    """The choices that results show, and elsewhere those that a search finds, which begins with them all."""
    joined = dict(found)
    for number, (values, mask) in shown.items():
        other, is_found = found[number]
        joined[number] = torch.where(mask, values, other), mask | is_found
    return joined


def _ties(natural: Mapping[str, torch.Tensor], chosen: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """By tap, the number of integers and booleans that are the port's in place of the oracle's."""
    return {
        tap: int((tensor != natural[tap]).sum())
        for tap, tensor in chosen.items()
        if tap in natural and not tensor.dtype.is_floating_point and natural[tap].shape == tensor.shape
    }
