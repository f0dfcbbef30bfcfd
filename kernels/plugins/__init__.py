"""The kernels as TensorRT quickly deployable plugins.

* `schema`: names and settings, for callers of a plugin. Needs nothing but Python.
* `hstu_attention`, `stu_attention`: importing one registers the plugin of its mask, research or production,
  with `tensorrt.plugin`, NVIDIA's or the portable one. `registration` is their common part.
* `ahead_of_time`: the kernel compiled for TensorRT. The only module here that imports triton.
"""
