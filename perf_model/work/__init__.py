"""FLOPs and fewest bytes of modules by path, from configuration and sizes alone.

`parts` is general. `model` counts the project's own models and is not imported here.
"""

from perf_model.work.parts import Work

__all__ = ["Work"]
