"""The captures behind the verdicts on one batch in one precision."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from parity.base.precision import PRECISIONS, Precision
from parity.capture.captures import Capture, ModuleCall
from parity.capture.names import TapName
from parity.capture.store import Stored
from parity.case.pairing import UNKNOWN
from parity.inputs.masks import valid_elements
from parity.runners.oracle.replays import Replays
from parity.runners.oracle.rerun import Rerun
from parity.verdict.bound import Bound
from parity.verdict.port_choices import PortChoices
from parity.verdict.sampling_error import RoundingSamples


@dataclass
class Evidence:
    """The basis of the verdicts on one batch in one precision, the same for every runner.

    Attributes:
        precision: The tested precision.
        entry: Name of the entry point; its outputs are the taps `entry.*`.
        reference: Tapped run of the reference, with its calls.
        oracle: Taps of the oracle, accumulated.
        oracle_isolated: Taps of the oracle, each module alone on the reference's inputs; empty if no module
            is judged alone.
        reference_incremental: Incremental outputs of the reference; empty without an incremental forward.
        incremental_outputs: Tap of the full forward that each incremental output must equal.
        valid: For each size of a padded axis, the (B, size) mask of valid positions.
        whole_outputs: Taps of outputs whose padding counts, too.
        batch_size: B.
        has_padding: Whether the batch has padding to poison.
        boundary: Elements within round-off of a discontinuity, by tap.
        gaps: Classes of the reference that the port cannot have, with the reason.
        absence: The reason why only one side has a module, from path and class; empty if that fails.
        squeeze: Whether leading axes of 1 do not count.
        tolerated: The largest relative error that the case allows, from tap and path; 0 for none.
        port_path: The path in the port of a module at a path in the reference.
        causal: Whether no row of a sequence depends on a later one.
        oracle_received: Tapped run of the oracle, for the arguments of its calls.
        rerun: Runs the oracle again: one call alone, or up to one tensor; None where no cause is searched, or
            where the weights are not at hand.
        replays: Runs the oracle and the reference under other choices; None where they cannot run again.
        reference_isolated: Results of the reference's calls alone, where its tapped run has others.
        inputs_isolated: Likewise, the inputs of its calls alone.
        choices: The port's choices inside the model; None where it is judged under the oracle's own ones.
        choices_isolated: The port's choices in calls alone, by the call's tap.
        ties, ties_isolated: Numbers of integers and booleans that are the port's in place of the oracle's,
            because rounding explains them, by tap.
        among_programs: Whether results inside the model are judged among those of other right programs.
        threads: Large taps that are judged side by side.
        appending: Calls of the reference's incremental forward, for the arguments that they receive; empty
            unless outputs of the incremental forward fail.
        poisoned: The reference's run with garbage in the padding; empty without one.
    """

    precision: Precision
    entry: str
    reference: Capture
    oracle: Mapping[str, torch.Tensor]
    oracle_isolated: Mapping[str, torch.Tensor]
    reference_incremental: Mapping[str, torch.Tensor]
    incremental_outputs: Mapping[str, str]
    valid: Mapping[int, np.ndarray]
    batch_size: int
    has_padding: bool = True
    boundary: Mapping[str, np.ndarray] = field(default_factory=dict)
    gaps: Mapping[str, str] = field(default_factory=dict)
    absence: Callable[[str, str], str] = lambda path, kind: ""
    whole_outputs: Collection[str] = ()
    squeeze: bool = False
    tolerated: Callable[[str, str], float] = lambda tap, path: 0.0
    port_path: Callable[[str], str] = lambda path: path
    causal: bool = True
    oracle_received: Capture = field(default_factory=Capture)
    rerun: Rerun | None = None
    replays: Replays | None = None
    reference_isolated: Mapping[str, torch.Tensor] = field(default_factory=dict)
    inputs_isolated: Mapping[str, torch.Tensor] = field(default_factory=dict)
    choices: PortChoices | None = None
    choices_isolated: Mapping[str, PortChoices] = field(default_factory=dict)
    ties: Mapping[str, int] = field(default_factory=dict)
    ties_isolated: Mapping[str, int] = field(default_factory=dict)
    among_programs: bool = False
    threads: int = 1
    appending: Capture = field(default_factory=Capture)
    poisoned: Callable[[], Capture] = Capture

    def __post_init__(self) -> None:
        self.kinds = {name: call for call in self.reference.calls for name in call.outputs}
        self.model_longest_sum = max(self.reference.longest_sums.values(), default=1)
        self._modules_before: dict[str, int] = {}
        count = 0
        for call in self.reference.calls:
            count += not call.appends and self.reference.longest_sums[call.path] > 0
            self._modules_before |= dict.fromkeys(call.outputs, count)
        self._modules = count
        self._programs: dict[str, Mapping[str, torch.Tensor]] = {}
        self._rounding_samples = {
            (isolated, str(name.of_tap())): RoundingSamples(tensors[str(name)])
            for isolated, tensors in ((False, self.oracle), (True, self.oracle_isolated))
            for name in map(TapName.parse, tensors)
            if name.samples
        }

    def programs(self, tap: str, isolated: bool) -> RoundingSamples | None:
        """Results of other right programs at a tap; None where the oracle cannot run again.

        See `parity.runners.oracle.programs`.
        """
        call = self.kinds.get(tap)
        if self.replays is None or (isolated and call is None):
            return None
        if not isolated:
            results = self.replays.whole_programs()
        elif call.tap in self._programs:
            results = self._programs[call.tap]
        else:
            results = self.replays.programs(call, self.call_inputs)
            self._programs[call.tap] = results
        return RoundingSamples(results[tap]) if tap in results else None

    @property
    def call_inputs(self) -> Mapping[str, torch.Tensor]:
        """The inputs of calls alone, by key."""
        return self.inputs_isolated or self.reference.call_inputs

    @functools.cached_property
    def exact_taps(self) -> frozenset[str]:
        """The taps of integers and booleans. Saved tensors are not read: captures may be large."""
        tensors = self.reference.tensors
        return frozenset(tap for tap in tensors if not is_floating_point(tensors, tap))

    def allows_one_side(self, path: str) -> bool:
        """Whether one side alone may have the module at a path, or some of its calls."""
        kind = next((call.kind for call in self.reference.calls if call.path == path), UNKNOWN)
        return bool(self.absence(path, kind))

    def rounding_samples(self, tap: str, isolated: bool) -> RoundingSamples | None:
        """Results of the oracle under random roundings at a tap; None for a tap of many rows."""
        return self._rounding_samples.get((isolated, tap))

    def longest_sum(self, tap: str, isolated: bool) -> int:
        """Terms of the longest sum of the tap's module if isolated, else of all modules up to the tap."""
        call = self.kinds.get(tap)
        if call is None:
            return self.model_longest_sum
        reference = self.reference
        return reference.longest_sums[call.path] if isolated else reference.longest_sums_before[tap]

    def precision_alone(self, call: ModuleCall) -> Precision:
        """The precision whose round-off the results of a module alone have.

        A reference may compute a whole module in float32, in a run of a half type. On inputs that are equal
        on all sides, nothing in it has the half type's round-off.
        """
        coarsest = self.reference.coarsest_types.get(call.path)
        is_wide = coarsest in (torch.float32, torch.float64)
        return PRECISIONS["fp32"] if self.precision.is_half and is_wide else self.precision

    def modules(self, tap: str, isolated: bool) -> int:
        """Number of modules with arithmetic that a tap's error comes from; 1 if isolated."""
        return 1 if isolated else max(1, self._modules_before.get(tap, self._modules))

    def truth_inside(self, tap: str, bound: Bound) -> torch.Tensor | None:
        """The oracle's result inside the model; None if it has none.

        A reference that only moves its inputs is right: their rounding alone parts it from the oracle.
        """
        oracle = self.oracle.get(tap)
        only_moves = not bound.longest_sum and oracle is not None and oracle.dtype.is_floating_point
        return self.reference.tensors.get(tap, oracle) if only_moves else oracle

    def mask(self, shape: tuple[int, ...], tap: str = "") -> np.ndarray | None:
        """Mask of a tap's elements that count: an axis as long as the sequence is masked by the lengths."""
        if tap in self.whole_outputs:
            return None
        return valid_elements(shape, self.valid, self.batch_size)

    def counted(self, tap: str, shape: tuple[int, ...]) -> np.ndarray:
        """Mask of the compared elements of a tap: neither padding nor at a discontinuity."""
        mask, boundary = self.mask(shape, tap), self.boundary.get(tap)
        valid = np.ones(shape, dtype=bool) if mask is None else np.broadcast_to(mask, shape).copy()
        return valid if boundary is None else valid & ~boundary


def shape_of(tensors: Mapping[str, torch.Tensor], name: str) -> tuple[int, ...]:
    """The shape of a tensor, which a saved capture tells without reading it."""
    known = getattr(tensors, "shapes", None)
    return tuple(tensors[name].shape if known is None else known[name])


def is_floating_point(tensors: Mapping[str, torch.Tensor], name: str) -> bool:
    """Whether a tensor has floating-point numbers, which a saved capture tells without reading it."""
    if isinstance(tensors, Stored):
        return tensors.is_floating_point(name)
    return tensors[name].dtype.is_floating_point


@dataclass
class Results:
    """The captures of the judged runner for one batch in one precision.

    Attributes:
        untapped: Outputs of the run without taps, the run that is timed.
        tapped: Taps of the run inside the model.
        isolated: Taps of each module alone on the reference's inputs.
        isolated_problems: Exceptions of modules that ran alone, by tap.
        poisoned: Taps of the run with garbage in the padding.
        incremental: Outputs of the incremental forward.
        taps_modules: Whether the runner has taps.
        appends: Whether the runner has an incremental forward.
        appends_alone: Whether modules that append run alone, too. A form may not tell their arguments.
        fused: Classes of the reference that the runner computes inside another module, with the reason.
        received: The tapped run, for the arguments of its calls; without arguments, none are compared.
        received_poisoned: Likewise, of the run with garbage in the padding.
        regrouped: Shapes of the reference by tap, of results whose axes the port merges or splits.
        other_axes: Likewise, of results whose axes the port has in another order.
        scaled: Factors of the port's results that the module around the call undoes, by tap.
        in_forms: Words for the form of the tensors that a call receives and returns, where values tell it.
        reordered: Calls that the port makes in another order, by the reference's name.
        other_sizes: Words for the arguments of other sizes of modules that are judged alone, by path.
        numbered: The port's own names of outputs by the reference's, where a number stands for a field.
        appending: Likewise as `received`, of the incremental forward.
    """

    untapped: Mapping[str, torch.Tensor]
    tapped: Mapping[str, torch.Tensor] = field(default_factory=dict)
    isolated: Mapping[str, torch.Tensor] = field(default_factory=dict)
    isolated_problems: Mapping[str, str] = field(default_factory=dict)
    poisoned: Mapping[str, torch.Tensor] = field(default_factory=dict)
    incremental: Mapping[str, torch.Tensor] = field(default_factory=dict)
    taps_modules: bool = True
    appends: bool = True
    appends_alone: bool = True
    fused: Mapping[str, str] = field(default_factory=dict)
    received: Capture = field(default_factory=Capture)
    received_poisoned: Capture = field(default_factory=Capture)
    regrouped: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    other_axes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    scaled: Mapping[str, float] = field(default_factory=dict)
    in_forms: Mapping[str, str] = field(default_factory=dict)
    reordered: frozenset[str] = frozenset()
    other_sizes: Mapping[str, str] = field(default_factory=dict)
    numbered: Mapping[str, str] = field(default_factory=dict)
    appending: Capture = field(default_factory=Capture)

    @property
    def has_appends(self) -> bool:
        """Whether there are outputs of appends to judge: a form of a case with a cache may have none."""
        return self.appends and (self.appends_alone or bool(self.incremental))
