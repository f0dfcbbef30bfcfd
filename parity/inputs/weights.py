"""Weights: drawn or loaded once, exported with a manifest, and the same for every runner.

A set of weights is a whole state dict: every parameter and buffer by its public name, parameters in float32.
The mapping to a model is a bijection: no tensor is skipped, renamed or reshaped.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from parity.base import real_numbers
from parity.base.errors import UserError
from parity.base.files import parse_json, write_new
from parity.base.memory import require
from parity.base.precision import dtype_name
from parity.case import Case
from parity.case.contract import scale_of, values_of
from parity.case.pairing import require_fitting
from parity.case.plain_models import in_place_of_model, require_plain
from parity.case.users_code import of_case
from parity.inputs.checkpoints import fitted, layout, read_checkpoint, read_safetensors, some
from parity.inputs.weight_scales import is_statistic, role_scale, statistic

SCHEMA = "parity.weights/1"
_TENSORS, _MANIFEST = "weights.safetensors", "manifest.json"

WeightScale = Callable[[str, torch.Tensor], float | torch.Tensor | None]
InitialValues = Callable[[str, torch.Tensor], torch.Tensor | None]


def built_reference(case: Case) -> torch.nn.Module:
    """The reference of a case. Raises `UserError` where `build_reference` raises, or returns no module."""
    with of_case(case, "build_reference"):
        model: object = case.build_reference()
    if not isinstance(model, torch.nn.Module):
        returned, fix = in_place_of_model(model, "torch.nn.Module")
        raise UserError("case", case.name, f"has no reference: build_reference returns {returned}", fix)
    return model


def case_weights(
    case: Case, checkpoint: Path | None = None, arguments: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[dict[str, torch.Tensor], str]:
    """The float32 weights of a case, from a checkpoint or from its seed, and their source in words.

    Args:
        case: The case.
        checkpoint: Trained weights; None for initial ones.
        arguments: The entry's arguments, which the reference has to take, by the words for their origin.

    Raises:
        UserError: The weights need more than the available memory; the reference is no plain module, or does
            not take the arguments; or see `load_checkpoint`.
    """
    require("case", case.name, case.least_bytes()[0], "give smaller sizes")
    model = built_reference(case)
    require_plain("case", case.name, model)
    if type(case).call is Case.call:
        for origin, of_batch in (arguments or {}).items():
            require_fitting(model, case.entry, of_batch, origin)
    trained = None if checkpoint is None else read_checkpoint(checkpoint)
    scales = set(filter(case.is_scale, model.state_dict()))
    needs_scales = scales and not (trained is not None and scales & trained.keys())
    plain = case.quantised({}) if needs_scales else case
    if needs_scales:
        model = plain.build_reference()
    if checkpoint is not None and trained is not None:
        weights, source = fitted(checkpoint, trained, layout(model.state_dict())), str(checkpoint)
    elif case.initial == "own":
        weights, source = own_weights(model), "the model's own"
    else:
        # Scales may follow the schemes, which the case without quantisation does not have.
        scale, values = (functools.partial(hook, case) for hook in (scale_of, values_of))
        weights, source = initial_weights(model, plain.seed, scale, values), f"initial, seed {plain.seed}"
    if not needs_scales:
        return weights, source
    calibrated = "" if checkpoint is None else ", with scales of a calibration"
    return case.calibrated(weights), f"{source}{calibrated}"


def initial_weights(
    model: torch.nn.Module,
    seed: int,
    weight_scale: WeightScale | None = None,
    initial_values: InitialValues = lambda name, own: None,
) -> dict[str, torch.Tensor]:
    """Weights with which every module of the model shows in its output.

    Normal, with the scale of each parameter's role and shape (`parity.inputs.weight_scales`). The row of a
    padding id is drawn like any other: masks have to remove it. Buffers keep their values, but for statistics
    of norms. `initial_values` replaces either. Each tensor has its own stream of random numbers, from `seed`
    and its name. A new parameter therefore changes no other.

    Args:
        model: A model on any device.
        seed: 0 or more.
        weight_scale: Scales in place of those by role, see `Case.weight_scale`.
        initial_values: See `Case.initial_values`.

    Returns:
        A state dict, contiguous, on the CPU; parameters in float32.
    """
    first: dict[int, str] = {}
    weights: dict[str, torch.Tensor] = {}
    for name, buffer in model.named_buffers(remove_duplicate=False):
        # A shared tensor has the values of its first name.
        shared = first.setdefault(id(buffer), name)
        if shared != name:
            weights[name] = weights[shared].clone()
            continue
        weights[name] = _chosen(initial_values, name, _initial_buffer(name, buffer, seed))
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), name) != name:
            weights[name] = weights[first[id(parameter)]].clone()
            continue
        scale = None if weight_scale is None else weight_scale(name, parameter)
        if scale is None:
            owner, _, attribute = name.rpartition(".")
            scale = role_scale(model.get_submodule(owner), attribute, parameter)
        # A number alone is no array.
        shape = tuple(parameter.shape) or (1,)
        if parameter.is_complex():
            shape = (*shape, 2)
        values = _normal(name, shape, seed)
        weights[name] = torch.from_numpy(values * np.float32(scale))
        if parameter.is_complex():
            weights[name] = torch.view_as_complex(weights[name])
        weights[name] = _chosen(initial_values, name, weights[name].reshape(parameter.shape))
    state = model.state_dict()
    return {name: _stored(weights[name].reshape(tensor.shape)) for name, tensor in state.items()}


def _chosen(initial_values: InitialValues, name: str, own: torch.Tensor) -> torch.Tensor:
    """The values of `initial_values` on the CPU, or a tensor's own in place of None."""
    given = initial_values(name, own)
    return own if given is None else given.detach().cpu().clone()


def _initial_buffer(name: str, buffer: torch.Tensor, seed: int) -> torch.Tensor:
    """A buffer's own values; of a norm's statistic drawn ones."""
    if not (buffer.is_floating_point() and is_statistic(name)):
        return buffer.detach().cpu().clone()
    return torch.from_numpy(statistic(name, _normal(name, tuple(buffer.shape), seed)))


def _normal(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Normal float32 numbers of a tensor's own stream."""
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return np.random.default_rng([seed, key]).standard_normal(shape, dtype=np.float32)


def _stored(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor of a type that a file of weights has: complex numbers in float32."""
    return (
        tensor.to(real_numbers.complex_dtype(torch.float32)) if tensor.is_complex() else tensor
    ).contiguous()


def own_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copies of a model's own weights, contiguous, on the CPU; floating-point tensors in float32."""
    return {
        name: _stored(
            tensor.detach().to("cpu", torch.float32 if tensor.is_floating_point() else None, copy=True)
        )
        for name, tensor in model.state_dict().items()
    }


def rounded(weights: Mapping[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The weights with the numbers of every tensor `real_numbers.rounded`.

    The oracle's weights are rounded to the tested precision, then to float64.
    """
    return {name: real_numbers.rounded(tensor, dtype) for name, tensor in weights.items()}


def digest(weights: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over every tensor's name, type, shape and bytes."""
    return _digest_of(_entries(weights))


def export(weights: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Write `weights.safetensors` and then `manifest.json`, which completes the export.

    The manifest lists name, shape, type and hash of each tensor. Its list of transforms (transposes, splits)
    between these tensors and the model's is empty.

    Raises:
        UserError: The folder cannot be written or holds other weights, which do not change.
    """
    manifest = {"schema": SCHEMA, "file": _TENSORS, "tensors": _entries(weights), "transforms": []}
    write_new(folder / _TENSORS, safetensors.torch.save(dict(weights)))
    write_new(folder / _MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())


def load_export(folder: Path) -> dict[str, torch.Tensor]:
    """Read an export, and check every tensor against the manifest.

    Raises:
        UserError: A file is missing, cut short or changed, or the manifest has another schema.
    """
    fix = "give a folder that a run with --save wrote, or save again"
    path = folder / _MANIFEST
    try:
        manifest = parse_json(path.read_bytes())
    except OSError as error:
        raise UserError("weights", str(path), f"cannot be read ({error.strerror})", fix) from error
    except ValueError as error:
        raise UserError("weights", str(path), f"is not JSON ({error})", fix) from error
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    if schema != SCHEMA:
        raise UserError("weights", str(path), f"has schema {schema}, not {SCHEMA}", fix)
    if manifest.get("transforms") != []:
        problem = f"declares transforms {manifest.get('transforms')}, none is known"
        raise UserError("weights", str(path), problem, fix)
    weights = read_safetensors(folder / _TENSORS)
    declared, actual = (
        {entry["name"]: entry for entry in e} for e in (manifest["tensors"], _entries(weights))
    )
    changed = sorted(name for name in declared | actual if declared.get(name) != actual.get(name))
    if changed:
        raise UserError(
            "weights",
            str(folder),
            f"differs from its manifest in {len(changed)} tensors: {some(changed)}",
            fix,
        )
    return weights


def exported_digest(folder: Path) -> str:
    """The `digest` of exported weights, of which one tensor at a time is in memory.

    Raises:
        UserError: The file cannot be read.
    """
    path = folder / _TENSORS
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            entries = [_entry(name, file.get_tensor(name)) for name in sorted(file.keys())]
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError("weights", str(path), f"cannot be read ({error})", "run again") from error
    return _digest_of(entries)


def declared_digest(folder: Path) -> str:
    """The `digest` of exported weights as their manifest declares them.

    Raises:
        UserError: The manifest cannot be read.
    """
    path = folder / _MANIFEST
    try:
        return _digest_of(parse_json(path.read_bytes())["tensors"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError("weights", str(path), f"cannot be read ({error})", "run again") from error


def present_digests(folder: Path) -> dict[Path, str | None]:
    """The `digest` that each file of an export tells, by the files that are there; None for a damaged one."""
    digests: dict[Path, str | None] = {}
    for name, read in ((_TENSORS, exported_digest), (_MANIFEST, declared_digest)):
        if (path := folder / name).exists():
            try:
                digests[path] = read(folder)
            except UserError:
                digests[path] = None
    return digests


def _digest_of(entries: list[dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def _entries(weights: Mapping[str, torch.Tensor]) -> list[dict[str, Any]]:
    return [_entry(name, weights[name]) for name in sorted(weights)]


def _entry(name: str, tensor: torch.Tensor) -> dict[str, Any]:
    return {
        "name": name,
        "shape": list(tensor.shape),
        "dtype": dtype_name(tensor.dtype),
        "sha256": hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy()).hexdigest(),
    }
