"""The part of MLIR's Python bindings that nvtripy uses: locations, types, attributes, operations."""
