"""The folder of a failure, with `reproduce.py` and all of its data."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from parity.base.code import file_digest
from parity.base.errors import UserError
from parity.base.files import making
from parity.base.locks import Locked
from parity.base.precision import dtype_name
from parity.base.sealed import sealed
from parity.base.trees import encode_tree, leaves
from parity.capture.captures import TensorKey
from parity.capture.values import encode_value
from parity.studies.packages import packages_of, path_of
from parity.studies.shrink.search import Failure
from parity.verdict.explanation import explain_alone

SCRIPT = Path(__file__).parent / "reproduce.py"


def write(failure: Failure, folder: Path) -> None:
    """Write a failing module or model with its data and code into a new folder.

    Raises:
        UserError: The folder exists, is being made, or cannot be written; or an argument cannot be stored.
    """
    if opaque := failure.call.opaque:
        name, kind = next(iter(opaque.items()))
        problem = f"receives {name}, a {kind}, which cannot be stored"
        raise UserError("shrink", failure.call.tap, problem, "read the report of `run`")
    try:
        with making(folder) as unfinished:
            _write(failure, unfinished)
    except Locked as error:
        raise UserError("shrink", str(folder), str(error), "wait for its end, or choose another") from error
    except OSError as error:
        raise UserError(
            "shrink", str(folder), f"cannot be made ({error.strerror})", "give a folder that does not exist"
        ) from error


def _write(failure: Failure, folder: Path) -> None:
    _write_tensors(failure, folder)
    digests = {path.stem: file_digest(path) for path in sorted(folder.glob("*.safetensors"))}
    (folder / "problem.json").write_bytes(sealed({**_problem(failure), "digests": digests}))
    for package in packages_of(failure.case):
        source = path_of(package)
        if source.is_dir():
            shutil.copytree(source, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder)
    shutil.copy(SCRIPT, folder)


def _write_tensors(failure: Failure, folder: Path) -> None:
    run, call = failure.run, failure.call
    used = {leaf.key for _, leaf in leaves([call.args, call.kwargs]) if isinstance(leaf, TensorKey)}
    inputs = {key: failure.inputs[key].contiguous() for key in sorted(used)}
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


def _problem(failure: Failure) -> dict[str, Any]:
    """The call and its limits, for `reproduce.py`."""
    call, verdict = failure.call, failure.verdict
    return {
        "case": failure.case.reference.model_dump(),
        "dtype": dtype_name(failure.run.precision.dtype),
        "module": call.path,
        "method": call.method,
        "kind": call.kind,
        "args": encode_tree(call.args, _leaf),
        "kwargs": encode_tree(call.kwargs, _leaf),
        "inside": {name: [axes, dtype_name(dtype)] for name, (axes, dtype) in failure.inside.items()},
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


def _leaf(leaf: object) -> object:
    return {"tensor": leaf.key} if isinstance(leaf, TensorKey) else encode_value(leaf)
