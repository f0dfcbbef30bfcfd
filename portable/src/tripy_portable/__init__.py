"""The implementation behind the stand-in packages `mlir_tensorrt` and `tensorrt`.

`ir` and `dialect` record the operations that nvtripy builds. `program` is the recorded graph as data,
`verification` checks it, `constant_folding` evaluates its known part, and `planner` schedules the rest.
`kernels` define the result of each operation. `runtime` holds memory and runs plans.
"""

__version__ = "0.1.0"
