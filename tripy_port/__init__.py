"""The models in Tripy: same files, classes, attributes, parameters and state-dict keys as in `reference`.

Public Tripy only, no PyTorch, so that it runs unchanged where NVIDIA's runtime is installed. What Tripy
cannot express is listed, with the reason, in `tripy_port.gaps`.
"""
