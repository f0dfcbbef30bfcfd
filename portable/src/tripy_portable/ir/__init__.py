"""What nvtripy uses of MLIR's Python bindings: contexts, locations, types, attributes, operations."""
