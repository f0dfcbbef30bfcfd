"""The models in Tripy: same files, classes, attributes, parameters and state-dict keys as in `reference`.

The port uses public Tripy and no PyTorch: it runs unchanged on NVIDIA's runtime. `tripy_port.gaps` lists the
parts that Tripy cannot express, each with the reason.
"""
