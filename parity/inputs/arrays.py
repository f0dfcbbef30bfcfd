"""The input of a run: made once, seeded, digested, checked, and read-only for every runner.

What the arrays are is a family's own affair; here they have names, types, shapes and a digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import numpy as np
import safetensors
import safetensors.numpy

from parity.base.errors import UserError
from parity.base.files import write_new

SCHEMA = "parity.inputs/1"


@dataclass(frozen=True)
class CaseInputs:
    """Arrays that a model is run on, by name; copied, and read-only from then on."""

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


def require_names(inputs: CaseInputs, names: Collection[str]) -> None:
    """Raises `UserError` unless the arrays are those named and no others."""
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
    """Raises for the first bad element; ``scale`` and ``offset`` turn its column into the array's own."""
    if not bad.any():
        return
    index = tuple(np.argwhere(bad)[0].tolist())
    own = (*index[:-1], index[-1] * scale + offset)
    count = int(bad.sum())
    more = f" ({count} such elements)" if count > 1 else ""
    raise UserError(f"{name}[{', '.join(map(str, own))}]", values[index].item(), problem + more, fix)


def save(inputs: CaseInputs, path: Path) -> None:
    """Writes the arrays and their digest as safetensors; see ``parity.base.files.write_new`` for the
    errors."""
    # One key: safetensors writes several in no fixed order, and equal inputs are to give equal files.
    header = {"parity": json.dumps({"schema": SCHEMA, "digest": inputs.digest}, sort_keys=True)}
    write_new(path, safetensors.numpy.save(dict(inputs.arrays), metadata=header))


def load(path: Path) -> CaseInputs:
    """Reads what ``save`` wrote.

    Raises:
        UserError: the file cannot be read, is no file of inputs, or was changed since.
    """
    fix = "give a file that a run with --save wrote"
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get("parity", "{}"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}
    except OSError as error:
        raise UserError("inputs", str(path), f"cannot be read ({error.strerror or error})", fix) from error
    except (safetensors.SafetensorError, ValueError) as error:
        raise UserError("inputs", str(path), f"is truncated or not safetensors ({error})", fix) from error
    if header.get("schema") != SCHEMA:
        raise UserError("inputs", str(path), f"has schema {header.get('schema')}, not {SCHEMA}", fix)
    inputs = CaseInputs(arrays)
    if inputs.digest != header["digest"]:
        raise UserError("inputs", str(path), "does not have the digest that was saved with it", fix)
    return inputs
