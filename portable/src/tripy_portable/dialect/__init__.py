"""The TensorRT dialect: what is legal, what types result, and the builders that record operations."""

from tripy_portable.dialect import inference, window_inference  # noqa: F401  (importing registers the inferences)
