"""Expected seconds of a whole forward: eager, where the host launches each kernel, and as a graph replay.

The eager estimate advances two clocks, as the notebook of `perf_model.embedding` does. The host's clock
advances by the cost of each call. The GPU starts a kernel at its launch or at the end of the preceding
kernel, if that is later.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from perf_model.kernels import BAGS, KernelModel
from perf_model.trace import Operation, Trace

_HOST_KINDS = {
    **dict.fromkeys(BAGS, "embedding_bag"),
    **dict.fromkeys(("native_layer_norm",), "norm"),
    **dict.fromkeys(("linalg_vector_norm", "sum", "mean", "_softmax"), "reduce"),
    **dict.fromkeys(("addmm", "baddbmm"), "addmm"),
    **dict.fromkeys(("mm", "bmm", "embedding", "index", "index_select", "masked_fill", "cat", "clone"), ""),
    **dict.fromkeys(("ge", "gt", "lt", "le", "ne", "eq"), "compare"),
    "gather": "index_select",
    "stack": "cat",
    "_to_copy": "cast",
    "arange": "fill",
}
_WITH_A_NUMBER = frozenset({"add", "sub", "mul", "div", "rsub", "remainder"})


@dataclass(frozen=True)
class Estimate:
    """Seconds of one forward.

    Attributes:
        kernels: GPU time of all kernels with the gaps of a graph.
        replay: time of a graph of the kernels.
        host: host time of eager launches.
        eager: time until host and GPU are done.
        bound: bottleneck of the eager forward, "launches" or "kernels".
    """

    kernels: float
    replay: float
    host: float
    eager: float
    bound: str


def host_kind(operation: Operation) -> str:
    """The kind of host overhead of an operation, a key of `Ceilings.host_seconds`."""
    if operation.name in _HOST_KINDS:
        return _HOST_KINDS[operation.name] or operation.name
    if sum(array.elements > 1 for array in operation.inputs) > 1:
        return "binary"
    return "scalar" if operation.name in _WITH_A_NUMBER else "unary"


def estimate(trace: Trace, precision: str, model: KernelModel, factor: float = 1.0) -> Estimate:
    """Estimate a forward from its operations.

    Args:
        trace: operations of the forward.
        precision: precision of its products.
        model: seconds of each kernel.
        factor: ratio of host time of a call in a model and in a loop; see `host_factor`.
    """
    overheads = model.ceilings.host_seconds
    # Views and module calls launch nothing: their cost is spread over the operations.
    beside = trace.views * overheads["view"] + trace.modules * overheads["module"]
    beside /= max(1, len(trace.operations))
    host = gpu = kernels = 0.0
    for operation in trace.operations:
        seconds = model.seconds(operation, precision)
        host += factor * (beside + overheads[host_kind(operation)])
        gpu = max(gpu, host) + seconds
        kernels += seconds
    replay = max(kernels, model.ceilings.graph_seconds)
    eager = max(gpu, host) + overheads["wait"]
    return Estimate(kernels, replay, host, eager, "kernels" if kernels > host else "launches")


def host_factor(launch_bound: Iterable[tuple[Estimate, float]]) -> float:
    """Ratio of the host time of calls in models and in loops: the median over models.

    Args:
        launch_bound: estimates with factor 1, and measured eager seconds, of models bound by launches.

    Raises:
        ValueError: there is no model.
    """
    ratios = [measured / estimated.host for estimated, measured in launch_bound]
    if not ratios:
        raise ValueError("no launch-bound model: give at least one, such as a batch of 1")
    return statistics.median(ratios)
