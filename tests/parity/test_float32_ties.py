"""Codes that a model computes in float32 by itself: right ports round ties otherwise, and nothing else."""

import nvtripy as tp
import pytest
import torch

import parity
from cases.shipped import load_case
from parity.base.precision import PRECISIONS
from parity.in_process import CleanRun

EPSILON = 1e-8


class Codes(torch.nn.Module):
    """(B, D) -> codes from -128 to 127, by the range of each row, and their step."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.float()
        low = x.amin(1, keepdim=True)
        range_ = x.amax(1, keepdim=True) - low
        steps = (x - low) * (255.0 / (range_ + EPSILON)) - 128.0
        return steps.round().clamp(-128.0, 127.0).to(torch.int8), range_ / 255.0


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.codes = Codes()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes, step = self.codes(x)
        return ((codes.float() + 128.0) * step).to(x.dtype)


def divided_last(x, low, range_):
    return (x - low) * 255.0 / (range_ + EPSILON) - 128.0


def multiplied(x, low, range_):
    return (x - low) * (255.0 / (range_ + EPSILON)) - 128.0


def shifted(x, low, range_):
    return multiplied(x, low, range_) + 2e-3


class CodesPort(tp.Module):
    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def forward(self, x: tp.Tensor):
        x = tp.cast(x, tp.float32)
        low = tp.min(x, dim=1, keepdim=True)
        range_ = tp.max(x, dim=1, keepdim=True) - low
        return tp.quantize(self.steps(x, low, range_), 1.0, tp.int8), range_ / 255.0


class ModelPort(tp.Module):
    def __init__(self, steps):
        super().__init__()
        self.codes = CodesPort(steps)

    def forward(self, x: tp.Tensor):
        codes, step = self.codes(x)
        return tp.cast((tp.cast(codes, tp.float32) + 128.0) * step, x.dtype)


def ties(precision: str, rows: int = 64) -> torch.Tensor:
    """(B, 3) rows whose middle is exact in the precision: its code is half a number, and float32 decides."""
    dtype = PRECISIONS[precision].dtype
    generator = torch.Generator().manual_seed(5)
    low, span = (torch.randint(1, 60, (rows, 1), generator=generator) / 7.0 for _ in range(2))
    low, high = (-low).to(dtype).float(), (span - low).to(dtype).float()
    middle = (low + high) / 2
    is_exact = (middle.to(dtype).float() == middle)[:, 0]
    return torch.cat([low, middle, high], 1)[is_exact]


def codes_of(x: torch.Tensor, steps) -> torch.Tensor:
    low = x.amin(1, keepdim=True)
    return steps(x, low, x.amax(1, keepdim=True) - low).round()


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_port_may_round_a_tie_otherwise(precision):
    x = ties(precision)
    assert not torch.equal(codes_of(x, multiplied), codes_of(x, divided_last))
    result = parity.compare(Model(), lambda dtype: ModelPort(divided_last), {"x": x}, (precision,))
    assert result.passed, str(result)


class Bytes(torch.nn.Module):
    """(B, 4) -> (B, 2) bytes of two codes from 0 to 15, by the range of each row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if x.dtype == torch.float64 else x.float()
        low = x.amin(1, keepdim=True)
        codes = ((x - low) * (15.0 / (x.amax(1, keepdim=True) - low + EPSILON))).round().clamp(0.0, 15.0)
        return (codes[:, :2] + 16.0 * codes[:, 2:] - 128.0).to(torch.int8)


class BytesPort(tp.Module):
    def __init__(self, upper):
        super().__init__()
        self.upper = upper

    def forward(self, x: tp.Tensor):
        x = tp.cast(x, tp.float32)
        low = tp.min(x, dim=1, keepdim=True)
        steps = (x - low) * 15.0 / (tp.max(x, dim=1, keepdim=True) - low + EPSILON)
        codes = tp.cast(tp.quantize(steps, 1.0, tp.int8), tp.float32)
        return tp.quantize(codes[:, :2] + self.upper * codes[:, 2:] - 128.0, 1.0, tp.int8)


class Lookup(torch.nn.Module):
    """(B) rows of a table (N, 4) -> (B, 2) their bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.quantise = Bytes()

    def forward(self, rows: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return self.quantise(table)[rows]


class LookupPort(tp.Module):
    def __init__(self, upper):
        super().__init__()
        self.quantise = BytesPort(upper)

    def forward(self, rows: tp.Tensor, table: tp.Tensor):
        return tp.gather(self.quantise(table), 0, rows)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_port_may_round_ties_of_codes_that_share_a_byte_otherwise(precision):
    table = ties(precision, rows=1000)
    table = torch.cat([table[:, :2], table[:, 1:]], 1)
    # Ties that the reference rounds as the oracle does. The batch's rows are not the table's.
    table = table[(Bytes()(table) == Bytes()(table.double())).all(1)]
    inputs = {"rows": torch.arange(len(table) - 1, dtype=torch.int32), "table": table}
    result = parity.compare(Lookup(), lambda dtype: LookupPort(16.0), inputs, (precision,))
    assert result.passed, str(result)
    result = parity.compare(Lookup(), lambda dtype: LookupPort(15.0), inputs, (precision,))
    assert not result.passed
    assert "FAIL at quantise" in str(result)


class HalfScale(torch.nn.Module):
    """(B, 4) -> (B, 2) bytes of two codes from 0 to 15, with a scale of the row in float16."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.float()
        low = x.amin(1, keepdim=True)
        scale = ((x.amax(1, keepdim=True) - low) / 15.0).half().float()
        codes = ((x - low) / scale).round().clamp(0.0, 15.0)
        return (codes[:, :2] + 16.0 * codes[:, 2:] - 128.0).to(torch.int8)


class Steps(torch.nn.Module):
    """A model of one module that makes codes."""

    def __init__(self, codes: torch.nn.Module) -> None:
        super().__init__()
        self.codes = codes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.codes(x)


class HalfScalePort(tp.Module):
    def __init__(self, less):
        super().__init__()
        self.less = less

    def forward(self, x: tp.Tensor):
        x = tp.cast(x, tp.float32)
        low = tp.min(x, dim=1, keepdim=True)
        scale = tp.cast(tp.cast((tp.max(x, dim=1, keepdim=True) - low) / 15.0, tp.float16), tp.float32)
        codes = tp.cast(tp.quantize((x - low) / scale, 1.0, tp.int8), tp.float32)
        codes = tp.minimum(tp.maximum(codes - self.less, 0.0), 15.0)
        return tp.quantize(codes[:, :2] + 16.0 * codes[:, 2:] - 128.0, 1.0, tp.int8)


class StepsPort(tp.Module):
    def __init__(self, less):
        super().__init__()
        self.codes = HalfScalePort(less)

    def forward(self, x: tp.Tensor):
        return self.codes(x)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize(("less", "passes"), [(0.0, True), (3.0, False)])
def test_the_rounding_of_a_tiny_scale_moves_codes_far(precision, less, passes):
    """Half a step of float16's smallest numbers is half of such a scale: codes of 15 become 8."""
    smallest = 2.0**-24
    rows = torch.tensor([[0.0, 8.0, 3.0, 5.0], [0.0, 9.0, 1.0, 6.0], [0.0, 10.0, 7.0, 2.0]]) * smallest
    small, large = (HalfScale()(rows * factor).int() for factor in (1.0, 2.0**15))
    assert (small - large).abs().max() > 70
    result = parity.compare(Steps(HalfScale()), lambda dtype: StepsPort(less), {"x": rows}, (precision,))
    assert result.passed is passes, str(result)
    assert passes or "FAIL at codes" in str(result)


def test_the_choices_of_many_tables_in_bytes_are_found():
    """A search tries a bounded number of values. A step of 0 lies behind hundreds of codes near ties."""
    case = load_case("dlrm_tiny_quantised").with_sizes(
        {
            "model.quantised": {"emb_l": "int4_rows"},
            "model.arch_sparse_feature_size": 4,
            "model.arch_mlp_bot": "9-4",
            "model.arch_mlp_top": "5-1",
            "model.arch_embedding_size": [49, 72, 60, 80, 42],
        }
    )
    comparison = CleanRun(case, PRECISIONS["fp16"]).judge("tripy")
    assert comparison.passed, comparison.diagnosis.text


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_code_beside_a_tie_has_one_value(precision):
    x = torch.randn(64, 40, generator=torch.Generator().manual_seed(5)).to(PRECISIONS[precision].dtype)
    assert not torch.equal(codes_of(x.float(), multiplied), codes_of(x.float(), shifted))
    result = parity.compare(Model(), lambda dtype: ModelPort(shifted), {"x": x.float()}, (precision,))
    assert not result.passed
    assert "FAIL at codes" in str(result)
