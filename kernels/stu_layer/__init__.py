"""Production STU layers on jagged rows in few kernels; `interface.stu_layers` is the way in. `stu_norm` and
`stu_gate` are its parts besides attention and products.

* `parameters`: sizes and parameters of a layer.
* `cache`: the layers on new rows behind cached ones, `extend_stu_layers`.
* `eager`: the definition in plain PyTorch.
* `triton_kernels`, `triton_launch`: the kernels and their launches. These import triton.
"""

from kernels.stu_layer.cache import LayerCache, empty_cache, extend_stu_layers
from kernels.stu_layer.interface import stu_gate, stu_layers, stu_norm
from kernels.stu_layer.parameters import Parameters, Sizes

__all__ = [
    "LayerCache",
    "Parameters",
    "Sizes",
    "empty_cache",
    "extend_stu_layers",
    "stu_gate",
    "stu_layers",
    "stu_norm",
]
