"""What nvtripy uses of `mlir_tensorrt.runtime.api`: memory, streams, executables, sessions."""
