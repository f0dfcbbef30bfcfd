"""Faults in the port of DLRMv3 under two gates: MLPerf's three numbers, and the verdicts of this suite.

    python -m reference.train --case dlrmv3_streaming --out trained/
    python -m benchmarks.accuracy_gate --trained trained/ --out gate.jsonl

    python -m benchmarks.accuracy_gate --case dlrmv3_streaming_400m --device cuda --requests 96 --batch 8 \
        --judged 2 --trained large/ --out gate.jsonl

Serves generated requests with the trained weights, first from the right port and then with each fault of the
catalogues of DLRMv3. MLPerf's gate gets the predictions of all requests. The suite judges the first requests
module by module. It also judges the planned batches of two small cases: they ask more than requests do.

Appends a line of JSON for each port to the file of `--out`, which a second run continues, and prints a table.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

from cases.configured import ConfiguredCase
from cases.dlrmv3 import public_gate
from cases.dlrmv3.requests import settings_of
from cases.shipped import load_case
from datasets.dlrmv3 import in_order
from datasets.dlrmv3.generator import Settings
from datasets.errors import DataError
from parity.base.errors import UserError, check_names
from parity.base.files import parse_json, read_file
from parity.base.precision import PRECISIONS
from parity.coverage.source import swapped
from parity.execution.errors import error_text
from parity.in_process import CleanRun
from parity.inputs.checkpoints import layout, load_checkpoint
from parity.runners.tripy.lean_traces import lean_traces
from parity.runners.tripy.runner import TripyRunner
from parity.studies.fault_injection.bench import Bench
from parity.studies.fault_injection.handwritten import Edit, handwritten
from parity.verdict.comparison import compare
from parity.verdict.judgement import Diagnosis
from parity.verdict.task_metrics.candidates import (
    CALIBRATION_ERROR,
    Candidates,
    predictions_of,
    reordered_requests,
)
from reference.checkpoints import BEST
from reference.training_dlrmv3 import DEVICES, DLRMv3WithTables, with_tables

ROOT = Path(__file__).resolve().parents[1]
CATALOGUES = ("accuracy_gate_dlrmv3", "independent_dlrmv3")
SERVED_CASES = ("dlrmv3_streaming", "dlrmv3_streaming_400m")
PLANNED_CASES = ("dlrmv3_tiny", "dlrmv3_tiny_plain")
PREDICTIONS = "forward.predictions"
FP32 = PRECISIONS["fp32"]


class Service:
    """Generated requests in the benchmark's order, and the trained reference's predictions.

    Args:
        case: The case.
        trained: The folder of a training run of the case; None for the initial weights.
        device: The reference's, one of `DEVICES` of the training. The port takes the portable runtime's own.
        requests: Number of requests, a multiple of the batch.
        batch: Number of requests that are served at a time.
        judged: Number of requests that the suite judges.

    Raises:
        UserError: The folder has no weights of this case, or a number or the device does not fit.
    """

    def __init__(
        self, case: ConfiguredCase, trained: Path | None, requests: int, batch: int, judged: int, device: str
    ) -> None:
        self.case, self._device = case, device
        if batch < 1:
            raise UserError("--batch", batch, "is no number of requests", "give at least 1")
        if requests < 1 or requests % batch:
            raise UserError(
                "--requests", requests, f"is no multiple of the batch of {batch}", f"give one such as {batch}"
            )
        if not 0 < judged <= requests:
            raise UserError("--judged", judged, "is no number of the requests", f"give 1 to {requests}")
        settings = settings_of(case.config)
        try:
            self._requests = in_order.generated(
                settings, requests, case.model.max_uih_len, case.model.max_num_candidates
            )
        except DataError as error:
            raise UserError("--requests", requests, error.problem, error.fix) from error
        self._model = _model(case, settings, trained, device)
        self.is_candidate = self._requests.is_candidate()
        clicks = np.where(self.is_candidate, self._requests.labels, -1)
        self.labels = {"clicks": clicks, "requests": np.arange(requests)}
        self.weights = {
            name: tensor.detach().cpu() for name, tensor in self._model.dense.state_dict().items()
        }
        self._batches = [slice(first, first + batch) for first in range(0, requests, batch)]
        self.reference = np.concatenate([self._refer(self._arrays(rows)) for rows in self._batches])
        self._judged = judged

    def clean(self) -> CleanRun:
        """The suite's evidence on the first requests."""
        return CleanRun(self.case, FP32, self._arrays(slice(self._judged)), self.weights)

    def port(self) -> TripyRunner:
        """The port with the served weights, as its source is now."""
        port = TripyRunner()
        port.load(self.case, FP32, self.weights)
        return port

    def predictions(self, port: TripyRunner) -> np.ndarray:
        """(requests, T, 1) of a port."""
        return np.concatenate(
            [port.run(self._arrays(rows))[PREDICTIONS].double().numpy() for rows in self._batches]
        )

    def quality(self, predictions: np.ndarray) -> dict[str, float]:
        """MLPerf's three numbers, and the calibration error."""
        truth = Candidates(PREDICTIONS).truth(self.labels)
        flat = predictions_of(predictions, self.labels)
        over = {metric.name: metric.over for metric in Candidates(PREDICTIONS).metrics}
        usable = bool(((flat >= 0.0) & (flat <= 1.0)).all())
        error = float(over[CALIBRATION_ERROR](flat, truth)) if usable else float("nan")
        return {**public_gate.numbers(flat, truth), CALIBRATION_ERROR: error}

    def _arrays(self, rows: slice) -> dict[str, np.ndarray]:
        with torch.no_grad():
            embedded = self._model.embed(self._requests.rows(rows))
        arrays = {name: tensor.cpu().numpy() for name, tensor in embedded.items()}
        # Padding has no row of a table.
        valid_BH = np.arange(self.case.model.max_uih_len) < arrays["uih_lengths"][:, None]
        for name in ("uih_embeddings", "uih_category_embeddings"):
            arrays[name] = arrays[name] * valid_BH[..., None]
        return arrays

    def _refer(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        with torch.no_grad():
            tensors = {name: torch.tensor(array, device=self._device) for name, array in arrays.items()}
            return self._model.dense(**tensors).cpu().numpy()


def main(words: Sequence[str] | None = None) -> int:
    """Serve with each fault, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--case", choices=SERVED_CASES, default=SERVED_CASES[0], help="case with training data"
    )
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="of the reference")
    parser.add_argument("--trained", type=Path, required=True, help="folder of a training run")
    parser.add_argument("--out", type=Path, required=True, help="file for the lines of JSON")
    parser.add_argument("--requests", type=int, default=832, help="served requests, a multiple of --batch")
    parser.add_argument("--batch", type=int, default=64, help="requests that are served at a time")
    parser.add_argument("--judged", type=int, default=16, help="requests that the suite judges")
    parser.add_argument("--faults", default="", help="names; all by default")
    try:
        return _serve(parser.parse_args(words))
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


def _serve(arguments: argparse.Namespace) -> int:
    names = [name for name in arguments.faults.split(",") if name]
    rows = _read(arguments.out)
    faults = [edit for stem in CATALOGUES for edit in handwritten(ROOT / "cases/faults" / f"{stem}.yaml")]
    names = check_names("--faults", names, [fault.detail for fault in faults])
    wanted = [fault for fault in faults if fault.detail not in rows and (not names or fault.detail in names)]
    if arguments.device != "cpu" and not torch.cuda.is_available():
        raise UserError("--device", arguments.device, "is absent: PyTorch sees no GPU", "leave --device out")
    case, sizes = load_case(arguments.case), (arguments.requests, arguments.batch, arguments.judged)
    services = [Service(case, path, *sizes, arguments.device) for path in (arguments.trained, None)]
    with lean_traces(), _appending(arguments.out) as output:
        audit, untrained = Audit(services[0]), services[1]
        first: dict[str, Callable[[], dict[str, Any]]] = {
            "untrained reference": lambda: untrained.quality(untrained.reference),
            "trained reference": lambda: audit.expected,
            "right port": lambda: audit.row(None),
        }
        todo = {name: row for name, row in first.items() if name not in rows}
        todo |= {fault.detail: functools.partial(audit.row, fault) for fault in wanted}
        for name, row in todo.items():
            line = {"port": name, **row()}
            output.write(json.dumps(line) + "\n")
            output.flush()
            rows[name] = line
    print(table(list(rows.values())))
    return 0


class Audit:
    """Both gates on the right port, and on ports with a fault."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.expected = service.quality(service.reference)
        self._evidence = service.clean()
        right = compare(self._evidence.evidence, self._evidence.results(service.port()))
        output = right.tap(PREDICTIONS)
        assert right.passed, right.diagnosis.text
        assert output is not None
        assert output.accumulated is not None
        largest = float(np.abs(service.reference).max())
        # Either of two predictions may be off by its limit.
        self._least_gap = 2.0 * output.accumulated.limit.largest * largest

    @functools.cached_property
    def _benches(self) -> list[Bench]:
        return [Bench(load_case(name), FP32) for name in PLANNED_CASES]

    def row(self, fault: Edit | None) -> dict[str, Any]:
        """The numbers and verdicts of both gates on a port."""
        if fault is None:
            return self._served()
        with swapped(fault.module, fault.tree()):
            row = self._served()
        return {
            **row,
            "planned": next(filter(None, (_first_failure(one, fault) for one in self._benches)), ""),
        }

    def _served(self) -> dict[str, Any]:
        service = self._service
        try:
            port = service.port()
            predictions = service.predictions(port)
            diagnosis = compare(self._evidence.evidence, self._evidence.results(port)).diagnosis
        except Exception as error:  # noqa: BLE001, any exception of a faulty port is an outcome
            return {"problem": error_text(error)}
        quality = service.quality(predictions)
        return {
            **quality,
            "missed": list(public_gate.missed(quality, self.expected)),
            "largest_change": float(np.abs(predictions - service.reference)[service.is_candidate].max()),
            "reordered": reordered_requests(
                service.reference[..., 0], predictions[..., 0], service.is_candidate, self._least_gap
            ),
            "requests": len(predictions),
            "named": "" if diagnosis.kind == "none" else _place(diagnosis),
        }


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a table in Markdown."""
    lines = [
        "| port | NE | accuracy | AUC | MLPerf's gate | calibration error | largest change | requests in "
        "another order | this suite, same requests | this suite, planned batches |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        name, planned = row["port"].replace("_", " "), _verdict(row, "planned")
        if "problem" in row:
            cells = [name, *[""] * len(public_gate.REFERENCE), "raises", "", "", "", "raises", planned]
        else:
            numbers = [f"{row[number]:.5f}" for number in public_gate.REFERENCE]
            missed = _verdict({"missed": ", ".join(row["missed"])} if "missed" in row else {}, "missed")
            error = row[CALIBRATION_ERROR]
            calibration = "none" if math.isnan(error) else f"{error:.4f}"
            cells = [name, *numbers, missed, calibration, *_of_requests(row), planned]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _of_requests(row: Mapping[str, Any]) -> list[str]:
    if "named" not in row:
        return [""] * 3
    order = f"{row['reordered']} of {row['requests']}"
    return [f"{row['largest_change']:.1e}", order, _verdict(row, "named")]


def _verdict(row: Mapping[str, Any], field: str) -> str:
    """A verdict whose field says what fails; empty without the field."""
    if field not in row:
        return ""
    return f"fails: {row[field]}" if row[field] else "passes"


def _first_failure(bench: Bench, fault: Edit) -> str:
    """The place that the suite names for a fault in a case's planned batches; empty if all pass."""
    batches = bench.plan()
    with bench.faulty(fault, bench.port, FP32):
        for batch in batches:
            try:
                diagnosis = compare(batch.evidence, batch.results(bench.port)).diagnosis
            except Exception as error:  # noqa: BLE001, any exception of a faulty port is an outcome
                return error_text(error)
            if diagnosis.kind != "none":
                return _place(diagnosis)
    return ""


def _place(diagnosis: Diagnosis) -> str:
    return f"`{diagnosis.tap}`" if diagnosis.tap else diagnosis.text


def _model(case: ConfiguredCase, settings: Settings, trained: Path | None, device: str) -> DLRMv3WithTables:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = with_tables(case.model, settings).eval()
    if trained is not None:
        model.load_state_dict(load_checkpoint(trained / BEST, layout(model.state_dict())))
    return model.to(device)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    try:
        rows = [parse_json(line) for line in read_file(path).splitlines()]
        return {row["port"]: row for row in rows}
    except OSError as error:
        raise _not_written(path, error) from error
    except (ValueError, TypeError, KeyError) as error:
        raise UserError("--out", str(path), "has lines that no run wrote", "choose a new file") from error


def _appending(path: Path) -> TextIO:
    try:
        return path.open("a", encoding="utf-8")
    except OSError as error:
        raise _not_written(path, error) from error


def _not_written(path: Path, error: OSError) -> UserError:
    return UserError("--out", str(path), f"cannot be written ({error.strerror})", "choose a new file")


if __name__ == "__main__":
    sys.exit(main())
