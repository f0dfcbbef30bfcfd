"""Stand-in for `mlir_tensorrt.compiler`."""
