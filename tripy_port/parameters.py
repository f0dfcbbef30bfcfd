"""Declaration of parameters that only a state dict can fill."""

from __future__ import annotations

from collections.abc import Sequence

import nvtripy as tp


def parameter(shape: Sequence[int], dtype: tp.dtype) -> object:
    """A parameter that has a shape and a dtype but no value until `tp.Module.load_state_dict` gives it one.

    A call of the module before that raises and names the parameter; an initial value would compute nonsense
    in silence. Tripy's own modules declare parameters so, but export no function for it. The unset weight of
    a layer normalization, which may have any shape, stands in.
    """
    return tp.LayerNorm(tuple(shape), dtype=dtype).weight
