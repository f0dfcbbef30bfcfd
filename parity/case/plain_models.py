"""Models that are no plain modules: closed ones, those without weights yet, and what is no model at all."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from parity.base.errors import UserError

if TYPE_CHECKING:
    import torch

_WRAPPERS = {"OptimizedModule": "_orig_mod", "DataParallel": "module", "DistributedDataParallel": "module"}
"""The attribute of the wrapped module, by class of PyTorch."""


def require_plain(field: str, value: str, model: torch.nn.Module) -> None:
    """Require a model whose modules and weights can be read.

    Args:
        field, value: As of `UserError`.
        model: The reference.

    Raises:
        UserError: It is a ScriptModule, wraps another model, or has a parameter without a shape or values.
    """
    import torch

    if isinstance(model, torch.jit.ScriptModule):
        raise UserError(field, value, "is a ScriptModule", "give the Python model that it was made from")
    kind = type(model)
    if kind.__name__ in _WRAPPERS and kind.__module__.startswith("torch."):
        inner = _WRAPPERS[kind.__name__]
        raise UserError(field, value, f"is the model in {kind.__name__}", f"give its `{inner}`")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if torch.nn.parameter.is_lazy(tensor):
            raise UserError(field, value, f"has no shape of {name} yet", "call the model once before")
        if tensor.is_meta:
            problem = f"has no values of {name}, which is on the device meta"
            raise UserError(field, value, problem, "make the model on the CPU")


def in_place_of_model(value: Any, model: str) -> tuple[str, str]:
    """What a function returns in place of a model, in words, and the remedy.

    Args:
        value: What it returns.
        model: The kind of the model, such as "nvtripy.Module".
    """
    import torch

    if value is None:
        return "None", f"return the {model} at its end"
    if inspect.isclass(value):
        return f"the class {value.__name__}", f"return an instance: call {value.__name__} with its arguments"
    if inspect.isroutine(value):
        return f"the function {value.__name__}", f"call it, and return the {model}"
    if isinstance(value, torch.nn.Module):
        return f"the PyTorch model {type(value).__name__}", f"return the {model}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}", f"return the {model} alone"
    return f"a value of type {type(value).__name__}", f"return the {model}"
