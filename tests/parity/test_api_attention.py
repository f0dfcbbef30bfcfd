"""Options of live models for an attention: parts of a tensor, masks, dynamic sizes."""

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity
from parity import From
from tests.parity.live_models import modules

D, HEADS, N = 24, 3, 7
RNG = np.random.default_rng(0)
VALID = np.arange(N) < np.array([[7], [3], [5], [1]])
SEQUENCES = {"x": RNG.standard_normal((4, N, D)).astype(np.float32), "valid": VALID}


class Attending(torch.nn.Module):
    """PyTorch never calls `attn.out_proj`."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(D)
        self.attn = torch.nn.MultiheadAttention(D, HEADS, batch_first=True)

    def forward(self, x, valid):
        y = self.norm(x)
        return x + self.attn(y, y, y, key_padding_mask=~valid, need_weights=False)[0]


class Attention(tp.Module):
    """Calls go to `__call__`."""

    def __init__(self, dtype, masks=True):
        super().__init__()
        self.q = tp.Linear(D, D, dtype=dtype)
        self.k = tp.Linear(D, D, dtype=dtype)
        self.v = tp.Linear(D, D, dtype=dtype)
        self.out_proj = tp.Linear(D, D, dtype=dtype)
        self.dtype, self.masks = dtype, masks

    def __call__(self, query, key, value, key_padding_mask, need_weights=False):
        q, k, v = self._heads(self.q(query)), self._heads(self.k(key)), self._heads(self.v(value))
        logits = q @ tp.transpose(k, -2, -1) / (D // HEADS) ** 0.5
        rows, columns = key_padding_mask.shape
        if self.masks:
            padding = tp.reshape(key_padding_mask, (rows, 1, 1, columns))
            logits = tp.where(padding, tp.full((1,), -1e4, dtype=self.dtype), logits)
        return self.out_proj(
            tp.reshape(tp.transpose(tp.softmax(logits, dim=-1) @ v, 1, 2), (rows, columns, D))
        )

    def _heads(self, x):
        return tp.transpose(tp.reshape(x, (x.shape[0], x.shape[1], HEADS, D // HEADS)), 1, 2)


class AttendingPort(tp.Module):
    def __init__(self, dtype, masks=True):
        super().__init__()
        self.norm = tp.LayerNorm(D, dtype=dtype)
        self.attn = Attention(dtype, masks)

    def forward(self, x, valid):
        y = self.norm(x)
        return x + self.attn(y, y, y, key_padding_mask=~valid)


PARTS = {
    f"attn.{name}.{kind}": From(f"attn.in_proj_{kind}", split=(part, 3))
    for part, name in enumerate("qkv")
    for kind in ("weight", "bias")
}


def attend(port=AttendingPort, precisions=("fp32",), **options):
    return parity.compare(Attending(), port, SEQUENCES, precisions, **({"weights": PARTS} | options))


def test_parts_of_a_tensor_and_modules_that_pytorch_never_calls():
    result = attend()
    assert result.passed, result
    assert modules(result)["attn"].status == "PASS"
    assert {tap for tap, module in modules(result).items() if module.status == "GAP"} == {
        *(f"attn.{name}" for name in ("q", "k", "v", "out_proj")),
    }


def test_a_swap_of_two_parts_fails_in_the_module():
    swapped = PARTS | {"attn.q.weight": PARTS["attn.k.weight"], "attn.k.weight": PARTS["attn.q.weight"]}
    assert "Attending fp32 FAIL at attn" in str(attend(weights=swapped))


def test_garbage_in_masked_positions_shows_a_leak():
    # Padding is no key of a right port: its garbage stays where it is.
    result = attend(mask="valid", poison=("x",))
    assert result.passed, result

    class Leaking(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(D, D)

        def forward(self, x, valid):
            return self.layer(x) + 0.0 * x.mean(1, keepdim=True)

    class LeakingPort(tp.Module):
        def __init__(self, dtype):
            super().__init__()
            self.layer = tp.Linear(D, D, dtype=dtype)

        def forward(self, x, valid):
            return self.layer(x) + 1e-9 * tp.mean(x, dim=1, keepdim=True)

    result = parity.compare(Leaking(), LeakingPort, SEQUENCES, ("fp32",), mask="valid", poison=("x",))
    assert "padding leaks" in str(result), result


def test_dynamic_sizes_run_at_four_sizes_with_one_executable():
    sizes = {name: {0: 1, 1: 1} for name in SEQUENCES}
    result = attend(dynamic=sizes)
    assert result.passed, result
    assert [batch.name for batch in result.report.cases[0].batches] == [
        "typical",
        "least sizes",
        "sizes of 2",
        "middle sizes",
    ]

    class Fixed(AttendingPort):
        def forward(self, x, valid):
            return super().forward(x, valid) + tp.zeros((1, N, 1), dtype=x.dtype)

    failed = attend(Fixed, dynamic=sizes)
    assert not failed.passed
    assert attend(Fixed).passed


def test_a_part_left_over_is_named():
    weights = {name: source for name, source in PARTS.items() if name != "attn.v.bias"}
    weights["attn.v.bias"] = PARTS["attn.k.bias"]
    with pytest.raises(parity.UserError, match=r"weights: attn.in_proj_bias has a part left over, \(2, 3\)"):
        attend(weights=weights)


class MaskedLogits(torch.nn.Module):
    """Minus infinity inside and in the result."""

    def __init__(self):
        super().__init__()
        self.logits = torch.nn.Linear(D, D)
        self.masked = Masked()

    def forward(self, x, valid):
        masked = self.masked(self.logits(x).sum(-1), valid)
        return masked, torch.softmax(masked, -1)


class Masked(torch.nn.Module):
    def forward(self, logits, valid):
        return logits.masked_fill(~valid, -torch.inf)


class MaskedPort(tp.Module):
    def __init__(self, fill):
        super().__init__()
        self.fill = fill

    def forward(self, logits, valid):
        return tp.where(valid, logits, tp.full_like(logits, self.fill))


class MaskedLogitsPort(tp.Module):
    def __init__(self, dtype, fill=-float("inf")):
        super().__init__()
        self.logits, self.masked = tp.Linear(D, D, dtype=dtype), MaskedPort(fill)

    def forward(self, x, valid):
        masked = self.masked(tp.sum(self.logits(x), -1), valid)
        return masked, tp.softmax(masked, -1)


def test_logits_that_a_mask_sets_to_minus_infinity_pass():
    result = parity.compare(MaskedLogits(), MaskedLogitsPort, inputs=SEQUENCES, precisions=("fp32", "bf16"))
    result.raise_if_failed()


def test_another_number_in_place_of_minus_infinity_fails_at_its_module():
    result = parity.compare(
        MaskedLogits(),
        lambda dtype: MaskedLogitsPort(dtype, -1e4),
        inputs=SEQUENCES,
        precisions=("fp32",),
    )
    assert "FAIL at masked" in str(result)
    assert "NaN or Inf among the compared elements" in str(result)
