"""Checkpoints: trained weights from a file, checked against a model's tensors."""

from __future__ import annotations

import collections
import json
import pickletools
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import safetensors
import safetensors.torch
import torch

from parity.base.errors import UserError
from parity.base.files import size_of
from parity.base.precision import dtype_name

_LONGEST_NAME = 1000
"""Most characters in the name of a pickled object."""
_OBJECT = re.compile(r"[Uu]nsupported (?:global: )?GLOBAL (\S+)")
"""Class of a pickled object in PyTorch's message."""
_ADVICE = re.compile(r" (?:This file can still be loaded|Re-running `torch.load`)")
"""Beginning of PyTorch's advice to run the code of the file."""
_LEGACY_PICKLES = 5
"""Pickles at the beginning of a file of `torch.save` that is no archive; the tensors' bytes follow."""


def layout(weights: Mapping[str, torch.Tensor]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and type of every tensor by name, for ``load_checkpoint``."""
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in weights.items()}


def load_checkpoint(
    path: Path, expected: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
) -> dict[str, torch.Tensor]:
    """Read a checkpoint with exactly the tensors of `expected`. Raises `UserError`."""
    return fitted(path, read_checkpoint(path), expected)


def read_checkpoint(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint by name.

    The file is safetensors, or a state dict of `torch.save`, or the dict of the public trainer
    (meta-recsys/generative-recommenders, `research/trainer/train.py`). That dict has the state dict under
    `model_state_dict`. DistributedDataParallel puts `module.` before every name. The content decides the
    format, since the public trainer's files have no suffix. No code in it is executed.

    Raises:
        UserError: The file cannot be read, is cut short, or holds pickled objects.
    """
    fix = "give a .safetensors file, or a state dict that torch.save wrote"
    try:
        size_of(path)
        with path.open("rb") as stream:
            start = stream.read(9)
    except OSError as error:
        raise UserError("weights", str(path), f"cannot be read ({error.strerror})", fix) from error
    if start[8:9] == b"{":
        return read_safetensors(path)
    if not start.startswith((b"PK", b"\x80")):
        problem = "starts like neither of the two kinds of checkpoint" if start else "is empty"
        raise UserError("weights", str(path), problem, fix)
    if start.startswith(b"PK"):
        _check_sums(path, fix)
    try:
        _check_names(path, start.startswith(b"PK"))
        with warnings.catch_warnings():
            # The error below says more than a warning of PyTorch.
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken or hostile file may raise any error
        kind = _OBJECT.search(str(error))
        if kind is not None:
            fix = "save model.state_dict(), or a .safetensors file"
            problem = f"holds an object of {kind[1]}, and is no state dict"
            raise UserError("weights", str(path), problem, fix) from error
        reason = _ADVICE.split(str(error).strip().split("\n")[0])[0].rstrip()
        problem = f"is cut short, or holds objects other than tensors ({type(error).__name__}: {reason})"
        raise UserError("weights", str(path), problem, fix) from error
    return _state_dict(path, content, fix)


def fitted(
    path: Path,
    weights: Mapping[str, torch.Tensor],
    expected: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint in a model's types.

    A tensor has the expected type, or a floating-point type that fits into it without loss: float16 and
    bfloat16 become float32. A float64 checkpoint is refused, since rounding changes it.

    Args:
        path: The checkpoint.
        weights: Its tensors.
        expected: Shapes and types of the model's tensors, see `layout`.

    Raises:
        UserError: Tensors are missing, unknown, not finite, or have another shape or type.
            The message has the names of both sides.
    """
    missing, extra = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
    sides = [(missing, "only in the model"), (extra, "only in the file")]
    names = [f"{side}: {some(names)}" for names, side in sides if names]
    shapes = [
        f"{name} is {list(weights[name].shape)} in the file and {list(shape)} in the model"
        for name, (shape, _) in expected.items()
        if name in weights and _is_dense(weights[name]) and tuple(weights[name].shape) != shape
    ]
    _refuse(path, [*names, *shapes] if names else [], "has not the model's tensors")
    # Other layouts have neither shapes nor values in this sense.
    layouts = [f"{name} is {_kind(tensor)}" for name, tensor in weights.items() if not _is_dense(tensor)]
    _refuse(path, layouts, "has tensors of another layout", "save them dense, in the model's types")
    _refuse(path, shapes, "has tensors of another shape")
    types = [
        f"{name} is {_kind(weights[name])} in the file and {dtype_name(dtype)} in the model"
        for name, (_, dtype) in expected.items()
        if not _fits(weights[name], dtype)
    ]
    _refuse(path, types, "has tensors of another type", "save it in the model's types")
    weights = {name: weights[name].detach().to(dtype).contiguous() for name, (_, dtype) in expected.items()}
    not_finite = []
    for name, tensor in weights.items():
        bad = torch.nonzero(~torch.isfinite(tensor))
        if len(bad):
            index = bad[0].tolist()
            not_finite.append(f"{name} has {len(bad)}, the first {tensor[tuple(index)].item()} at {index}")
    _refuse(path, not_finite, "has NaN or Inf", "use a checkpoint from before training diverged")
    return weights


def _check_sums(path: Path, fix: str) -> None:
    """Compare the checksums of an archive that `torch.save` wrote; `torch.load` does not read them."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except Exception as error:  # a broken or hostile file may raise any error
        reason = str(error) or type(error).__name__
        raise UserError("weights", str(path), f"is cut short or damaged ({reason})", fix) from error
    if damaged is not None:
        raise UserError(
            "weights", str(path), f"is damaged: {damaged} does not have its checksum", "save or copy it again"
        )


def _check_names(path: Path, packed: bool) -> None:
    """Refuse pickles with long names of objects: PyTorch's message takes the square of the length in time.

    Raises:
        ValueError: A name is too long, or a pickle is damaged.
    """
    with path.open("rb") as file:
        if not packed:
            for _ in range(_LEGACY_PICKLES):
                _check_names_in(file)
            return
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                # PyTorch tells no capital letters from small ones here.
                if member.filename.lower().endswith(".pkl"):
                    with archive.open(member) as pickled:
                        _check_names_in(pickled)


def _check_names_in(pickled: IO[bytes]) -> None:
    for operation, argument, _ in pickletools.genops(pickled):
        if operation.name == "GLOBAL" and len(argument) > _LONGEST_NAME:
            raise ValueError(f"the name of an object has {len(argument)} characters")


def _state_dict(path: Path, content: Any, fix: str) -> dict[str, torch.Tensor]:
    if isinstance(content, dict) and isinstance(content.get("model_state_dict"), dict):
        content = content["model_state_dict"]
    if not isinstance(content, dict):
        raise UserError("weights", str(path), f"holds a {type(content).__name__}, not a state dict", fix)
    others = [
        f"{key!r} ({type(value).__name__})" for key, value in content.items() if not _is_entry(key, value)
    ]
    if others:
        raise UserError("weights", str(path), f"holds entries that are no named tensors: {some(others)}", fix)
    if content and all(name.startswith("module.") for name in content):
        content = {name.removeprefix("module."): tensor for name, tensor in content.items()}
    return dict(content)


def _is_entry(key: Any, value: Any) -> bool:
    return isinstance(key, str) and isinstance(value, torch.Tensor)


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a file. Raises `UserError`, also for two tensors of one name."""
    fix = "give a complete safetensors file"
    try:
        tensors = safetensors.torch.load_file(path)
    except OSError as error:
        raise UserError("weights", str(path), f"cannot be read ({error.strerror or error})", fix) from error
    except safetensors.SafetensorError as error:
        raise UserError("weights", str(path), f"is cut short or not safetensors ({error})", fix) from error
    with path.open("rb") as stream:
        header = stream.read(int.from_bytes(stream.read(8), "little"))
    repeated = _repeated(header)
    _refuse(path, repeated, "has names more than once in its header", fix)
    return tensors


def _repeated(header: bytes) -> list[str]:
    """Keys that an object of a JSON text has more than once."""
    repeated: list[str] = []

    def read(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        counts = collections.Counter(key for key, _ in pairs)
        repeated.extend(key for key, count in counts.items() if count > 1)
        return dict(pairs)

    json.loads(header, object_pairs_hook=read)
    return repeated


def _fits(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    both_float = tensor.is_floating_point() and dtype.is_floating_point
    return tensor.dtype == dtype or (both_float and torch.promote_types(tensor.dtype, dtype) == dtype)


def _kind(tensor: torch.Tensor) -> str:
    return dtype_name(tensor.dtype) + ("" if _is_dense(tensor) else " that is not dense")


def _is_dense(tensor: torch.Tensor) -> bool:
    is_special = tensor.is_quantized or tensor.is_meta or tensor.is_nested
    return tensor.layout == torch.strided and not is_special


def _refuse(
    path: Path, findings: list[str], problem: str, fix: str = "use the case that it was trained with"
) -> None:
    if findings:
        raise UserError("weights", str(path), f"{problem} ({some(findings, '; ')})", fix)


def some(names: list[str], separator: str = ", ") -> str:
    """The first five names, and the number of the others."""
    more = f"{separator}and {len(names) - 5} more" if len(names) > 5 else ""
    return separator.join(names[:5]) + more
