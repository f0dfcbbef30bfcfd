"""Production STU layers on jagged rows in few kernels; `interface.stu_layers` is the way in. `stu_norm` and
`stu_gate` are its parts besides attention and products.

* `parameters`: sizes and parameters of a layer.
* `eager`: the definition in plain PyTorch.
* `triton_kernels`, `triton_launch`: the kernels and their launches. These import triton.
"""

from kernels.stu_layer.interface import stu_gate, stu_layers, stu_norm
from kernels.stu_layer.parameters import Parameters, Sizes

__all__ = ["Parameters", "Sizes", "stu_gate", "stu_layers", "stu_norm"]
