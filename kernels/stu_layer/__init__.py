"""Production STU layers on jagged rows in few kernels; `interface.stu_layers` is the way in.

* `parameters`: sizes and parameters of a layer.
* `eager`: the definition in plain PyTorch.
* `triton_kernels`, `triton_launch`: the kernels and their launches. These import triton.
"""

from kernels.stu_layer.interface import stu_layers
from kernels.stu_layer.parameters import Parameters, Sizes

__all__ = ["Parameters", "Sizes", "stu_layers"]
