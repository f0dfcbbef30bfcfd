"""The folder that `reproduce.py` needs beside it."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from parity.base.errors import UserError
from parity.base.precision import dtype_name
from parity.base.trees import map_tree
from parity.capture.captures import TensorKey
from parity.case import Case
from parity.studies.shrink.smallest import Failure
from parity.verdict.explanation import explain_alone

SCRIPT = Path(__file__).parent / "reproduce.py"


def write(failure: Failure, folder: Path) -> None:
    """Write a failing module, or the model, with all that it needs into a new folder.

    Raises:
        UserError: The folder exists, or cannot be written.
    """
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise UserError(
            "--shrink", str(folder), f"cannot be made ({error.strerror})", "give a folder that does not exist"
        ) from error
    run, call = failure.run, failure.call
    used = {leaf.key for leaf in _leaves(failure) if isinstance(leaf, TensorKey)}
    inputs = {key: _as(failure.inputs[key], run.precision.dtype) for key in sorted(used)}
    save_file(inputs, folder / "inputs.safetensors")
    save_file(dict(run.weights), folder / "weights.safetensors")
    oracle = failure.oracle
    save_file(
        {
            "oracle": oracle.to(torch.float64).contiguous(),
            "reference": run.reference.tensors[failure.row.tap].to(torch.float64).contiguous(),
            "counts": torch.from_numpy(failure.evidence.counted(failure.row.tap, tuple(oracle.shape))),
        },
        folder / "expected.safetensors",
    )
    verdict = failure.verdict
    problem = {
        "case": failure.case.reference.model_dump(),
        "dtype": dtype_name(run.precision.dtype),
        "module": call.path,
        "method": call.method,
        "kind": call.kind,
        "args": map_tree(call.args, _leaf),
        "kwargs": map_tree(call.kwargs, _leaf),
        "result": failure.result,
        "limit": {
            "l2": verdict.limit.l2,
            "largest": verdict.limit.largest,
            "scale_error": verdict.limit.scale_error,
        },
        "reference": {"l2": verdict.reference.l2, "largest": verdict.reference.largest},
        "reason": verdict.reason,
        "explanation": list(explain_alone(failure.evidence, failure.port, failure.row)),
    }
    (folder / "problem.json").write_text(json.dumps(problem, indent=1) + "\n")
    for package in _packages(failure.case):
        source = Path(importlib.import_module(package).__file__ or "")
        if source.name == "__init__.py":
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source.parent, folder / package, ignore=ignored)
        else:
            shutil.copy(source, folder)
    shutil.copy(SCRIPT, folder)


def _packages(case: Case) -> set[str]:
    """Top packages that building the port imports: the engine's, the case's own, and its `packages`."""
    return {"parity", case.reference.target.split(":")[0].split(".")[0], *case.packages}


def _leaves(failure: Failure) -> list:
    found: list = []
    map_tree([failure.call.args, failure.call.kwargs], found.append)
    return found


def _leaf(leaf: object) -> object:
    return {"tensor": leaf.key} if isinstance(leaf, TensorKey) else leaf


def _as(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return (tensor.to(dtype) if tensor.is_floating_point() else tensor).contiguous()
