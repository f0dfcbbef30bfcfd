"""Models of PyTorch that are no plain modules: nothing can look inside them, or they have no weights yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
