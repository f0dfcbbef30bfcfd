"""A stand-in for MLIR-TensorRT's Python packages, implemented by `tripy_portable`."""

from tripy_portable.guard import check_nvtripy_version, refuse_to_shadow_import

refuse_to_shadow_import()
check_nvtripy_version()

__portable__ = True
