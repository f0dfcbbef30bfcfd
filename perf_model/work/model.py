"""FLOPs and fewest bytes of every module of a case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from configs import CaseConfig
from parity.base.work import Work
from perf_model.work.appending import hstu_appending_work, stu_appending_work
from perf_model.work.dlrm import dlrm_work
from perf_model.work.dlrmv3 import dlrmv3_work
from perf_model.work.hstu import hstu_work
from perf_model.work.lecture_dlrm import lecture_dlrm_work
from perf_model.work.parts import Shapes
from perf_model.work.stu import stu_work

_FAMILIES = {
    "dlrm": dlrm_work,
    "dlrmv3": dlrmv3_work,
    "hstu": hstu_work,
    "lecture_dlrm": lecture_dlrm_work,
    "stu": stu_work,
}
_APPENDING = {"hstu": hstu_appending_work, "stu": stu_appending_work}


def case_work(case: CaseConfig, shapes: Shapes, item: int) -> dict[str, Work]:
    """The work of each module of a case for one batch, by tap; "" is the whole model.

    Args:
        case: sizes and choices of the model.
        shapes: shapes of the batch's input arrays by name.
        item: bytes of a number in the tested precision, 2 or 4.

    Raises:
        ValueError: the family has no counts, an array is missing, or `item` is neither 2 nor 4.
    """
    if case.family not in _FAMILIES:
        known = ", ".join(_FAMILIES)
        raise ValueError(f"family: {case.family!r} has no counts of FLOPs and bytes; there are {known}")
    arguments = {}
    if case.family == "dlrm" and case.model.md_flag:
        arguments["table_dims"] = _mixed_dimensions(case)
    return _counted(_FAMILIES[case.family], case, shapes, item, **arguments)


def appending_work(case: CaseConfig, shapes: Shapes, item: int) -> dict[str, Work]:
    """The work of a forward that makes a cache (no suffix) and of one that appends to it (`@1`).

    The result is empty for a model without a cache.

    Raises:
        ValueError: an array is missing, or `item` is neither 2 nor 4.
    """
    if case.family not in _APPENDING:
        return {}
    return _counted(_APPENDING[case.family], case, shapes, item)


def _counted(
    count: Callable[..., dict[str, Work]], case: CaseConfig, shapes: Shapes, item: int, **arguments: Any
) -> dict[str, Work]:
    if item not in (2, 4):
        raise ValueError(f"item: {item} bytes a number; give 2 or 4")
    try:
        return count(case.model, shapes, item, **arguments)
    except KeyError as error:
        raise ValueError(f"shapes: {error} is missing; give the shapes of the batch's arrays") from error


def _mixed_dimensions(case: CaseConfig) -> tuple[int, ...]:
    """Columns of each table, from the reference, which rounds them in float32."""
    from reference.md_embedding_bag import mixed_dimensions

    config = case.model
    width = config.arch_sparse_feature_size
    return tuple(mixed_dimensions(config.table_rows, config.md_temperature, width, config.md_round_dims))
