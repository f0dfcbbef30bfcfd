"""A case's reference run once, with the calls of its modules: what counts of FLOPs and bytes are held to."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from cases.shipped import from_config
from configs import CaseConfig
from parity.base.trees import map_tree
from parity.capture.captures import Capture, ModuleCall, TensorKey
from parity.capture.torch_hooks import tapped
from parity.inputs.arrays import make_inputs

# What enters a module and is not needed by it, or leaves it as it entered: names of the parameters, by class.
UNNEEDED = {
    "AttentionMask": {"like"},
    "STUAttentionMask": {"like"},
    "ActionEncoder": {"targets"},
    "ContextualPreprocessor": {"targets"},
    "RankingTransducer": {"targets"},
    "LogCounts": {"like"},
    "RelativePositionalBias": {"all_timestamps"},
    "L2NormPostprocessor": {"seq_timestamps"},
    "LayerNormPostprocessor": {"seq_timestamps"},
    "LearnablePositionalEmbeddingInputFeaturesPreprocessor": {"past_lengths", "past_payloads"},
}


@dataclasses.dataclass
class Recorded:
    """A case's reference with the calls of its modules on one batch."""

    case: CaseConfig
    model: torch.nn.Module
    capture: Capture
    shapes: dict[str, tuple[int, ...]]
    total_flops: int

    def fetch(self, leaf: object) -> object:
        """A call's argument: the tensor where it is one."""
        return self.capture.call_inputs[leaf.key] if isinstance(leaf, TensorKey) else leaf

    def flops(self, call: ModuleCall) -> int:
        """FLOPs that PyTorch counts in one call of one module."""
        function = call.function(self.model.get_submodule(call.path))
        with torch.inference_mode(), FlopCounterMode(display=False) as counter:
            function(*map_tree(call.args, self.fetch), **map_tree(call.kwargs, self.fetch))
        return counter.get_total_flops()

    def needed(self, call: ModuleCall) -> dict[str, object]:
        """A call's arguments by name, without those that are not needed."""
        function = getattr(self.model.get_submodule(call.path), call.method)
        names = list(inspect.signature(function).parameters)
        values = dict(zip(names, call.args, strict=False)) | dict(call.kwargs)
        stored = {name: value for name, value in values.items() if name not in UNNEEDED.get(call.kind, ())}
        if "past_payloads" in stored:
            stored["past_payloads"] = {"ratings": stored["past_payloads"]["ratings"]}
            del stored["past_lengths"]
        return stored

    def entering_bytes(self, call: ModuleCall) -> int:
        """Bytes of the tensors that a call needs; equal ones, which a capture keeps once, count each."""
        if call.kind == "TargetSplit":
            # Of the sequences it reads the rows that it returns.
            return self.capture.tensors[call.outputs[0]].nbytes + 2 * 8 * next(iter(self.shapes.values()))[0]
        entering: list[int] = []
        map_tree(
            list(self.needed(call).values()),
            lambda leaf: entering.append(self.fetch(leaf).nbytes) if isinstance(leaf, TensorKey) else None,
        )
        return sum(entering)


def _tensor(leaf: Any) -> Any:
    return torch.tensor(leaf) if isinstance(leaf, np.ndarray) else leaf


def record(case: CaseConfig, appending: bool = False) -> Recorded:
    """Run a case's reference on its synthetic batch; `appending` also with a cache, whose calls are kept."""
    loaded = from_config(case)
    arrays = make_inputs(loaded).typical.arrays
    model = loaded.build_reference().eval().requires_grad_(False)
    arguments = map_tree(loaded.entry_arguments(arrays), torch.tensor)
    with torch.inference_mode():
        with tapped(model, record_calls=True) as capture:
            getattr(model, loaded.entry)(**arguments)
        with FlopCounterMode(display=False) as counter:
            getattr(model, loaded.entry)(**arguments)
        if appending:
            before, between, *_, last = (
                map_tree(step, _tensor) for step in loaded.incremental_arguments(arrays)
            )
            with tapped(model, record_calls=True, capture=capture.beside()) as appended:
                cache = loaded.prefill(model, **before)
                loaded.extend(model, cache=cache, **last)
                known = len(appended.calls)
                loaded.extend(model, cache=cache, **between)
            appended.keep_new_forms(known)
            capture.add_appending(appended)
    shapes = {name: array.shape for name, array in arrays.items()}
    return Recorded(case, model, capture, shapes, counter.get_total_flops())
