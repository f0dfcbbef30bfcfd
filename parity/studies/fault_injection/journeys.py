"""A case through whole runs: with workers, files and weights as users have them.

A process runs this file with the suite's own packages first on its path, where one of them may hold a fault.
The port is right. A journey that fails therefore shows a fault of the suite.

    python -m parity.studies.fault_injection.journeys REQUEST ANSWER

REQUEST is a JSON file with the case's reference and a precision. ANSWER is the file for the result.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from pydantic import BaseModel

from parity.base.errors import UserError
from parity.base.interruption import raisable
from parity.case import Case, CaseReference, load_case

Weights = Mapping[str, torch.Tensor]
_RUNNERS = ("torch", "tripy")
_TIMEOUT = 300.0
_IN_PARTS = 1 << 6
"""Bytes above which a batch runs in parts, and a tensor has its own file: less than a small case takes."""
_VARYING = (
    "second",
    "latency",
    "time",
    "date",
    "command",
    "environment",
    "gpu",
    "peak",
    "roofline",
    "builds",
)
"""Parts of the names of fields that differ from run to run."""


class Asked(BaseModel):
    """A case and the name of a precision."""

    case: CaseReference
    precision: str


class Travelled(BaseModel):
    """The result of all journeys.

    Attributes:
        problem: The first journey that fails, and the reason; empty if none does.
        facts: Every number of the reports that does not depend on the day.
    """

    problem: str
    facts: list[Any]


def main(request: Path, answer: Path) -> None:
    """Do all journeys and write the result."""
    asked = Asked.model_validate_json(request.read_text())
    folder = answer.with_suffix(".runs")
    facts: list[Any] = []
    problem = ""
    for journey in _journeys(load_case(asked.case), asked.precision, folder, facts):
        try:
            problem = journey()
        except raisable() as error:  # a right port raises none: it shows a fault of the suite
            problem = f"{type(error).__name__}: {error}"
        if problem:
            problem = f"{journey.__name__.strip('_')}: {problem}"
            break
    shutil.rmtree(folder, ignore_errors=True)
    answer.write_text(Travelled(problem=problem, facts=facts).model_dump_json())


def _journeys(case: Case, precision: str, folder: Path, facts: list[Any]) -> Iterator[Callable[[], str]]:
    from parity import pipeline
    from parity.base.precision import PRECISIONS
    from parity.capture.slices import MemoryBudget
    from parity.execution.request import Request
    from parity.inputs.prepared import prepare
    from parity.inputs.weights import export, load_export

    def saved(name: str, **options: Any) -> Any:
        request = Request(
            cases=(case,),
            precisions=(precision,),
            runners=_RUNNERS,
            runners_asked=True,
            data=None,
            checkpoint=options.pop("checkpoint", None),
            save=folder / name,
            timeout=_TIMEOUT,
            command=name,
            **options,
        )
        report = pipeline.run(request, lambda _: None)
        facts.append(_lasting(report.model_dump(mode="json")["cases"]))
        return report

    reports: dict[str, Any] = {}

    def a_run_in_parts() -> str:
        budget = MemoryBudget(large_bytes=_IN_PARTS, slice_bytes=_IN_PARTS, alone_bytes=_IN_PARTS)
        reports["saved"] = saved("saved", budget=budget)
        return _failure(reports["saved"])

    def its_replay() -> str:
        report = pipeline.replay(folder / "saved", "replay", lambda _: None)
        same = _verdicts(report) == _verdicts(reports["saved"])
        return "" if same else "the replay has other verdicts than the run"

    def its_weights() -> str:
        drawn = prepare([case], None, None)[0].weights
        export(drawn, folder / "export")
        if not _same(safetensors.torch.load_file(folder / "export" / "weights.safetensors"), drawn):
            return "the exported weights are not the drawn ones"
        if not _same(load_export(folder / "export"), drawn):
            return "an export is read back with other weights"
        again = prepare([case.with_overrides(seed=case.seed + 1)], None, None)[0].weights
        return "two seeds have the same weights" if _same(again, drawn) else ""

    def trained_weights() -> str:
        trained = {name: _changed(tensor) for name, tensor in prepare([case], None, None)[0].weights.items()}
        forms: dict[str, Weights] = {
            "trained": trained,
            "data_parallel": {f"module.{name}": tensor for name, tensor in trained.items()},
        }
        for name, tensors in forms.items():
            path = folder / f"{name}.pt"
            torch.save(dict(tensors), path)
            if not _same(prepare([case], None, path)[0].weights, trained):
                return f"a checkpoint is read with other weights ({name})"
        return ""

    def weights_that_do_not_fit() -> str:
        weights = dict(prepare([case], None, None)[0].weights)
        for name, tensors in _unfit(weights).items():
            path = folder / f"{name}.pt"
            torch.save(tensors, path)
            try:
                prepare([case], None, path)
            except UserError:
                continue
            return f"a checkpoint with {name.replace('_', ' ')} is accepted"
        return ""

    def exports_that_have_changed() -> str:
        weights = prepare([case], None, None)[0].weights
        for name, change in _CHANGES.items():
            path = folder / f"export_{name}"
            export(weights, path)
            change(path)
            try:
                load_export(path)
            except UserError:
                continue
            return f"an export with {name.replace('_', ' ')} is accepted"
        return ""

    def mixed_precisions() -> str:
        from parity.base.precision_policy import Policy
        from parity.inputs.arrays import make_inputs
        from parity.studies.precision_search.bench import Bench

        bench = Bench(case, make_inputs(case).typical.arrays, prepare([case], None, None)[0].weights)
        half = {path: ("fp16" if number % 2 else "fp32") for number, path in enumerate(bench.paths)}
        evaluation = bench.evaluate_policy(Policy.of(half), tapped=True)
        facts.append(evaluation.error)
        limit = 64 * PRECISIONS["fp16"].unit_roundoff * max(1, len(bench.paths)) ** 0.5
        wrong = {
            tap: str(tensor.dtype)
            for tap, tensor in evaluation.taps.items()
            if tensor.is_floating_point() and not torch.isfinite(tensor).all()
        }
        return "" if evaluation.error <= limit and not wrong else f"an error of {evaluation.error:.2g}"

    folder.mkdir(parents=True)
    yield from (its_weights, trained_weights, weights_that_do_not_fit, exports_that_have_changed)
    yield from (mixed_precisions, a_run_in_parts, its_replay)


def _failure(report: Any) -> str:
    """The first failing verdict of a report on a right port, in words."""
    for case in report.cases:
        for precision in case.precisions:
            for runner in precision.runners:
                if runner.verdict not in ("PASS", "NONE"):
                    return f"{runner.runner}: {runner.verdict}, {runner.diagnosis and runner.diagnosis.text}"
    return f"exit code {report.exit_code}" if report.exit_code else ""


def _runners(report: Any) -> Iterator[Any]:
    for case in report.cases:
        for precision in case.precisions:
            yield from precision.runners


def _verdicts(report: Any) -> list[Any]:
    return [_lasting(runner.model_dump(mode="json")) for runner in _runners(report)]


def _lasting(value: Any) -> Any:
    """A value of a report without the fields that differ from run to run."""
    if isinstance(value, Mapping):
        kept = {key: part for key, part in value.items() if not any(word in key for word in _VARYING)}
        return {key: _lasting(part) for key, part in kept.items()}
    if isinstance(value, (list, tuple)):
        return [_lasting(part) for part in value]
    return value


def _same(ours: Weights, theirs: Weights) -> bool:
    return ours.keys() == theirs.keys() and all(
        ours[name].dtype == theirs[name].dtype and torch.equal(ours[name], theirs[name]) for name in ours
    )


def _changed(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor of the same layout; integers and booleans stay."""
    return tensor.flip(0) * 0.75 if tensor.is_floating_point() and tensor.ndim else tensor.clone()


def _unfit(weights: Weights) -> dict[str, dict[str, torch.Tensor]]:
    """Checkpoints that are not the model's, by what is wrong."""
    first = next(name for name, tensor in weights.items() if tensor.is_floating_point())
    unfit = {
        "a_tensor_too_many": {**weights, "more": torch.zeros(1)},
        "a_tensor_too_few": {name: tensor for name, tensor in weights.items() if name != first},
    }
    for text, value in (("NaN", torch.nan), ("Inf", torch.inf)):
        broken = weights[first].clone()
        broken.view(-1)[-1] = value
        unfit[text] = {**weights, first: broken}
    unfit["float64"] = {**weights, first: weights[first].double()}
    oblong = next((n for n, t in weights.items() if t.ndim == 2 and t.shape[0] != t.shape[1]), "")
    if oblong:
        unfit["a_transposed_matrix"] = {**weights, oblong: weights[oblong].T.contiguous()}
    buffer = next((name for name, tensor in weights.items() if not tensor.is_floating_point()), "")
    if buffer:
        unfit["a_buffer_too_few"] = {name: t for name, t in weights.items() if name != buffer}
    return unfit


def _edited(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    path = folder / "weights.safetensors"
    tensors = safetensors.torch.load_file(path)
    change(tensors)
    path.write_bytes(safetensors.torch.save(tensors))


def _bump(tensors: dict[str, torch.Tensor]) -> None:
    name = next(name for name, t in tensors.items() if t.is_floating_point() and t.numel() > 1)
    tensors[name].view(-1)[-1] += 1.0


def _drop_one(tensors: dict[str, torch.Tensor]) -> None:
    del tensors[next(iter(tensors))]


def _declare(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"transforms": [{"transpose": "x"}]}))


_CHANGES: dict[str, Callable[[Path], None]] = {
    "another_value": lambda folder: _edited(folder, _bump),
    "a_tensor_too_few": lambda folder: _edited(folder, _drop_one),
    "a_tensor_too_many": lambda folder: _edited(folder, lambda tensors: tensors.update(more=torch.ones(1))),
    "transforms": _declare,
}
"""Changes of an export that a reader has to refuse."""

if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
