"""FLOPs and fewest bytes of modules by path, from configuration and sizes alone.

`parts` is general. `model` counts the project's own models.
"""
