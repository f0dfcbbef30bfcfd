"""The operations that PyTorch dispatches, one by one, composite ones taken apart as without autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class EachOperation(TorchDispatchMode):
    """Inside, `operation` runs whatever is dispatched; a subclass says what it does besides."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # By default PyTorch guards each operation against torch.compile, whose import takes a second.
        # Nothing that runs inside is compiled.
        return False

    def operation(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Run one operation, which is not made of others, and return its result."""
        return func(*args, **kwargs)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            # Without autograd, `linear` or `einsum` arrives whole. A subclass may do more when it is entered,
            # which this is not.
            TorchDispatchMode.__enter__(self)
            try:
                return func.decompose(*args, **kwargs)
            finally:
                TorchDispatchMode.__exit__(self, None, None, None)
        return self.operation(func, args, kwargs)
