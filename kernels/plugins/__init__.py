"""The kernels as TensorRT quickly deployable plugins.

* `schema`: names and settings, for those who call a plugin. Needs nothing but Python.
* `hstu_attention`: importing it registers the plugin with `tensorrt.plugin`, NVIDIA's or the portable one.
* `ahead_of_time`: the kernel compiled for TensorRT. The only module here that imports triton.
"""
