"""The verdicts of the research forward's benchmarks: what few rows carry by chance, and faults."""

from __future__ import annotations

import copy

import torch

from benchmarks.gpu.hstu_drawn import DrawnCell
from benchmarks.gpu.hstu_public import built
from benchmarks.gpu.hstu_verdicts import Inputs, dense, judged, rounding_samples
from parity.base.precision import PRECISIONS
from parity.runners.oracle.rounding import Errors, Roundings
from reference.build import build_hstu

PRECISION = PRECISIONS["fp16"]


def models(cell: DrawnCell) -> tuple[object, torch.nn.Module, torch.nn.Module]:
    """The configuration, the model in float16, and the same numbers in float64."""
    config, model = built(cell, "cpu")
    wide = build_hstu(config).double()
    wide.load_state_dict(model.state_dict())
    return config, model, wide


def test_rounding_alone_passes_where_few_rows_carry_the_reference_s_error():
    # First positions attend to themselves alone, and 16 blocks multiply what rounds there.
    cell = DrawnCell("hstu_ml1m", 4, "fp16", 32, 1, 16, 16, 16, 16)
    config, model, wide = models(cell)
    x = Inputs.drawn(cell.batch, config.num_items, model.sequence_width, True, 0, "cpu")

    def rounded(seed: int):
        def side(x: Inputs) -> torch.Tensor:
            with Roundings(Errors(PRECISION, seed)):
                return dense(wide)(x).half()

        return side

    def faulty(x: Inputs) -> torch.Tensor:
        """The model with its position weights one place too far."""
        broken = copy.deepcopy(model)
        for name, parameter in broken.named_parameters():
            if name.endswith("_pos_w"):
                parameter.copy_(parameter.roll(1))
        return dense(broken)(x)

    sides = {str(seed): rounded(1000 + seed) for seed in range(12)} | {"faulty": faulty}
    with torch.no_grad():
        found = judged(PRECISION, config, model, wide, sides, x)
    verdicts = {name: verdict for name, (verdict, _) in found.items()}
    assert verdicts.pop("faulty") != "PASS"
    assert set(verdicts.values()) == {"PASS"}
    # Some of them fail against the reference alone, and are judged with samples.
    assert {count for _, count in found.values()} == {0, 32}


def test_a_large_result_has_no_samples_and_a_smaller_one_few():
    cell = DrawnCell("hstu_ml1m", 2, "fp16", 16, 1, 8, 8, 1, 16)
    config, model, wide = models(cell)
    x = Inputs.drawn(cell.batch, config.num_items, model.sequence_width, False, 0, "cpu")
    with torch.no_grad():
        rows = x.valid(dense(wide)(x))
        assert rows.shape == (int(x.lengths.sum()), 16)
        assert rounding_samples(wide, x, PRECISION, rows).shape == (32, *rows.shape)
        assert rounding_samples(wide, x, PRECISION, torch.zeros(1 << 15, 16)).shape == (0, 1 << 15, 16)
