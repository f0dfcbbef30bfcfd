"""The inputs of a run: drawn once from a seed, digested, checked, and read-only for every runner.

A case makes the arrays. This module checks their names and types, and gives them a digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import numpy as np
import safetensors
import safetensors.numpy

from parity.base.errors import UserError
from parity.base.files import parse_json, write_new
from parity.base.memory import require
from parity.case import Arrays, Batches, Case
from parity.case.contract import require_batch, require_case, require_plan, require_poisoned
from parity.case.plan import TYPICAL
from parity.case.users_code import of_case

SCHEMA = "parity.inputs/1"
POISON_SEED = 1
"""Seed of the garbage in the padding."""
MORE_ROWS_SEED = 1_000
"""Distance of the first further batch's seed from the case's own; a plan's seeds are nearer."""
_DRAWN_TWICE_BYTES = 1 << 26
"""Largest inputs that are drawn twice."""
_SIZES_TRIED = 3
"""Batch sizes that are tried, one above another: a case may refuse one that equals another axis."""


@dataclass(frozen=True)
class CaseInputs(Mapping[str, np.ndarray]):
    """Read-only copies of the arrays that a model runs on, by name."""

    arrays: Mapping[str, np.ndarray]

    def __post_init__(self) -> None:
        own = {}
        for name, array in self.arrays.items():
            own[name] = np.array(array, order="C")
            own[name].setflags(write=False)
        object.__setattr__(self, "arrays", MappingProxyType(own))

    def __reduce__(self) -> tuple[type[CaseInputs], tuple[dict[str, np.ndarray]]]:
        return type(self), (dict(self.arrays),)  # mapping proxies cannot be pickled

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over every array's name, type, shape and bytes."""
        hasher = hashlib.sha256()
        for name in sorted(self.arrays):
            array = self.arrays[name]
            little_endian = array.astype(array.dtype.newbyteorder("<"), copy=False)
            hasher.update(f"{name} {little_endian.dtype.str} {array.shape}\n".encode())
            hasher.update(little_endian.tobytes())
        return hasher.hexdigest()


@dataclass(frozen=True)
class NamedInputs:
    """One batch of a run.

    Attributes:
        name: Name in reports; unique in the run.
        purpose: Reason for the batch, in words; empty for recorded data.
        inputs: The arrays.
        further: Number of a further batch with more rows, counted from 1; 0 for a batch of the plan.
    """

    name: str
    purpose: str
    inputs: CaseInputs
    further: int = 0

    @property
    def is_recorded(self) -> bool:
        """Whether the batch is of recorded data, or one of several that the case makes without a plan."""
        return not self.purpose


@dataclass(frozen=True)
class RunInputs:
    """All batches of a case, read-only.

    Attributes:
        batches: The batches; the first one is timed, and the port is compiled for it.
        labels: Observed results, batch by batch; empty where there are none.
        source: Origin of the inputs.
        counts: Numbers of rows and the like, of the typical batch or of all recorded data.
    """

    batches: tuple[NamedInputs, ...]
    labels: tuple[CaseInputs, ...]
    source: str
    counts: Mapping[str, int]

    @property
    def typical(self) -> CaseInputs:
        """The arrays of the first batch."""
        return self.batches[0].inputs


def make_inputs(case: Case, data: Any = None) -> RunInputs:
    """The checked inputs of a case: the batches of its plan, or all of `data`.

    Args:
        case: The case.
        data: A file's content, from `Case.read`.

    Raises:
        UserError: More than the available memory, no batch, two batches of one name, a value that is no NumPy
            array, or inputs that the case refuses.
    """
    weights, arrays = case.least_bytes()
    # A row has a byte at least, whatever the case knows of its sizes.
    needed = weights if data is not None else weights + max(arrays, case.batch_size)
    require("case", case.name, needed, "give smaller sizes, or a smaller --batch")
    require_case(case)
    with of_case(case, "make_inputs" if data is None else "recorded"):
        content = case.make_inputs() if data is None else case.recorded(data)
    if not isinstance(content, Batches):
        inputs = _read_only(case, content)
        content = Batches([inputs], f"synthetic, seed {case.seed}", {"rows": case.batch_size_of(inputs)})
    checked = [_checked(case, batch) for batch in content.inputs]
    if not checked:
        raise UserError("inputs", case.name, "has no batch", "make at least one")
    if data is None:
        _require_repeatable(case, checked)
    if data is None and len(checked) == 1:
        batches = _planned(case, checked[0])
    else:
        batches = [NamedInputs(f"batch {number}", "", inputs) for number, inputs in enumerate(checked)]
    labels = tuple(_read_only(case, batch) for batch in content.labels)
    return RunInputs(tuple(batches), labels, content.source, dict(content.counts))


def _require_repeatable(case: Case, drawn: Sequence[CaseInputs]) -> None:
    """Raises `UserError` where a second call draws other numbers: nobody else gets such inputs.

    Large inputs are not drawn twice: that takes their time and memory again.
    """
    if sum(array.nbytes for inputs in drawn for array in inputs.values()) > _DRAWN_TWICE_BYTES:
        return
    with of_case(case, "make_inputs"):
        content = case.make_inputs()
    again = content.inputs if isinstance(content, Batches) else [content]
    if [inputs.digest for inputs in drawn] != [_read_only(case, arrays).digest for arrays in again]:
        raise UserError(
            "make_inputs",
            f"seed {case.seed}",
            f"gives other arrays in a second call, in {case.name}",
            "draw all numbers from np.random.default_rng(self.seed)",
        )


def _planned(case: Case, typical: CaseInputs) -> list[NamedInputs]:
    """The typical batch and the others of the case's plan, without repetitions."""
    batches = [NamedInputs(TYPICAL, "compiled for and timed", typical)]
    # By default `make_inputs` makes the plan's batches.
    with of_case(case, "make_inputs" if type(case).plan is Case.plan else "plan"):
        plan = list(case.plan())
    require_plan(case, plan)
    for planned in plan:
        if any(planned.name == batch.name for batch in batches):
            raise UserError("plan", planned.name, "is the name of two batches", "give each a name of its own")
        _, _, number = planned.name.rpartition(" ")
        if number.isdecimal() and planned.name == further_name(int(number)):
            problem = "is the name of a further batch, which a run draws"
            raise UserError("plan", planned.name, problem, "give it another name")
        inputs = _checked(case, planned.inputs)
        # A case without random numbers has the same values for every seed.
        if all(inputs.digest != batch.inputs.digest for batch in batches):
            batches.append(NamedInputs(planned.name, planned.purpose, inputs))
    return batches


def more_rows(case: Case, typical: CaseInputs, number: int, times: int) -> NamedInputs | None:
    """A further batch like the typical one, with more rows and a seed of its own.

    Args:
        case: The case.
        typical: The typical batch, as the case makes it.
        number: Number of the further batch, counted from 1.
        times: Rows in multiples of the typical batch.

    Returns:
        The batch; None for a case that makes no batch with more rows.
    """
    seed, few = case.seed + MORE_ROWS_SEED + number, case.batch_size_of(typical)
    for size in range(times * few, times * few + _SIZES_TRIED):
        try:
            with of_case(case, "make_inputs"):
                content = case.with_overrides(seed=seed, batch_size=size).make_inputs()
            inputs = _checked(case, content.inputs[0] if isinstance(content, Batches) else content)
        except UserError:
            continue
        rows = case.batch_size_of(inputs)
        purpose = f"{rows} rows like the typical ones, seed {seed}, for checks that could not notice 1 %"
        return NamedInputs(further_name(number), purpose, inputs, number) if rows > few else None
    return None


def further_name(number: int) -> str:
    """The name of a further batch. A plan may have none of these names."""
    return f"more rows {number}"


def _checked(case: Case, arrays: Arrays) -> CaseInputs:
    inputs = _read_only(case, arrays)
    require_batch(case, inputs)
    return inputs


class Asked(Protocol):
    """A batch with its purpose."""

    @property
    def purpose(self) -> str:
        """The reason for the batch, in words; empty for recorded data."""


_Batch = TypeVar("_Batch", bound=Asked)


def batches_in(batches: Sequence[_Batch], precision: str, precisions: Sequence[str]) -> Sequence[_Batch]:
    """The batches that run in one of a run's precisions.

    The first precision has all of them. The others have the first batch of a plan, for their roundings.
    """
    is_plan = bool(batches[0].purpose)
    return batches[:1] if is_plan and precision != precisions[0] else batches


def poisoned_inputs(case: Case, inputs: CaseInputs, seed: int = POISON_SEED) -> CaseInputs | None:
    """The same inputs with garbage in their padding; None where there is no padding."""
    with of_case(case, "poison"):
        garbage = case.poison(inputs, seed)
    if garbage is None:
        return None
    if not isinstance(garbage, Mapping):
        fix = "return arrays by name from poison, or None"
        raise UserError("poison", type(garbage).__name__, f"is no result of {case.name} that fits", fix)
    poisoned = _read_only(case, garbage)
    require_poisoned(case, inputs, poisoned)
    return poisoned


def _read_only(case: Case, arrays: Arrays) -> CaseInputs:
    if isinstance(arrays, CaseInputs):
        return arrays
    if not isinstance(arrays, Mapping):
        problem = f"has inputs of type {type(arrays).__name__}"
        raise UserError("inputs", case.name, problem, "return NumPy arrays by name from make_inputs")
    fix = "return NumPy arrays by name from make_inputs"
    if not arrays:
        raise UserError("inputs", case.name, "has no array", fix)
    for name, array in arrays.items():
        if not isinstance(name, str):
            raise UserError("inputs", repr(name), f"is no name of an array in {case.name}", fix)
        if not _is_of_numbers(array):
            is_plain = isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray)
            value = f"an array of {array.dtype}" if is_plain else type(array).__name__
            raise UserError(f"inputs.{name}", value, f"is no NumPy array of numbers in {case.name}", fix)
    return CaseInputs(arrays)


def _is_of_numbers(array: object) -> bool:
    """Whether it is an array of a type that files of tensors have: no objects, texts, times or records.

    Nor a masked one, whose mask no model gets, or numbers that are longer than a double.
    """
    return (
        isinstance(array, np.ndarray)
        and not isinstance(array, np.ma.MaskedArray)
        and array.dtype.kind in "biufc"
        and array.dtype.itemsize <= (16 if array.dtype.kind == "c" else 8)
    )


def require_names(inputs: CaseInputs, names: Collection[str]) -> None:
    """Raises `UserError` if a named array is missing, or another one is there."""
    missing, extra = set(names) - set(inputs.arrays), set(inputs.arrays) - set(names)
    if missing or extra:
        raise UserError(
            "inputs",
            f"missing {sorted(missing)}, unknown {sorted(extra)}",
            "is not the set of arrays that a model takes",
            f"give exactly {', '.join(names)}",
        )


def require_int64(name: str, array: np.ndarray) -> None:
    """Raises `UserError` for an array of another type."""
    if array.dtype != np.int64:
        bad = np.argwhere(~np.isfinite(array)) if array.dtype.kind == "f" else ()
        where = f", with {array[tuple(bad[0])]} at {bad[0].tolist()}" if len(bad) else ""
        raise UserError(name, f"{array.dtype}{where}", "is not int64", "give whole numbers as int64")


def require_all_good(
    name: str, values: np.ndarray, bad: np.ndarray, problem: str, fix: str, scale: int = 1, offset: int = 0
) -> None:
    """Raises `UserError` for the first bad element, in column `column * scale + offset` of the array."""
    if not bad.any():
        return
    index = tuple(np.argwhere(bad)[0].tolist())
    own = (*index[:-1], index[-1] * scale + offset)
    count = int(bad.sum())
    more = f" ({count} such elements)" if count > 1 else ""
    raise UserError(f"{name}[{', '.join(map(str, own))}]", values[index].item(), problem + more, fix)


def save(inputs: CaseInputs, path: Path) -> None:
    """Write the arrays and their digest as safetensors; `parity.base.files.write_new` has the errors."""
    # One key: safetensors writes several keys in any order, and equal inputs need equal files.
    header = {"parity": json.dumps({"schema": SCHEMA, "digest": inputs.digest}, sort_keys=True)}
    write_new(path, safetensors.numpy.save(dict(inputs.arrays), metadata=header))


def load(path: Path) -> CaseInputs:
    """Read a file of `save`.

    Raises:
        UserError: The file cannot be read, is no file of inputs, or has changed.
    """
    fix = "give a file that a run with --save wrote"
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            header = parse_json((file.metadata() or {}).get("parity", "{}"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}
    except OSError as error:
        raise UserError("inputs", str(path), f"cannot be read ({error.strerror or error})", fix) from error
    except (safetensors.SafetensorError, ValueError) as error:
        raise UserError("inputs", str(path), f"is truncated or not safetensors ({error})", fix) from error
    schema = header.get("schema") if isinstance(header, dict) else None
    if schema != SCHEMA:
        raise UserError("inputs", str(path), f"has schema {schema}, not {SCHEMA}", fix)
    inputs = CaseInputs(arrays)
    if inputs.digest != header.get("digest"):
        raise UserError("inputs", str(path), "does not have the digest that was saved with it", fix)
    return inputs
