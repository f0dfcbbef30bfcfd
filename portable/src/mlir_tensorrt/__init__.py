"""A stand-in for MLIR-TensorRT's Python packages, implemented by `tripy_portable`."""

from tripy_portable.guard import check_nvtripy_version, refuse_to_shadow_import
from tripy_portable.runtime.scripts import apply_switches

refuse_to_shadow_import()
check_nvtripy_version()

__portable__ = True

# Last: with a switch on, it imports nvtripy, which imports this package.
apply_switches()
