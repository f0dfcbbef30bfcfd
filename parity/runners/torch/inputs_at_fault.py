"""Inputs with which nothing can be judged: the reference raises, or returns NaN.

A trial with other inputs proves it: the reference runs, or returns no NaN. Without such a proof an error
stays the reference's own. An infinite result, such as a logit behind a mask, can be compared.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch

from parity.base.errors import UserError
from parity.base.interruption import raisable
from parity.base.memory import is_allocation_failure, is_lack
from parity.case import Arrays, Case
from parity.inputs.masks import valid_elements

Runs = Callable[[Arrays], Mapping[str, torch.Tensor]]
"""The outputs of the reference on other inputs."""
_OTHER_TYPES = (np.int64, np.bool_, np.float32)
"""Types that operations ask for: of indices and counts, of masks, and of numbers."""


def raising_inputs(arrays: Arrays, error: Exception, run: Runs) -> UserError | None:
    """The refusal of inputs with which the reference raises; None if no trial proves that they are to blame.

    Args:
        arrays: The inputs.
        error: The error.
        run: Runs the reference.
    """
    if isinstance(error, UserError) or is_lack(error) or is_allocation_failure(error):
        # A full disk or memory may have room in the next moment.
        return None
    told = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return _of_other_type(arrays, told, run) or _of_other_rows(arrays, told, run)


def _of_other_type(arrays: Arrays, told: str, run: Runs) -> UserError | None:
    for dtype in _OTHER_TYPES:
        cast = {name: array.astype(dtype) for name, array in arrays.items() if _holds(array, dtype)}
        for names in _trials({name: arrays[name] for name in cast}):
            if _runs(run, {**arrays, **{name: cast[name] for name in names}}):
                wanted = np.dtype(dtype).name
                return UserError(
                    f"inputs.{names[0]}",
                    f"{arrays[names[0]].dtype}",
                    f"is no type that the reference takes there ({told}); with {wanted} it runs",
                    f"give {' and '.join(names)} as {wanted} in the case's inputs",
                )
    return None


def _trials(arrays: Arrays) -> Iterator[list[str]]:
    """Each input alone, then all of one type."""
    by_type = defaultdict(list)
    for name, array in arrays.items():
        yield [name]
        by_type[array.dtype].append(name)
    yield from (names for names in by_type.values() if len(names) > 1)


def _holds(array: np.ndarray, dtype: type) -> bool:
    """Whether another type holds the same numbers."""
    if array.dtype == dtype or array.dtype.kind not in "fiub" or not np.isfinite(array).all():
        return False
    with np.errstate(invalid="ignore"):
        return bool((array.astype(dtype) == array).all())


def _of_other_rows(arrays: Arrays, told: str, run: Runs) -> UserError | None:
    rows = {name: array.shape[0] for name, array in arrays.items() if array.ndim}
    usual = Counter(rows.values()).most_common(1)[0][0] if rows else 0
    others = [name for name, size in rows.items() if size != usual]
    least = min(rows.values(), default=0)
    # Jagged inputs have several sizes. Here the error is about two of them.
    if not others or not {str(usual), str(rows[others[0]])} <= set(re.findall(r"\d+", told)):
        return None
    if not _runs(run, {name: array[:least] if array.ndim else array for name, array in arrays.items()}):
        return None
    counts = ", ".join(f"{name} {size}" for name, size in rows.items())
    return UserError(
        f"inputs.{others[0]}",
        f"{rows[others[0]]} rows",
        f"are not the {usual} of others, and the reference raises ({told}); with {least} of each it runs",
        f"give all inputs of a batch the same number of rows ({counts})",
    )


def _runs(run: Runs, arrays: Arrays) -> bool:
    try:
        run(arrays)
    except raisable():
        # Any error says that these inputs prove nothing.
        return False
    return True


def spoiling_inputs(
    case: Case, arrays: Arrays, taps: Mapping[str, torch.Tensor], run: Runs
) -> UserError | None:
    """The refusal of inputs whose NaN or Inf makes NaN in what counts of the reference's outputs, or None.

    Args:
        case: The case.
        arrays: The inputs.
        taps: The reference's outputs by tap name, among others.
        run: Runs the reference.
    """
    bad = {name: ~np.isfinite(array) for name, array in arrays.items() if array.dtype.kind in "fc"}
    bad = {name: places for name, places in bad.items() if places.any()}
    if not bad or not (spoiled := _spoiled(case, arrays, taps)):
        return None
    # A one is in the domain of logarithms and quotients.
    ones = {name: np.where(places, 1, arrays[name]) for name, places in bad.items()}
    clean = {**arrays, **{name: array.astype(arrays[name].dtype) for name, array in ones.items()}}
    if _spoiled(case, clean, run(clean)):
        return None
    # Another input may have an Inf that does no harm, such as a mask that is added to logits.
    alone = (name for name in bad if _spoiled(case, arrays, run({**clean, name: arrays[name]})))
    name = next(alone, next(iter(bad)))
    place = tuple(np.argwhere(bad[name])[0].tolist())
    count = int(bad[name].sum())
    return UserError(
        f"inputs.{name}[{', '.join(map(str, place))}]" if place else f"inputs.{name}",
        arrays[name][place].item(),
        f"makes {spoiled} of the reference NaN, with which nothing can be compared"
        + (f" ({count} such elements)" if count > 1 else ""),
        "give finite numbers in the case's inputs",
    )


def _spoiled(case: Case, arrays: Arrays, taps: Mapping[str, torch.Tensor]) -> str:
    """The name of the first output with NaN in what counts; empty if there is none."""
    valid, batch = case.valid_rows(arrays), case.batch_size_of(arrays)
    for name in (tap for tap in taps if tap.startswith(f"{case.entry}.")):
        output = taps[name]
        if output.dtype.is_floating_point and bool((wrong := output.isnan()).any()):
            is_whole = name.removeprefix(f"{case.entry}.") in case.whole_outputs
            keep = None if is_whole else valid_elements(tuple(output.shape), valid, batch)
            if keep is None or bool((wrong.cpu().numpy() & keep).any()):
                return name
    return ""
