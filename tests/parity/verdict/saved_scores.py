"""A saved batch of a case with a table, a block and an output, for tests of judging."""

import numpy as np
import torch

from parity.capture.captures import Capture, ModuleCall, TensorKey
from parity.capture.store import save_capture
from parity.case import Case
from parity.execution.folder import CaseFolder
from parity.execution.record import ORACLE, REFERENCE, Record, RunnerRecord
from parity.inputs.arrays import CaseInputs, save
from parity.verdict.batch import judge_batch

B, N, D = 40, 4, 5
PORT, OUTPUT, CHECK = "tripy", "score.out", "incremental.out"
LENGTHS = np.arange(B) % N + 1
VALID = np.arange(N) < LENGTHS[:, None]


class Scores(Case):
    """Padded sequences with one block; bits of the argument are at a discontinuity."""

    name = "scores"
    entry = "score"
    incremental_outputs = {CHECK: OUTPUT}

    def build_reference(self):
        raise NotImplementedError

    build_port = make_inputs = build_reference

    def valid_rows(self, arrays):
        return {N: np.arange(N) < arrays["lengths"][:, None]}

    def boundaries(self):
        return {"Block": lambda x, limit: x.numpy() > limit}

    def gaps(self):
        return {"Table": "no such operation"}

    def is_causal(self):
        return True


def _tensor(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


INPUT = torch.zeros(B, N, D)
INPUT[0, 0, 0] = 9.0
TENSORS = {"table": _tensor(1, B, N, D), "block": _tensor(2, B, N, D), OUTPUT: _tensor(3, B, D)}
CALLS = [
    ModuleCall("table", "table", "Table", [], {}, ("table",)),
    ModuleCall("block", "block", "Block", [TensorKey("x")], {"limit": 8.0}, ("block",)),
]


def _wide(tensors):
    return {name: tensor.double() for name, tensor in tensors.items()}


def saved_batch(tmp_path):
    """A batch in fp32 with the captures of the reference, the oracle and a port without the table."""
    case = CaseFolder(tmp_path / "scores")
    batch = case.batch(0)
    arrays = {"ids": np.zeros((B, N), np.int64), "lengths": LENGTHS}
    save(CaseInputs(arrays), batch.inputs)
    save(CaseInputs(arrays), batch.poisoned)
    precision = batch.precision("fp32")
    reference = Capture(
        dict(TENSORS),
        CALLS,
        {"x": INPUT},
        longest_sums={"table": 0, "block": 7},
        longest_sums_before={"table": 0, "block": 7},
    )
    modules = {name: TENSORS[name] for name in ("table", "block")}
    write(precision, REFERENCE, tapped=reference, untapped=of(OUTPUT), poisoned=Capture(dict(TENSORS)))
    write(precision, REFERENCE, incremental=Capture({CHECK: TENSORS[OUTPUT]}))
    write(precision, ORACLE, tapped=Capture(_wide(TENSORS)), isolated=Capture(_wide(modules)))
    taps = {name: tensor for name, tensor in TENSORS.items() if name != "table"}
    write(precision, PORT, tapped=Capture(dict(taps)), poisoned=Capture(dict(taps)), untapped=of(OUTPUT))
    write(precision, PORT, isolated=of("block"), incremental=Capture({CHECK: TENSORS[OUTPUT]}))
    write(precision, "onnx", untapped=of(OUTPUT))
    return precision


def of(name, factor=1.0):
    """A capture of one tensor, times a factor."""
    return Capture({name: TENSORS[name] * factor})


def write(precision, name, **captures):
    """Save captures of a runner by the file's stem."""
    folder = precision.runner(name)
    folder.path.mkdir(parents=True, exist_ok=True)
    for stem, capture in captures.items():
        save_capture(capture, getattr(folder, stem))


def judged(folder, **records):
    """Judgements by runner; `records` replaces the records of runners."""
    defaults = {
        REFERENCE: RunnerRecord(label="torch"),
        ORACLE: RunnerRecord(label="oracle"),
        PORT: RunnerRecord(label="port"),
        "onnx": RunnerRecord(label="onnx", taps_modules=False, appends=False),
    }
    record = Record(precision="fp32", runners=defaults | records)
    folder.record.write_text(record.model_dump_json())
    return judge_batch(Scores(), folder, "typical")


def verdicts(judgements):
    """Verdicts by runner."""
    return {name: judgement.verdict for name, judgement in judgements.items()}
