"""Taps that one side alone has, in words: calls that it makes, outputs that it returns."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import torch

from parity.capture.captures import ModuleCall
from parity.capture.names import TapName
from parity.verdict.evidence import Evidence, Results

REMEDY = "call it in the port's forward, or name it in functional if a function computes it"


def missing(evidence: Evidence, results: Results, tap: str) -> str:
    """The reason why the port has no result at one of the reference's taps."""
    name = TapName.parse(tap)
    if name.is_output_of(evidence.entry):
        return f"missing: the port's {evidence.entry} returns no such output"
    theirs, ours = _calls(evidence.reference.tensors), _calls(results.tapped)
    if not ours.get(name.path):
        oftener = [path for path in theirs if ours.get(path, 0) > theirs[path]]
        others = f"; {_counts(oftener[0], ours, theirs)}" if oftener else ""
        return f"missing: the port never calls {name.path}{others}; {REMEDY}"
    if ours[name.path] < theirs[name.path]:
        return f"missing: {_counts(name.path, ours, theirs)}"
    return f"missing: the port's {name.path} returns no such output"


def extra(evidence: Evidence, results: Results, tap: str) -> str:
    """The reason why the reference has no result at one of the port's taps."""
    name = TapName.parse(tap)
    if name.is_output_of(evidence.entry) or not results.taps_modules:
        return f"extra: the reference's {evidence.entry} returns no such output"
    theirs, ours = _calls(evidence.reference.tensors), _calls(results.tapped)
    if not theirs.get(name.path):
        return f"extra: the reference never calls {name.path}"
    if ours.get(name.path, 0) > theirs[name.path]:
        return f"extra: {_counts(name.path, ours, theirs)}"
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
