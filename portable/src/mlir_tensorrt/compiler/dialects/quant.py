"""Stand-in for `mlir_tensorrt.compiler.dialects.quant`, which nvtripy imports and does not use."""
