"""A saved run in Polygraphy's own formats, so that `polygraphy run` continues where the run stopped.

    <case>/onnx/<precision>/model.onnx|model.onnx.data      the dense reference; see
    `parity.runners.onnx.export`
    <batch>/<precision>/polygraphy/inputs.json              the batch, by the names of the model's inputs
    <batch>/<precision>/polygraphy/outputs_<runner>.json    what a runner answered, by those of its outputs
    <batch>/<precision>/polygraphy/README.txt               the command, with tolerances, and what is missing

The JSON is written by Polygraphy's own library. Outputs are read back by name: Polygraphy pairs names that do
not match by position, so they have to match.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from parity.base.precision import Precision
from parity.capture.names import TapName
from parity.capture.store import is_saved, open_capture
from parity.case import Case, CaseReference
from parity.execution.folder import CaseFolder, PrecisionFolder
from parity.execution.record import ORACLE, REFERENCE, Record, read_record
from parity.inputs.arrays import load
from parity.inputs.weights import load_export
from parity.runners.base import Unavailable
from parity.verdict.rule import judge
from parity.verdict.sampling_error import RoundingSamples

try:
    from polygraphy.comparator import IterationResult, RunResults
    from polygraphy.json import save_json

    from parity.runners.onnx.export import export, feeds, save_model
except ImportError as error:
    raise Unavailable(f"{error}; `pip install polygraphy onnx onnxscript`") from error

_README = """\
A batch and what runners made of it, in Polygraphy's formats. To go on from this folder:

{commands}

TensorRT-RTX takes POLYGRAPHY_USE_TENSORRT_RTX=1 in the environment; NVIDIA_TF32_OVERRIDE=0 there keeps
TensorRT from rounding the factors of float32 products. A tolerance is twice the limit of the verdict on that
output: two runners that pass differ by no more, save at a discontinuity within round-off.

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
bfloat16 tensors are stored as PyTorch's, since NumPy has none: Polygraphy needs torch to read them. No
command for ONNX Runtime, which has no bfloat16 kernels on the CPU for this model.
"""


def write(reference: CaseReference, precision: Precision, folder: CaseFolder) -> None:
    """Export the reference once and write the files of every batch that was run in this precision.

    Args:
        reference: The case.
        precision: The precision.
        folder: The case's folder in a saved run.
    """
    case, weights = reference.load(), load_export(folder.weights)
    save_model(export(case, precision, weights).plain(), folder.onnx(precision.name) / "model.onnx")
    for batch in folder.collected(precision.name):
        _write_batch(case, precision, batch, read_record(batch.record))


def _write_batch(case: Case, precision: Precision, folder: PrecisionFolder, record: Record) -> None:
    own = folder.polygraphy
    own.mkdir(exist_ok=True)
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
    commands = (_COMMAND.format(model=model, backend=each, tolerances=tolerances) for each in backends)
    readme = _README.format(commands="".join(commands).rstrip(), runners="\n".join(lines))
    if is_bfloat16:
        readme += _BFLOAT16
    (own / "README.txt").write_text(readme)


def _arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """As NumPy arrays where NumPy has the type, else as they are: Polygraphy stores both."""
    return {
        name: tensor if tensor.dtype is torch.bfloat16 else np.asarray(tensor)
        for name, tensor in tensors.items()
    }


def _tolerances(precision: Precision, folder: PrecisionFolder) -> dict[str, float]:
    """How far elements of two passing runners may lie apart: a limit on either side of the oracle."""
    reference = open_capture(folder.runner(REFERENCE).tapped)
    oracle = open_capture(folder.runner(ORACLE).tapped).tensors
    longest_sum = max(reference.longest_sums.values(), default=1)
    sizes = {}
    for name in open_capture(folder.runner(REFERENCE).untapped).tensors:
        exact, given = oracle[name], reference.tensors[name]
        sampled = str(TapName.parse(name).of_samples())
        samples = RoundingSamples(oracle[sampled]) if sampled in oracle else None
        limit = judge(exact, given, given, precision, longest_sum, rounding_samples=samples).limit
        sizes[name] = 2 * limit.largest * float(exact.double().abs().max())
    return sizes
