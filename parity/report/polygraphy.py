"""A saved run in Polygraphy's own formats, for `polygraphy run`.

    <case>/onnx/<precision>/model.onnx|model.onnx.data      dense reference; see `parity.runners.onnx.export`
    <batch>/<precision>/polygraphy/inputs.json              batch, by the names of the model's inputs
    <batch>/<precision>/polygraphy/outputs_<runner>.json    a runner's outputs, by the names of the model's
    <batch>/<precision>/polygraphy/README.txt               command with tolerances, and missing outputs

Polygraphy's library writes the JSON. Output names match the model's, since Polygraphy pairs other names by
position.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from parity.base.precision import Precision
from parity.capture.names import TapName
from parity.capture.store import is_saved, open_capture
from parity.case import Case, CaseReference, load_case
from parity.execution.commands import Commands
from parity.execution.folder import CaseFolder, PrecisionFolder
from parity.execution.record import ORACLE, REFERENCE, Record, RunnerFailure, read_record
from parity.execution.scheduler import Worker
from parity.inputs.arrays import load
from parity.inputs.weights import load_export
from parity.runners.base import Unavailable
from parity.verdict.rule import judge
from parity.verdict.sampling_error import RoundingSamples

_README = """\
Inputs and outputs of one batch, in Polygraphy's formats. These commands compare the outputs of PyTorch with
the ONNX model's. Run them in this folder:

{commands}

TensorRT-RTX needs POLYGRAPHY_USE_TENSORRT_RTX=1 in the environment. NVIDIA_TF32_OVERRIDE=0 keeps TensorRT
from rounding the factors of float32 products. A tolerance is twice the verdict's limit for that output. Two
passing runners differ by at most this much, except at a discontinuity within round-off.

{runners}
"""
_ONNXRT = "--onnxrt"
_TRT = "--trt --strongly-typed --input-shapes {shapes}"
_COMMAND = """\
    polygraphy run {model} {backend} \\
        --load-inputs inputs.json --load-outputs outputs_torch.json --rtol 0 \\
        --atol {tolerances}
"""
_BFLOAT16 = """
The files hold bfloat16 tensors of PyTorch, since NumPy has no bfloat16. Polygraphy needs torch to read them.
ONNX Runtime has no command: its CPU provider lacks bfloat16 kernels for this model.
"""


def write_polygraphy(case: Case, precision: Precision, folder: CaseFolder, worker: Worker) -> None:
    """Write the files in the reference's process, which has the memory, or the reason for their absence.

    Args:
        case: A case with complete batches in this precision.
        precision: The precision.
        folder: Folder of the case.
        worker: The runners' processes.
    """
    reference = worker.pool.get(REFERENCE, precision)
    try:
        with worker.scheduler.shared():
            reference.request(Commands.call, f"{__name__}:write", case.reference, precision, folder)
    except RunnerFailure as failure:
        readme = folder.onnx(precision.name) / "README.txt"
        readme.parent.mkdir(parents=True, exist_ok=True)
        readme.write_text(f"No ONNX model and no files for Polygraphy, or not all of them: {failure}\n")


def write(reference: CaseReference, precision: Precision, folder: CaseFolder) -> None:
    """Export the reference once and write the files of every batch of this precision.

    Args:
        reference: The case.
        precision: The precision.
        folder: The case's folder in a saved run.

    Raises:
        Unavailable: A package is missing.
    """
    try:
        import polygraphy.comparator
        import polygraphy.json  # noqa: F401

        from parity.runners.onnx.export import export, save_model, traced_batch
    except ImportError as error:
        raise Unavailable(f"{error}; `pip install polygraphy onnx onnxscript`") from error
    case, weights = load_case(reference), load_export(folder.weights)
    exported = export(case, precision, weights, traced_batch(case))
    save_model(exported.plain(), folder.onnx(precision.name) / "model.onnx")
    for batch in folder.collected(precision.name):
        _write_batch(case, precision, batch, read_record(batch.record))


def _write_batch(case: Case, precision: Precision, folder: PrecisionFolder, record: Record) -> None:
    from polygraphy.comparator import IterationResult, RunResults
    from polygraphy.json import save_json

    from parity.runners.onnx.export import feeds

    own = folder.polygraphy
    own.mkdir(exist_ok=True)
    for name in (REFERENCE, ORACLE):
        if not is_saved(folder.runner(name).tapped):
            reason = record.runners[name].reason
            (own / "README.txt").write_text(f"No files for Polygraphy: {name} did not run: {reason}\n")
            return
    inputs = feeds(case, load(folder.batch.inputs).arrays, precision.dtype)
    save_json([_arrays(inputs)], str(own / "inputs.json"))
    lines = []
    for name, runner in record.runners.items():
        if name == ORACLE:
            continue
        if not is_saved(folder.runner(name).untapped):
            lines.append(f"no outputs of {runner.label}: {runner.reason}")
            continue
        outputs = open_capture(folder.runner(name).untapped).tensors
        answer = IterationResult(_arrays(outputs), runner_name=runner.label)
        RunResults([(runner.label, [answer])]).save(str(own / f"outputs_{name}.json"))
        lines.append(f"outputs_{name}.json: {runner.label}")
    is_bfloat16 = precision.dtype is torch.bfloat16
    shapes = (f"{name}:{list(tensor.shape)}".replace(" ", "") for name, tensor in inputs.items())
    backends = [_TRT.format(shapes=" ".join(shapes))]
    if not is_bfloat16:
        backends.insert(0, _ONNXRT)
    tolerances = " ".join(f"{name}:{size:.3g}" for name, size in _tolerances(precision, folder).items())
    model = f"../../../onnx/{precision.name}/model.onnx"
    commands = (_COMMAND.format(model=model, backend=backend, tolerances=tolerances) for backend in backends)
    readme = _README.format(commands="".join(commands).rstrip(), runners="\n".join(lines))
    if is_bfloat16:
        readme += _BFLOAT16
    (own / "README.txt").write_text(readme)


def _arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """NumPy arrays, or PyTorch tensors for types that NumPy lacks. Polygraphy stores both."""
    return {
        name: tensor if tensor.dtype is torch.bfloat16 else np.asarray(tensor)
        for name, tensor in tensors.items()
    }


def _tolerances(precision: Precision, folder: PrecisionFolder) -> dict[str, float]:
    """Largest difference of elements of two passing runners: twice the limit to the oracle, by output."""
    reference = open_capture(folder.runner(REFERENCE).tapped)
    oracle = open_capture(folder.runner(ORACLE).tapped).tensors
    longest_sum = max(reference.longest_sums.values(), default=1)
    sizes = {}
    for name in open_capture(folder.runner(REFERENCE).untapped).tensors:
        exact, reference_output = oracle[name], reference.tensors[name]
        sampled = str(TapName.parse(name).of_samples())
        samples = RoundingSamples(oracle[sampled]) if sampled in oracle else None
        limit = judge(
            exact, reference_output, reference_output, precision, longest_sum, rounding_samples=samples
        ).limit
        sizes[name] = 2 * limit.largest * float(exact.double().abs().max())
    return sizes
