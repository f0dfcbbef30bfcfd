"""Least work and expected times of modules on a GPU, and the predictions' errors.

* **The roofline** (`parity.timing.least_time`) is a time that no version of a module can beat. It is the
  largest of four: the module's FLOPs at the GPU's measured matmul rate, its fewest bytes at the measured
  bandwidths of cache and memory, and a launch. FLOPs and bytes follow from a case's configuration and sizes
  (`perf_model.work`).
* **The prediction** (`perf_model.kernels`, `perf_model.embedding`, `perf_model.estimate`) is the time of
  PyTorch's own kernels, from tables measured on other sizes and models of caches, waves and launches.

The programs in `perf_model.measure`, which need a GPU, measure the numbers and store them as JSON with their
machine: ceilings in `parity/timing/ceilings`, times of single kernels in `perf_model/calibration`. Times are
seconds, sizes bytes, rates bytes or FLOPs a second, unless a name says otherwise.
"""
