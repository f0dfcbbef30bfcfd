"""Exports of cases for tests, each made once in this process, and how their results are judged."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from cases.configured import ConfiguredCase
from cases.shipped import load_case
from parity.base.precision import PRECISIONS
from parity.inputs.arrays import make_inputs
from parity.inputs.weights import case_weights
from parity.runners import Runner, make_runner
from parity.runners.onnx.onnxruntime import OnnxRuntimeRunner
from parity.verdict.rule import judge
from tests.parity.hidden_gpu import without_gpu


@dataclass(frozen=True)
class Setup:
    """A case on three sides, each loaded with the same weights."""

    case: ConfiguredCase
    precision: str
    weights: Mapping[str, torch.Tensor]
    onnx: OnnxRuntimeRunner

    def arrays(self, batch: int, seed: int) -> dict[str, np.ndarray]:
        """Synthetic inputs of another batch size."""
        inputs = make_inputs(self.case.with_overrides(batch_size=batch, seed=seed)).typical
        return dict(inputs.arrays)

    def assert_right(self, arrays: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
        """Judge the untapped outputs by the verdict rule; returns them."""
        exact, reference = self.other("oracle").run_tapped(arrays), self.other("torch").record(arrays)
        actual = self.onnx.run(arrays)
        valid = self.case.valid_rows(arrays)
        for name, port in actual.items():
            verdict = judge(
                exact.tensors[name],
                reference.tensors[name],
                port,
                PRECISIONS[self.precision],
                max(reference.longest_sums.values()),
                valid[port.shape[1]][:, :, None] if port.ndim == 3 and port.shape[1] in valid else None,
            )
            assert verdict.passed, f"{name}: {verdict.reason}"
        return actual

    def other(self, name: str) -> Runner:
        """Another runner, loaded with the same weights."""
        runner = make_runner(name)
        runner.load(self.case, PRECISIONS[self.precision], self.weights)
        return runner


@functools.cache
def setup(name: str, precision: str = "fp32") -> Setup:
    """A case with the seed of `case_runs.judged`, exported. Not to be changed."""
    case = load_case(name).with_input(seed=0)
    weights = case_weights(case)[0]
    with without_gpu():  # The export is the same everywhere, and the CPU provider exists everywhere.
        onnx = make_runner("onnxruntime")
        onnx.load(case, PRECISIONS[precision], weights)
    return Setup(case, precision, weights, onnx)
