"""The state of a training run, as a checkpoint holds it: every field is there and has its type."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

_OF_OPTIMIZER = {
    "Adam": {"step", "exp_avg", "exp_avg_sq"},
    "AdamW": {"step", "exp_avg", "exp_avg_sq"},
    "Adagrad": {"step", "sum"},
    "RowWiseAdagrad": {"row_sums"},
    "SGD": {"momentum_buffer"},
}
"""Names in an optimizer's state of one parameter."""
_DEVICE_RNG = "device_rng"
_COUNTS = ("epoch", "step", "predictions", "best_epoch")


def random_states(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The states of the generators that a run of a model draws from: PyTorch's own, and its GPU's."""
    states = {"rng": torch.get_rng_state()}
    if _is_on_gpu(model):
        states[_DEVICE_RNG] = torch.cuda.get_rng_state()
    return states


def set_random_states(model: torch.nn.Module, state: Mapping[str, Any]) -> None:
    """Puts the generators into the states of `random_states`."""
    torch.set_rng_state(state["rng"])
    if _is_on_gpu(model):
        torch.cuda.set_rng_state(state[_DEVICE_RNG])


def problem_of(
    state: Mapping[str, Any], model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]
) -> str:
    """The reason why a run of this model and optimizers cannot continue from a state; empty without one."""
    checks = {
        "model": _fits(state.get("model"), model.state_dict()),
        "best": _fits(state.get("best"), model.state_dict()),
        "optimizers": _are_optimizers(state.get("optimizers"), optimizers),
        **{name: _is_like(state.get(name), own) for name, own in random_states(model).items()},
        "progress": _is_progress(state.get("progress")),
    }
    bad = [name for name, is_right in checks.items() if not is_right]
    return f"has a state whose {' and '.join(bad)} cannot be used" if bad else ""


def _fits(tensors: Any, own: Mapping[str, torch.Tensor]) -> bool:
    return (
        isinstance(tensors, dict)
        and tensors.keys() == own.keys()
        and all(isinstance(t, torch.Tensor) and _alike(t, own[name]) for name, t in tensors.items())
    )


def _is_like(state: Any, own: torch.Tensor) -> bool:
    return isinstance(state, torch.Tensor) and _alike(state, own)


def _is_on_gpu(model: torch.nn.Module) -> bool:
    return any(parameter.is_cuda for parameter in model.parameters())


def _alike(tensor: torch.Tensor, own: torch.Tensor) -> bool:
    return (tensor.shape, tensor.dtype, tensor.layout) == (own.shape, own.dtype, own.layout)


def _are_optimizers(states: Any, optimizers: Sequence[torch.optim.Optimizer]) -> bool:
    return (
        isinstance(states, list)
        and len(states) == len(optimizers)
        and all(map(_is_optimizer, states, optimizers))
    )


def _is_optimizer(state: Any, optimizer: torch.optim.Optimizer) -> bool:
    own = optimizer.state_dict()
    if (
        not isinstance(state, dict)
        or state.keys() != own.keys()
        or state["param_groups"] != own["param_groups"]
    ):
        return False
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    entries = state["state"]
    return isinstance(entries, dict) and all(
        isinstance(number, int)
        and 0 <= number < len(parameters)
        and _is_entry(entry, parameters[number], optimizer)
        for number, entry in entries.items()
    )


def _is_entry(entry: Any, parameter: torch.Tensor, optimizer: torch.optim.Optimizer) -> bool:
    names = _OF_OPTIMIZER[type(optimizer).__name__]
    if not isinstance(entry, dict) or (entry.keys() != names and entry):
        return False
    shapes = {"step": (), "row_sums": parameter.shape[:1]}
    return all(
        value is None
        if name == "momentum_buffer"
        else isinstance(value, torch.Tensor) and value.shape == shapes.get(name, parameter.shape)
        for name, value in entry.items()
    )


def _is_progress(progress: Any) -> bool:
    if not isinstance(progress, dict) or progress.keys() != {*_COUNTS, "loss_sum", "history"}:
        return False
    counts = [progress[name] for name in _COUNTS]
    history = progress["history"]
    losses = [progress["loss_sum"]]
    if not (isinstance(history, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in history)):
        return False
    losses += [loss for pair in history for loss in pair]
    return (
        all(type(count) is int and count >= 0 for count in counts)
        and all(type(loss) is float and math.isfinite(loss) for loss in losses)
        and progress["epoch"] == len(history) >= 1
        and progress["best_epoch"] < len(history)
    )
