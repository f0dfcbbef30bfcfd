"""How fast a module could be on a GPU, and how fast it should be: limits and predictions, with their errors.

Two questions, answered apart from each other:

* **The limit** (`perf_model.limits`) is what no version of a module can beat: its FLOPs at the GPU's measured
  matmul rate, or the fewest bytes that it must move at the measured bandwidths, whichever takes longer.
  FLOPs and bytes follow from a case's configuration and sizes alone (`perf_model.work`).
* **The prediction** (`perf_model.kernels`, `perf_model.embedding`, `perf_model.estimate`) is what PyTorch's
  kernels, as they are, take: from tables measured on other sizes, and models of caches, waves and launches.

Numbers are measured by the programs in `perf_model.measure`, which alone need a GPU, and are stored as JSON
with the machine that they hold for. Times are seconds, sizes bytes, rates bytes or FLOPs a second, unless a
name says otherwise.
"""
