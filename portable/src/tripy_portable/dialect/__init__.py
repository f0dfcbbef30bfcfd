"""The TensorRT dialect: what is legal, what types result, and the builders that record operations."""

from tripy_portable.dialect import (  # noqa: F401  (importing registers the inferences)
    inference,
    layout_inference,
    plugin_inference,
    window_inference,
)
