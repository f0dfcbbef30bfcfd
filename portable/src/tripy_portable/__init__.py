"""The implementation behind the stand-in packages `mlir_tensorrt` and `tensorrt`.

`ir` and `dialect` record what nvtripy builds, `program` is the recorded graph as data, `planner` folds and
schedules it, `kernels` define what each operation computes, and `runtime` holds memory and runs plans.
"""

__version__ = "0.1.0"
