"""Stand-in for `mlir_tensorrt.compiler.dialects.quant`, of which nvtripy uses nothing."""
