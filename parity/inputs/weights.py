"""Weights: made once, exported with a manifest, read from checkpoints, and the same for every runner.

A set of weights is a whole state dict: every parameter and every buffer, by the public names, parameters
in float32. The mapping to a model is a bijection; nothing is skipped, renamed or reshaped on the way.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch

from parity.base.errors import UserError
from parity.base.files import write_new
from parity.case import Case
from parity.inputs.weight_scales import scale

SCHEMA = "parity.weights/1"
_TENSORS, _MANIFEST = "weights.safetensors", "manifest.json"


def initial_weights(model: torch.nn.Module, seed: int) -> dict[str, torch.Tensor]:
    """Weights with which every module of the model shows in its output.

    Normal, each kind of parameter with the scale of `parity.inputs.weight_scales`. The row of the padding id
    is drawn like any other, as in the public code: masks have to remove it. Buffers keep their values. Each
    tensor has its own stream of random numbers, from ``seed`` and its name: a model that gains a parameter
    keeps the values of the others.

    Returns:
        A state dict, contiguous, on the CPU; parameters in float32.

    Raises:
        ValueError: a parameter whose role is not known here.
    """
    weights = {name: buffer.detach().cpu().clone() for name, buffer in model.named_buffers()}
    for name, parameter in model.named_parameters():
        key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
        values = np.random.default_rng([seed, key]).standard_normal(tuple(parameter.shape), dtype=np.float32)
        weights[name] = torch.from_numpy(values * np.float32(scale(name, parameter)))
    return {name: weights[name].contiguous() for name in model.state_dict()}


def case_weights(case: Case, checkpoint: Path | None = None) -> tuple[dict[str, torch.Tensor], str]:
    """The float32 weights of a case, from a checkpoint or from its seed, and their source in words.

    Raises:
        UserError: See `load_checkpoint`.
    """
    model = case.build_reference()
    if checkpoint is None:
        return initial_weights(model, case.seed), f"initial, seed {case.seed}"
    return load_checkpoint(checkpoint, layout(model.state_dict())), str(checkpoint)


def rounded(weights: Mapping[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The weights with every floating-point tensor in ``dtype``; integers and booleans as they are.

    Twice in a row, first to the tested precision and then to float64, it makes the oracle's weights.
    """
    return {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in weights.items()
    }


def layout(weights: Mapping[str, torch.Tensor]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and type of every tensor, by name: what ``load_checkpoint`` holds a file against."""
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in weights.items()}


def digest(weights: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over every tensor's name, type, shape and bytes."""
    return hashlib.sha256(json.dumps(_entries(weights)).encode()).hexdigest()


def export(weights: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Writes ``weights.safetensors`` and then ``manifest.json``, without which a folder is no export.

    The manifest lists name, shape, type and hash of each tensor, and the transforms (transposes, splits)
    between these tensors and the model's. There are none, and the list says so.

    Raises:
        UserError: the folder cannot be written or holds other weights, which stay as they are.
    """
    manifest = {"schema": SCHEMA, "file": _TENSORS, "tensors": _entries(weights), "transforms": []}
    write_new(folder / _TENSORS, safetensors.torch.save(dict(weights)))
    write_new(folder / _MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())


def load_export(folder: Path) -> dict[str, torch.Tensor]:
    """Reads what ``export`` wrote, and checks every tensor against the manifest.

    Raises:
        UserError: a file that is missing, cut short or changed, or a manifest of another kind.
    """
    fix = "give a folder that a run with --save wrote, or save again"
    path = folder / _MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError("weights", str(path), f"cannot be read ({error.strerror})", fix) from error
    except ValueError as error:
        raise UserError("weights", str(path), f"is not JSON ({error})", fix) from error
    found = manifest.get("schema") if isinstance(manifest, dict) else None
    if found != SCHEMA:
        raise UserError("weights", str(path), f"has schema {found}, not {SCHEMA}", fix)
    if manifest["transforms"]:
        raise UserError(
            "weights", str(path), f"declares transforms {manifest['transforms']}, none is known", fix
        )
    weights = _read_safetensors(folder / _TENSORS)
    declared, actual = (
        {entry["name"]: entry for entry in e} for e in (manifest["tensors"], _entries(weights))
    )
    changed = sorted(name for name in declared | actual if declared.get(name) != actual.get(name))
    if changed:
        raise UserError(
            "weights",
            str(folder),
            f"differs from its manifest in {len(changed)} tensors: {_some(changed)}",
            fix,
        )
    return weights


def load_checkpoint(
    path: Path, expected: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
) -> dict[str, torch.Tensor]:
    """Reads a checkpoint strictly: the tensors of ``expected`` (see ``layout``) and no others.

    The file is safetensors, or what ``torch.save`` wrote: a state dict, or the public trainer's dict with
    the state dict under ``model_state_dict`` and, from DistributedDataParallel, ``module.`` before every
    name (meta-recsys/generative-recommenders, ``research/trainer/train.py``). Its content decides which,
    since the public trainer's files have no suffix. Nothing in it is executed.

    Types are the expected ones, or floating-point types that fit into them without loss: float16 and
    bfloat16 become float32. A float64 checkpoint is refused, because rounding it would change it.

    Raises:
        UserError: a file that cannot be read, is cut short, or holds pickled objects; tensors that are
            missing, too many, or have another shape or type; NaN or Inf. With the names of both sides.
    """
    weights = _read_checkpoint(path)
    missing, extra = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
    sides = [(missing, "only in the model"), (extra, "only in the file")]
    _refuse(
        path, [f"{side}: {_some(names)}" for names, side in sides if names], "has not the model's tensors"
    )
    shapes = [
        f"{name} is {list(weights[name].shape)} in the file and {list(shape)} in the model"
        for name, (shape, _) in expected.items()
        if tuple(weights[name].shape) != shape
    ]
    _refuse(path, shapes, "has tensors of another shape")
    types = [
        f"{name} is {_kind(weights[name])} in the file and {_dtype_name(dtype)} in the model"
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


def _read_checkpoint(path: Path) -> dict[str, torch.Tensor]:
    fix = "give a .safetensors file, or a state dict that torch.save wrote"
    try:
        with path.open("rb") as stream:
            start = stream.read(9)
    except OSError as error:
        raise UserError("weights", str(path), f"cannot be read ({error.strerror})", fix) from error
    if start[8:9] == b"{":
        return _read_safetensors(path)
    if not start.startswith((b"PK", b"\x80")):
        problem = "starts like neither of the two kinds of checkpoint" if start else "is empty"
        raise UserError("weights", str(path), problem, fix)
    try:
        with warnings.catch_warnings():
            # What a warning would say about the file, the error below says.
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler raises whatever a broken or hostile file leads it to
        reason = str(error).strip().split("\n")[0]
        problem = f"is cut short, or holds objects other than tensors ({type(error).__name__}: {reason})"
        raise UserError("weights", str(path), problem, fix) from error
    return _state_dict(path, content, fix)


def _state_dict(path: Path, content: Any, fix: str) -> dict[str, torch.Tensor]:
    if isinstance(content, dict) and isinstance(content.get("model_state_dict"), dict):
        content = content["model_state_dict"]
    if not isinstance(content, dict):
        raise UserError("weights", str(path), f"holds a {type(content).__name__}, not a state dict", fix)
    others = [
        f"{key!r} ({type(value).__name__})" for key, value in content.items() if not _is_entry(key, value)
    ]
    if others:
        raise UserError(
            "weights", str(path), f"holds entries that are no named tensors: {_some(others)}", fix
        )
    if content and all(name.startswith("module.") for name in content):
        content = {name.removeprefix("module."): tensor for name, tensor in content.items()}
    return dict(content)


def _is_entry(key: Any, value: Any) -> bool:
    return isinstance(key, str) and isinstance(value, torch.Tensor)


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    fix = "give a complete safetensors file"
    try:
        return safetensors.torch.load_file(path)
    except OSError as error:
        raise UserError("weights", str(path), f"cannot be read ({error.strerror or error})", fix) from error
    except safetensors.SafetensorError as error:
        raise UserError("weights", str(path), f"is cut short or not safetensors ({error})", fix) from error


def _fits(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        return False
    both_float = tensor.is_floating_point() and dtype.is_floating_point
    return tensor.dtype == dtype or (both_float and torch.promote_types(tensor.dtype, dtype) == dtype)


def _kind(tensor: torch.Tensor) -> str:
    dense = tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_meta
    return _dtype_name(tensor.dtype) + ("" if dense else " that is not dense")


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _entries(weights: Mapping[str, torch.Tensor]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "shape": list(weights[name].shape),
            "dtype": _dtype_name(weights[name].dtype),
            "sha256": hashlib.sha256(weights[name].reshape(-1).view(torch.uint8).numpy()).hexdigest(),
        }
        for name in sorted(weights)
    ]


def _refuse(
    path: Path, findings: list[str], problem: str, fix: str = "use the case that it was trained with"
) -> None:
    if findings:
        raise UserError("weights", str(path), f"{problem} ({_some(findings, '; ')})", fix)


def _some(names: list[str], separator: str = ", ") -> str:
    more = f"{separator}and {len(names) - 5} more" if len(names) > 5 else ""
    return separator.join(names[:5]) + more
