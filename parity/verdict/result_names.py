"""Results of modules that the sides nest otherwise: a dictionary in place of a tuple, one tensor of several.

A tap has the place of its tensor in the module's result, so that such results have other names. They pair by
their order and their shapes.

Outputs of the entry keep their names. Only the numbers of a plain tuple stand for the names of fields.
"""

from __future__ import annotations

import itertools
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from parity.capture.names import TapName
from parity.capture.outputs import has_no_type
from parity.verdict.axes import aligned, has_other_ones, is_regrouped
from parity.verdict.call_order import Renamed, renamed
from parity.verdict.elements import is_integer
from parity.verdict.evidence import Evidence, Results, shape_of

Shape = tuple[int, ...]
MOST_RESULTS = 8
"""Largest number of a call's results of which one side has some alone. A search looks at all choices."""


def comparable(evidence: Evidence, results: Results) -> Results:
    """The results under the reference's names and in its shapes, as comparisons need them."""
    return aligned(evidence, _without_types(evidence, with_reference_names(evidence, results)))


def _without_types(evidence: Evidence, results: Results) -> Results:
    """The results with the reference's type of integers where it returns a number, which has none."""
    if not (forms := evidence.reference.forms):
        return results
    own = evidence.reference.tensors

    def like_reference(tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        numbers = [tap for tap in tensors if has_no_type(forms.get(tap, "")) and is_integer(own[tap])]
        changed = {tap: tensors[tap].to(own[tap].dtype) for tap in numbers if is_integer(tensors[tap])}
        return ChainMap(changed, tensors) if changed else tensors  # type: ignore[arg-type]

    return replace(results, untapped=like_reference(results.untapped), tapped=like_reference(results.tapped))


def with_reference_names(evidence: Evidence, results: Results) -> Results:
    """The results under the reference's names, where a call has as many or other ones in the same order.

    A side may return more results than the other one. Then only one choice of them may have the shapes of the
    other side's.
    """
    results = _with_output_names(evidence, results)
    names = names_in_reference(evidence, results.isolated, results.tapped)
    if not names:
        return results

    def rename(tap: str) -> str:
        return names.get(tap, tap)

    # A call has the name of its only result, and keeps it.
    results = renamed(results, rename, lambda call: call)
    return replace(results, isolated=Renamed(results.isolated, rename))


def names_in_reference(evidence: Evidence, *parts: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """The reference's names of results of the port's modules, by their own; without those that have them."""
    ours: dict[str, dict[str, Shape]] = {}
    for part in parts:
        for tap in part:
            name = TapName.parse(tap)
            if not name.is_output_of(evidence.entry):
                ours.setdefault(str(name.module_call), {})[tap] = shape_of(part, tap)
    names: dict[str, str] = {}
    for call in evidence.reference.calls:
        theirs = {tap: shape_of(evidence.reference.tensors, tap) for tap in call.outputs}
        names |= _pairs(ours.get(call.tap, {}), theirs)
    return names


def _with_output_names(evidence: Evidence, results: Results) -> Results:
    """The results with the reference's names of the entry's outputs, where one side has numbers for names."""
    theirs, ours = (
        [tap for tap in tensors if TapName.parse(tap).is_output_of(evidence.entry)]
        for tensors in (evidence.reference.tensors, results.untapped)
    )
    is_pair = len(theirs) == len(ours) and all(map(_is_numbered, theirs, ours))
    names = {own: name for own, name in zip(ours, theirs, strict=True) if own != name} if is_pair else {}
    if not names:
        return results

    def rename(tap: str) -> str:
        return names.get(tap, tap)

    results = renamed(results, rename, lambda call: call)
    return replace(
        results,
        untapped=Renamed(results.untapped, rename),
        isolated=Renamed(results.isolated, rename),
        incremental=Renamed(results.incremental, rename),
        numbered={name: own for own, name in names.items()},
    )


def _is_numbered(name: str, other: str) -> bool:
    """Whether two names of outputs are equal but for numbers that stand for fields."""
    steps = [text.split(".") for text in (name, other)]
    return len(steps[0]) == len(steps[1]) and all(
        one == two or one.isdecimal() != two.isdecimal() for one, two in zip(*steps, strict=True)
    )


def _pairs(ours: Mapping[str, Shape], theirs: Mapping[str, Shape]) -> dict[str, str]:
    """The reference's names of the port's results of one call, by their own; empty if they have them."""
    if ours.keys() <= theirs.keys() or theirs.keys() <= ours.keys():
        return {}
    few, many = (ours, theirs) if len(ours) <= len(theirs) else (theirs, ours)
    if len(few) < len(many) > MOST_RESULTS:
        return {}
    chosen = list(itertools.islice(_choices(list(few.values()), list(many.values())), 2))
    if len(chosen) != 1:
        return {}
    pairs = zip(few, (list(many)[place] for place in chosen[0]), strict=True)
    names = dict(pairs) if few is ours else {own: their for their, own in pairs}
    # A result of the port alone keeps its name, which no other one may take.
    return {} if (ours.keys() - names.keys()) & set(names.values()) else names


def _choices(few: Sequence[Shape], many: Sequence[Shape]) -> Iterator[tuple[int, ...]]:
    """The places of the many, in order, that have the shapes of the few."""
    for places in itertools.combinations(range(len(many)), len(few)):
        if all(_is_alike(shape, many[place]) for shape, place in zip(few, places, strict=True)):
            yield places


def _is_alike(shape: Shape, other: Shape) -> bool:
    """Whether a comparison of the shapes is possible."""
    return shape == other or has_other_ones(shape, other) or is_regrouped(shape, other)
