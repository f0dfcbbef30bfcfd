"""The part of `mlir_tensorrt.runtime.api` that nvtripy uses: memory, streams, executables, sessions."""
