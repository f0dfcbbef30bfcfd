"""Indices that a model computes in floating point: whole numbers have no rounding, and hide no fault."""

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity

BUCKETS, WIDTH, LENGTH = 16, 5, 4


class Fields(torch.nn.Module):
    """(B, W) of the bucket of a number, a bag of tags and the row at the last tag."""

    def __init__(self) -> None:
        super().__init__()
        self.buckets = torch.nn.Embedding(BUCKETS, WIDTH)
        self.tags = torch.nn.Embedding(7, WIDTH)

    def forward(self, number: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
        bucket = (torch.floor(number / 0.5).clamp(-8, 7) + 8).long()
        valid = tags > 0
        rows = self.tags(tags)
        last = (valid.to(number.dtype).sum(1) - 1).long()
        at_last = rows[torch.arange(len(rows)), last]
        return self.buckets(bucket) + (rows * valid.unsqueeze(-1)).sum(1) + at_last


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fields = Fields()

    def forward(self, number: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
        return self.fields(number, tags)


class FieldsPort(tp.Module):
    def __init__(self, dtype: tp.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.buckets = tp.Embedding(BUCKETS, WIDTH, dtype=dtype)
        self.tags = tp.Embedding(7, WIDTH, dtype=dtype)

    def bag(self, rows: tp.Tensor, valid: tp.Tensor) -> tp.Tensor:
        """(B, W) from (B, L, W) and (B, L)."""
        return tp.sum(rows * tp.unsqueeze(tp.cast(valid, self.dtype), -1), dim=1)

    def forward(self, number: tp.Tensor, tags: tp.Tensor) -> tp.Tensor:
        scaled = tp.maximum(tp.minimum(tp.cast(number, tp.float32) / 0.5, 7.0), -8.0)
        bucket = tp.cast(scaled + 8.0, tp.int32)
        valid = tags > 0
        rows = self.tags(tags)
        last = tp.sum(tp.cast(valid, tp.int32), dim=1, keepdim=True) - 1
        at_last = tp.cast(tp.iota((1, LENGTH), dim=1, dtype=tp.int32) == last, self.dtype)
        chosen = tp.sum(rows * tp.unsqueeze(at_last, -1), dim=1)
        return self.buckets(bucket) + self.bag(rows, valid) + chosen


class CountingPort(FieldsPort):
    """A port whose bag adds the rows of the padding."""

    def bag(self, rows: tp.Tensor, valid: tp.Tensor) -> tp.Tensor:
        return tp.sum(rows, dim=1)


class Port(tp.Module):
    fields_type = FieldsPort

    def __init__(self, dtype: tp.dtype) -> None:
        super().__init__()
        self.fields = self.fields_type(dtype)

    def forward(self, number: tp.Tensor, tags: tp.Tensor) -> tp.Tensor:
        return self.fields(number, tags)


class WrongPort(Port):
    fields_type = CountingPort


def inputs() -> dict[str, np.ndarray]:
    random = np.random.default_rng(2)
    tags = random.integers(1, 7, (60, LENGTH), dtype=np.int32)
    tags[np.arange(LENGTH) >= random.integers(1, LENGTH + 1, 60)[:, None]] = 0
    return {"number": (2.5 * random.standard_normal(60)).astype(np.float32), "tags": tags}


@pytest.fixture(params=["fp32", "bf16"])
def precision(request):
    return request.param


def test_a_right_port_passes(precision):
    parity.compare(Reference(), Port, inputs(), (precision,)).raise_if_failed()


def test_a_fault_beside_an_index_is_named_at_its_module(precision):
    result = parity.compare(Reference(), WrongPort, inputs(), (precision,))
    assert "FAIL at fields\n" in str(result)
    assert "without the mask" in str(result)
