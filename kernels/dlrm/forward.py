"""DLRM's forward in a few kernels and one CUDA graph; the reference is `reference.dlrm`.

The dense layers run in half precision; the tables are read in their stored precision:

* One kernel, `bags_interaction`, computes all bags, the interaction and the concatenation. It writes no
  pooled vector to memory.
* One kernel computes a linear layer with its bias and activation, or two layers if the second is narrow.
* The interaction's odd number of columns (479 at MLPerf's sizes) is padded to a multiple of 16 with zero
  weights. Rows without 16-byte alignment are read element by element.

Weights come under the reference's state-dict keys: `emb_l.N.weight`, `bot_l.N.*`, `top_l.N.*`.

Legend: B batch, T tables, C dense features, D embedding, L number of indices of all tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from kernels.dlrm.bags import bags_interaction
from kernels.dlrm.checks import KernelError
from kernels.dlrm.interaction import interaction_columns
from kernels.dlrm.mlp import linear_activation, two_layer_mlp
from kernels.dlrm.tables import Bags, TableGroup

# Rows of the interaction are padded to this many columns: 32 bytes in half precision.
_COLUMN_MULTIPLE = 16
# Two layers in one kernel beat two kernels with few outputs, and with up to 256 outputs of a large batch.
# Such a batch has a program of 64 rows for each multiprocessor (benchmarks/results/dlrm_kernels.md).
_FUSED_WIDTH = 512
_FEW_OUTPUTS = 16
_MANY_OUTPUTS = 256
_LARGE_BATCH = 64 * 128


@dataclass(frozen=True)
class Layer:
    """A linear layer, (out, in) and (out,), and its activation."""

    weight: torch.Tensor
    bias: torch.Tensor
    activation: str


class FusedDLRM:
    """Inference of a DLRM with plain tables, sum pooling and the "dot" interaction.

    Args:
        state_dict: state dict of `reference.dlrm.DLRM_Net` on one device. Tables are not copied.
        sigmoid_bot: number of the bottom MLP's layer before a sigmoid, as in `DLRM_Net`; -1 for none.
        sigmoid_top: the same for the top MLP.
        itself: `DLRM_Net`'s ``arch_interaction_itself``.
        dtype: dtype of the dense layers and of the vectors that interact.
        backend: "triton", or "torch" for the same steps in plain PyTorch.
        bags_backend: backend of `bags_interaction`; ``backend`` by default.

    Raises:
        KernelError: a key is missing, or belongs to another kind of model; the message names it.
    """

    def __init__(
        self,
        state_dict: Mapping[str, torch.Tensor],
        sigmoid_bot: int = -1,
        sigmoid_top: int = -1,
        itself: bool = False,
        dtype: torch.dtype = torch.bfloat16,
        backend: str = "triton",
        bags_backend: str | None = None,
    ) -> None:
        tables = _numbered(state_dict, "emb_l.", ".weight")
        self.bottom = _layers(state_dict, "bot_l.", sigmoid_bot, dtype)
        self.top = _layers(state_dict, "top_l.", sigmoid_top, dtype)
        known = len(tables) + 2 * (len(self.bottom) + len(self.top))
        if known != len(state_dict):
            raise KernelError(
                f"state_dict has {len(state_dict)} tensors, but plain tables and these layers have {known}: "
                "give one without quotient-remainder or mixed-dimension tables and learned pooling weights"
            )
        self.group = TableGroup(tables)
        self.itself = itself
        self.backend = backend
        self.bags_backend = bags_backend or backend
        width = interaction_columns(len(tables) + 1, self.group.columns, itself)
        columns = self.top[0].weight.shape[1]
        if columns != width:
            raise KernelError(
                f"top_l.0.weight has {columns} columns: the interaction of these tables has {width}"
            )
        self.width = width
        self.padded_width = -(-width // _COLUMN_MULTIPLE) * _COLUMN_MULTIPLE
        first = self.top[0]
        padded = torch.nn.functional.pad(first.weight, (0, self.padded_width - width))
        self.top[0] = Layer(padded, first.bias, first.activation)

    def __call__(self, dense_BC: torch.Tensor, bags: Bags, validate: bool = True) -> torch.Tensor:
        """Click probabilities, (B, 1) for the usual top MLP.

        Args:
            dense_BC: dense features, in the dense layers' dtype.
            bags: of T tables and B rows.
            validate: see `kernels.dlrm.embedding_bags`.

        Raises:
            KernelError: an argument does not fit the model, or the backend cannot run.
        """
        # Zeros in the padding: a NaN in uninitialised memory times a zero weight is NaN.
        rows = dense_BC.new_zeros(dense_BC.shape[0], self.padded_width)
        return self._forward(dense_BC, bags, rows, validate)

    def _forward(
        self, dense_BC: torch.Tensor, bags: Bags, rows: torch.Tensor, validate: bool
    ) -> torch.Tensor:
        """The forward, with the interaction written to zeroed ``rows`` (B, padded width)."""
        self.interact(dense_BC, bags, rows[:, : self.width], validate)
        return run_mlp(rows, self.top, self.backend)

    def interact(self, dense_BC: torch.Tensor, bags: Bags, out: torch.Tensor, validate: bool) -> None:
        """Write the interaction of the bottom MLP's result and the bags to ``out``."""
        dense_BD = run_mlp(dense_BC, self.bottom, self.backend)
        bags_interaction(
            dense_BD, self.group, bags, self.itself, backend=self.bags_backend, validate=validate, out=out
        )

    def capture(self, dense_BC: torch.Tensor, bags: Bags) -> CapturedDLRM:
        """The forward as a CUDA graph, for inputs of these shapes; see `CapturedDLRM`."""
        return CapturedDLRM(self, dense_BC, bags)


class CapturedDLRM:
    """`FusedDLRM` as one CUDA graph: a replay is one launch.

    A graph has a batch size and a capacity of indices: bags may hold fewer, not more.

    Attributes:
        dense_BC: dense features that `replay` reads.
        bags: bags that `replay` reads; the last offset is the end of the last bag.
        click_BO: result that `replay` writes.

    Args:
        model: the forward to capture.
        dense_BC: dense features for the first run, which is checked.
        bags: bags for the first run; their number of indices is the capacity.
    """

    def __init__(self, model: FusedDLRM, dense_BC: torch.Tensor, bags: Bags) -> None:
        if not dense_BC.is_cuda:
            raise KernelError(f"dense_BC is on {dense_BC.device}: a CUDA graph needs a CUDA device")
        self.dense_BC = dense_BC.clone()
        weights_L = None if bags.weights_L is None else bags.weights_L.clone()
        self.bags = Bags(bags.indices_L.clone(), bags.offsets.clone(), weights_L)
        self._model = model
        self._rows = dense_BC.new_zeros(dense_BC.shape[0], model.padded_width)
        # Kernels are compiled before the capture, on a stream that the capture's may follow.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            model(self.dense_BC, self.bags)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self.click_BO = model._forward(self.dense_BC, self.bags, self._rows, validate=False)

    def replay(self) -> torch.Tensor:
        """The forward of the current `dense_BC` and `bags`; the next replay overwrites the result."""
        self._graph.replay()
        return self.click_BO

    def __call__(self, dense_BC: torch.Tensor, bags: Bags) -> torch.Tensor:
        """Copy the inputs in, replay, and return the graph's own output. Values are not checked.

        Raises:
            KernelError: a shape differs from the capture's, or the indices exceed its capacity.
        """
        capacity = self.bags.indices_L.numel()
        if bags.indices_L.numel() > capacity or bags.offsets.shape != self.bags.offsets.shape:
            raise KernelError(
                f"bags have {bags.indices_L.numel()} indices and {bags.offsets.numel()} offsets: the graph "
                f"takes up to {capacity} and {self.bags.offsets.numel()}"
            )
        if dense_BC.shape != self.dense_BC.shape or (bags.weights_L is None) != (self.bags.weights_L is None):
            raise KernelError("dense_BC's shape, and whether bags have weights, must be those of the capture")
        self.dense_BC.copy_(dense_BC, non_blocking=True)
        self.bags.indices_L[: bags.indices_L.numel()].copy_(bags.indices_L, non_blocking=True)
        self.bags.offsets.copy_(bags.offsets, non_blocking=True)
        if bags.weights_L is not None:
            self.bags.weights_L[: bags.weights_L.numel()].copy_(bags.weights_L, non_blocking=True)
        return self.replay()


def run_mlp(x_BC: torch.Tensor, layers: list[Layer], backend: str) -> torch.Tensor:
    """All layers one after the other, two in one kernel where that is faster."""
    at = 0
    while at < len(layers):
        first, second = layers[at], layers[at + 1] if at + 1 < len(layers) else None
        fused = second is not None and _is_faster_fused(x_BC.shape[0], first, second)
        at += 2 if fused else 1
        weights = (x_BC, first.weight, first.bias)
        if fused:
            activations = (first.activation, second.activation)
            x_BC = two_layer_mlp(*weights, second.weight, second.bias, activations, backend=backend)
        else:
            x_BC = linear_activation(*weights, first.activation, backend=backend)
    return x_BC


def _is_faster_fused(batch: int, first: Layer, second: Layer) -> bool:
    hidden, columns = first.weight.shape
    outputs = second.weight.shape[0]
    if max(hidden, columns) > _FUSED_WIDTH:
        return False
    return outputs <= _FEW_OUTPUTS or (outputs <= _MANY_OUTPUTS and batch >= _LARGE_BATCH)


def _numbered(state_dict: Mapping[str, torch.Tensor], before: str, after: str) -> list[torch.Tensor]:
    """The tensors ``before`` 0 ``after``, ``before`` 1 ``after``..., up to the first missing number."""
    tensors: list[torch.Tensor] = []
    while (key := f"{before}{len(tensors)}{after}") in state_dict:
        tensors.append(state_dict[key])
    if not tensors:
        raise KernelError(f"state_dict has no {before}0{after}: give the state dict of a DLRM_Net")
    return tensors


def _layers(
    state_dict: Mapping[str, torch.Tensor], prefix: str, sigmoid_layer: int, dtype: torch.dtype
) -> list[Layer]:
    """The layers of an MLP; the reference's sequence alternates layers and activations."""
    layers = []
    while (key := f"{prefix}{2 * len(layers)}") + ".weight" in state_dict:
        if f"{key}.bias" not in state_dict:
            raise KernelError(f"state_dict has {key}.weight and no {key}.bias")
        activation = "sigmoid" if len(layers) == sigmoid_layer else "relu"
        weight, bias = (state_dict[f"{key}.{name}"].detach().to(dtype) for name in ("weight", "bias"))
        layers.append(Layer(weight.contiguous(), bias, activation))
    if not layers:
        raise KernelError(f"state_dict has no {prefix}0.weight: give the state dict of a DLRM_Net")
    return layers
