"""The TensorRT dialect: legal element types, result types, and the builders that record operations."""

from tripy_portable.dialect import (  # noqa: F401  (importing registers the inferences)
    inference,
    layout_inference,
    plugin_inference,
    window_inference,
)
