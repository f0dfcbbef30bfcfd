"""Stand-in for `mlir_tensorrt.runtime`."""
