"""Every module of DLRMv3 at full size on one GPU: 16,384 rows of history and 2,048 candidates.

    python benchmarks/gpu/dlrmv3_modules.py --out modules.json

`run_parity.py` writes and digests every tensor that a module receives or returns, and a mask of one user has
340 million elements. This program holds them on the GPU, and judges evenly spread rows of each result by the
same rule. The truth is the same: the dense reference in PyTorch, and the oracle, the reference in float64 on
the GPU, which gets the reference's inputs of each module. A batch is one user, so that float64 fits.

Prints a row a module and runner: verdict, errors of reference and port, and the least detectable error. Exit
code 1 if any verdict fails.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.timing import parsed, report  # noqa: E402
from cases.shipped import load_case  # noqa: E402
from parity.base.interruption import raisable  # noqa: E402
from parity.base.precision import PRECISIONS, Precision  # noqa: E402
from parity.capture.captures import Capture, ModuleCall, TensorKey  # noqa: E402
from parity.capture.torch_hooks import tapped  # noqa: E402
from parity.case import Arrays, Case  # noqa: E402
from parity.execution.errors import first_line  # noqa: E402
from parity.inputs.weights import case_weights  # noqa: E402
from parity.runners import make_runner  # noqa: E402
from parity.runners.base import Runner  # noqa: E402
from parity.runners.forms import computed_inside  # noqa: E402
from parity.runners.oracle.float64 import Float64Runner  # noqa: E402
from parity.runners.torch.eager import TorchRunner  # noqa: E402
from parity.verdict.rule import judge  # noqa: E402

MOST_JUDGED = 1 << 17
"""Largest number of elements of a result that the rule gets: it sorts them on the host."""
REPORTED_SECONDS = 5.0
"""Least time between two writings of the rows so far."""


@dataclass
class OnDevice(Capture):
    """A capture whose inputs of calls are the reference's own tensors: nothing here overwrites them."""

    def intern(self, tensor: torch.Tensor) -> TensorKey:
        key = f"{tensor.data_ptr()}, {tuple(tensor.shape)}, {tensor.stride()}, {tensor.dtype}"
        self.call_inputs.setdefault(key, tensor.detach())
        return TensorKey(key)


class OnHost(Mapping[str, torch.Tensor]):
    """Inputs of calls in the host's memory, from which the port takes them."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def __getitem__(self, key: str) -> torch.Tensor:
        return self._tensors[key].cpu()

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def spread(x: torch.Tensor) -> torch.Tensor:
    """Evenly spread rows, without the axis of the batch, which has one user."""
    rows = x.squeeze(0) if x.dim() > 1 else x
    count = min(len(rows), max(2, MOST_JUDGED // max(1, rows[0].numel())))
    places = torch.linspace(0, len(rows) - 1, count, dtype=torch.float64).round().long()
    return rows[places.to(x.device)].cpu()


def judged(
    recorded: Capture,
    call: ModuleCall,
    precision: Precision,
    truth: Mapping[str, torch.Tensor],
    results: Mapping[str, torch.Tensor],
) -> Iterator[dict]:
    """A row for each result of a call."""
    for tap in call.outputs:
        if tap not in results:
            yield {"tap": tap, "verdict": "missing"}
            continue
        sides = (spread(x) for x in (truth[tap], recorded.tensors[tap], results[tap]))
        verdict = judge(*sides, precision, recorded.longest_sums[call.path])
        yield {
            "tap": tap,
            "kind": call.kind,
            "shape": list(results[tap].shape),
            "verdict": verdict.reason or "PASS",
            "reference": verdict.reference.l2,
            "port": verdict.port.l2,
            "margin": verdict.margin,
            "detectable": verdict.min_detectable_error,
        }


def recorded_calls(case: Case, reference: TorchRunner, arrays: Arrays) -> Capture:
    """All calls of the reference with their inputs and results."""

    def placed(array: np.ndarray) -> torch.Tensor:
        tensor = torch.tensor(array, device=reference.device)
        return tensor.to(reference.dtype) if tensor.is_floating_point() else tensor

    arguments = {name: placed(array) for name, array in case.entry_arguments(arrays).items()}
    recorded = OnDevice()
    with torch.inference_mode(), tapped(reference.model, record_calls=True, capture=recorded):
        outputs = case.named_outputs(case.call(reference.model, arguments))
    recorded.tensors.update(outputs)
    return recorded


def run(case: Case, precision: Precision, names: list[str], seconds: float) -> Iterator[dict]:
    """Yields a row for each runner, module and result; modules inside others have rows that say so.

    Modules behind the time limit have rows without a verdict. The model's outputs have one in any case.
    """
    began = time.monotonic()
    arrays, (weights, _) = case.make_inputs().inputs[0].arrays, case_weights(case)
    reference, oracle = TorchRunner(), Float64Runner()
    for runner in (reference, oracle):
        runner.load(case, precision, weights)
    recorded = recorded_calls(case, reference, arrays)
    oracle.place(arrays)
    ports = {name: make_runner(name) for name in names}
    for port in ports.values():
        port.load(case, precision, weights)
    taken = time.monotonic() - began
    print(f"{precision.name}: {len(recorded.calls)} calls in {taken:.0f} s, {oracle.label()}", flush=True)
    yield from _outputs(recorded, oracle, ports, arrays, precision)
    host = OnHost(recorded.call_inputs)
    for call in recorded.calls:
        inside = {name: computed_inside(case, name).get(call.kind, "") for name in ports}
        is_late = time.monotonic() - began > seconds
        truth = {} if is_late or all(inside.values()) else oracle.run_call(call, recorded.call_inputs, arrays)
        for name, port in ports.items():
            facts = {"precision": precision.name, "runner": port.label(), "path": call.path}
            if inside[name] or is_late:
                yield facts | {"tap": call.tap, "verdict": inside[name] or "not run: no time left"}
            else:
                try:
                    results = port.run_call(call, host, arrays)
                except raisable() as error:  # a module that raises is a row of the table
                    yield facts | {"tap": call.tap, "verdict": f"raises {first_line(error)}"}
                    continue
                yield from (facts | row for row in judged(recorded, call, precision, truth, results))
        torch.cuda.empty_cache()


def _outputs(
    recorded: Capture,
    oracle: Float64Runner,
    ports: Mapping[str, Runner],
    arrays: Arrays,
    precision: Precision,
) -> Iterator[dict]:
    """A row for the model's output of each runner."""
    outputs = oracle.run(arrays)
    (tap,) = outputs
    torch.cuda.empty_cache()
    for port in ports.values():
        results = port.run(arrays)
        longest = max(recorded.longest_sums.values())
        modules = sum(count > 0 for path, count in recorded.longest_sums.items() if path)
        sides = (spread(x[tap]) for x in (outputs, recorded.tensors, results))
        verdict = judge(*sides, precision, longest, modules=modules)
        yield {
            "precision": precision.name,
            "runner": port.label(),
            "path": "",
            "tap": tap,
            "verdict": verdict.reason or "PASS",
            "reference": verdict.reference.l2,
            "port": verdict.port.l2,
            "margin": verdict.margin,
            "detectable": verdict.min_detectable_error,
        }
        torch.cuda.empty_cache()


def is_failure(row: Mapping) -> bool:
    """Whether a row has a verdict that fails, or none since the port gave no result."""
    is_judged = "port" in row and row["verdict"] != "PASS"
    return is_judged or row["verdict"].startswith(("missing", "raises"))


def show(rows: list[dict]) -> None:
    for runner in dict.fromkeys(row["runner"] for row in rows):
        own = [row for row in rows if row["runner"] == runner and "port" in row]
        failed = [row for row in own if row["verdict"] != "PASS"]
        others = [row for row in rows if row["runner"] == runner and "port" not in row]
        (output,) = (row for row in own if not row["path"])
        print(
            f"{output['precision']} {runner}: {len(own) - len(failed)} of {len(own)} verdicts pass, "
            f"{len(others)} without, output {output['port']:.2e} beside {output['reference']:.2e}, "
            f"detectable in modules {max(row['detectable'] for row in own):.2e}",
            flush=True,
        )
        for row in failed + [row for row in others if not row["verdict"].startswith("computed inside")]:
            print(f"  {row['tap']}: {row['verdict']}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", default="dlrmv3")
    parser.add_argument("--precision", default="bf16,fp16,fp32")
    parser.add_argument("--runners", default="tripy_layers,tripy_jagged,tripy")
    parser.add_argument("--seconds", type=float, default=1e6, help="after which a precision begins no module")
    arguments = parsed(parser)
    case, rows = load_case(arguments.case).with_overrides(batch_size=1), []
    for name in arguments.precision.split(","):
        began, own = time.monotonic(), []
        written = began
        for row in run(case, PRECISIONS[name], arguments.runners.split(","), arguments.seconds):
            own.append(row)
            if time.monotonic() - written > REPORTED_SECONDS:
                report(arguments.out, {}, rows=rows + own)
                written = time.monotonic()
        show(own)
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
        rows += own
        report(arguments.out, {}, rows=rows)
    if any(is_failure(row) for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
