"""FLOPs and fewest bytes of modules by path, from configuration and sizes alone."""

from perf_model.work.model import appending_work, case_work
from perf_model.work.parts import Work

__all__ = ["Work", "appending_work", "case_work"]
