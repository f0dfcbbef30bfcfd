"""The kernels as TensorRT quickly deployable plugins.

* `schema`: names and settings, for callers of a plugin. Needs nothing but Python.
* `hstu_attention`, `stu_attention`: importing one registers the plugin of its mask, research or production,
  with `tensorrt.plugin`, NVIDIA's or the portable one. `stu_layer` registers norm and gate of a production
  layer. `registration` is their common part.
* `ahead_of_time`, `entry_kernel`: the kernels compiled for TensorRT. Only these import triton.
"""
