"""Faults in the code between modules: each is named at the call that receives its result."""

import functools

import numpy as np
import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.case import Case
from parity.in_process import CleanRun
from parity.runners.torch.eager import TorchRunner
from parity.verdict.comparison import compare

B, N, D = 4, 6, 8
ATTENTION = "block.attention"


class Attention(torch.nn.Module):
    def forward(self, query, key, mask, bias=None, scale=0.5, unused=None):
        weights = query @ key.transpose(1, 2) * scale * mask
        return weights @ key if bias is None else weights @ key + bias


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.query = torch.nn.Linear(D, D)
        self.key = torch.nn.Linear(D, D)
        self.attention = Attention()

    def forward(self, x, mask):
        query, key = self.query(x), self.key(x)
        return x + self.attention(query, key, self.mask(mask), self.bias(x), **self.options())

    def mask(self, mask):
        return mask

    def bias(self, x):
        return 2 * x

    def options(self):
        return {"scale": 0.25}


class Model(torch.nn.Module):
    def __init__(self, block=Block):
        super().__init__()
        self.table = torch.nn.Embedding(20, D)
        self.block = block()
        self.last = torch.nn.Linear(D, 3)

    def forward(self, ids, lengths):
        x = self.table(self.ids(ids))
        x = self.block(self.entering(x), self.mask(ids))
        return self.after(self.last(x))

    def ids(self, ids):
        return ids % 20

    def entering(self, x):
        return x * 1.5

    def mask(self, ids):
        return torch.ones(N, N, dtype=torch.bool, device=ids.device).tril()

    def after(self, x):
        return x + 1


class Glue(Case):
    """A model with code between its modules.

    Args:
        model: Makes the model.
    """

    name = "glue"

    def __init__(self, model=Model):
        self._model = model

    def build_reference(self):
        return self._model()

    def build_port(self, dtype):
        raise NotImplementedError

    def make_inputs(self):
        random = np.random.default_rng(self.seed)
        return {"ids": random.integers(0, 90, (B, N)), "lengths": np.array([6, 2, 3, 5])}

    def valid_rows(self, arrays):
        return {N: np.arange(N) < arrays["lengths"][:, None]}


@functools.cache
def clean(precision):
    return CleanRun(Glue(), PRECISIONS[precision])


def judged(model, precision="fp32", **changes):
    """The comparison of a model in the place of the port."""
    run, runner = clean(precision), TorchRunner()
    faulty = functools.partial(type("Faulty", (Model,), changes), block=model)
    runner.load(Glue(faulty), run.precision, run.weights)
    return compare(run.evidence, run.results(runner))


def in_block(**changes):
    return type("FaultyBlock", (Block,), changes)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_right_code_between_modules_is_no_difference(precision):
    same = judged(
        in_block(bias=lambda self, x: x + x),
        precision,
        ids=lambda self, ids: ids - 20 * (ids // 20),
        mask=lambda self, ids: ~torch.ones(N, N, dtype=torch.bool, device=ids.device).triu(1),
    )
    assert same.diagnosis.kind == "none"
    assert same.calls == ()


def test_ids_shifted_by_one_are_named_at_the_lookup():
    diagnosis = judged(Block, ids=lambda self, ids: (ids + 1) % 20).diagnosis
    assert (diagnosis.kind, diagnosis.tap, diagnosis.code) == ("between", "table", "")
    assert diagnosis.argument == "table(input)"
    assert diagnosis.text.startswith("table receives another input: 16 of 16 elements")
    assert "the code of forward makes the argument" in diagnosis.text


def test_a_shift_of_all_ids_is_explained():
    diagnosis = judged(Block, ids=lambda self, ids: ids % 20 + 1 - (ids % 20 == 19) * 20).diagnosis
    assert diagnosis.argument == "table(input)"
    diagnosis = judged(Block, ids=lambda self, ids: torch.roll(ids % 20, 1, 1)).diagnosis
    assert "shifted by +1 along the sequence (axis 1)" in diagnosis.explanation[0]


def test_a_transposed_mask_is_named_at_the_block_that_receives_it():
    diagnosis = judged(Block, mask=lambda self, ids: Model.mask(self, ids).T).diagnosis
    assert (diagnosis.kind, diagnosis.tap, diagnosis.code) == ("between", "block", "")
    assert diagnosis.argument == "block(mask)"
    assert diagnosis.text.startswith(
        "block receives another mask: 30 of 36 elements; x is equal; every module"
    )


class Buffered(Model):
    def __init__(self, block=Block):
        super().__init__(block)
        self.register_buffer("causal", torch.ones(N, N, dtype=torch.bool).tril())

    def mask(self, ids):
        return self.causal


@pytest.mark.parametrize("is_transposed", [False, True])
def test_a_buffer_with_other_values_is_named_at_the_block_that_receives_it(is_transposed):
    run = CleanRun(Glue(Buffered), PRECISIONS["fp32"])
    runner = TorchRunner()
    causal = run.weights["causal"]
    runner.load(run.case, run.precision, {**run.weights, "causal": causal.T if is_transposed else causal})
    diagnosis = compare(run.evidence, run.results(runner)).diagnosis
    if not is_transposed:
        assert diagnosis.kind == "none"
        return
    assert (diagnosis.kind, diagnosis.tap, diagnosis.code) == ("between", "block", "")
    assert diagnosis.text.startswith("block receives another mask: 30 of 36 elements")
    assert diagnosis.explanation[0] == "is causal with other values"


def test_a_wrong_mask_that_no_result_shows_fails_by_itself():
    class Unread(Block):
        def forward(self, x, mask):
            return super().forward(x, torch.ones_like(mask).tril())

    diagnosis = judged(Unread, mask=lambda self, ids: Model.mask(self, ids).T).diagnosis
    assert (diagnosis.kind, diagnosis.argument) == ("between", "block(mask)")
    assert "no result of this batch shows it" in diagnosis.text


def test_a_factor_on_a_floating_point_argument_is_named():
    diagnosis = judged(Block, entering=lambda self, x: x * 1.4).diagnosis
    assert (diagnosis.kind, diagnosis.argument, diagnosis.code) == ("between", "block(x)", "")
    assert "mask is equal" in diagnosis.text
    assert diagnosis.explanation[0].startswith("equals the oracle times 0.933")


def test_code_inside_a_module_is_named_with_the_child_that_receives_its_result():
    diagnosis = judged(in_block(bias=lambda self, x: 2.1 * x)).diagnosis
    assert (diagnosis.kind, diagnosis.tap, diagnosis.code) == ("module", "block", "block")
    assert diagnosis.argument == f"{ATTENTION}(bias)"
    assert f"inside, {ATTENTION} receives another bias: " in diagnosis.text
    assert "query, key, mask, scale, unused are equal" in diagnosis.text


def test_swapped_arguments_are_named_as_each_other():
    class Swapped(Block):
        def forward(self, x, mask):
            key, query = self.query(x), self.key(x)
            return x + self.attention(query, key, mask, self.bias(x), **self.options())

    judgement = next(call for call in judged(Swapped).calls if call.call == ATTENTION)
    assert [argument.name for argument in judgement.differing] == ["query", "key"]
    assert judgement.differing[0].explanation[0] == "equals the reference's key"
    assert judgement.differing[1].explanation[0] == "equals the reference's query"


def test_a_wrong_constant_is_named():
    diagnosis = judged(in_block(options=lambda self: {"scale": 0.2})).diagnosis
    assert (diagnosis.code, diagnosis.argument) == ("block", f"{ATTENTION}(scale)")
    assert "receives another scale: 0.2 in place of 0.25" in diagnosis.text


def test_a_constant_that_is_equal_to_round_off_is_no_difference():
    assert judged(in_block(options=lambda self: {"scale": 0.25 + 1e-9})).calls == ()


def test_a_missing_argument_is_named():
    diagnosis = judged(in_block(bias=lambda self, x: None)).diagnosis
    assert (diagnosis.code, diagnosis.argument) == ("block", f"{ATTENTION}(bias)")
    assert "None in place of a tensor" in diagnosis.text


def test_a_constant_without_effect_is_told_and_fails_nothing():
    comparison = judged(in_block(options=lambda self: {"scale": 0.25, "unused": 7}))
    assert comparison.diagnosis.kind == "none"
    (call,) = comparison.calls
    assert (call.call, call.text().partition(";")[0]) == (
        ATTENTION,
        "receives another unused: 7 in place of None",
    )


def test_another_shape_and_another_type_are_told_and_fail_nothing():
    comparison = judged(
        in_block(mask=lambda self, mask: mask.float()[None]),
        mask=lambda self, ids: Model.mask(self, ids).int(),
    )
    assert comparison.diagnosis.kind == "none"
    assert [call.text().partition(";")[0] for call in comparison.calls] == [
        "receives another mask: int32 in place of bool",
        "receives another mask: shape (1, 6, 6) in place of (6, 6)",
    ]


def test_padding_does_not_count():
    def garbage(self, ids):
        lengths = torch.tensor(clean("fp32").arrays["lengths"], device=ids.device)
        return torch.where(torch.arange(N, device=ids.device) < lengths[:, None], ids % 20, 19)

    assert judged(Block, ids=garbage).calls == ()


def test_code_behind_the_last_module_is_named():
    diagnosis = judged(Block, after=lambda self, x: x + 1.1).diagnosis
    assert (diagnosis.kind, diagnosis.tap, diagnosis.code) == ("between", "forward.output", "")
    assert "the code of forward after the modules makes the output" in diagnosis.text


def test_a_wrong_module_is_named_and_not_what_later_calls_receive():
    class Wrong(Block):
        def __init__(self):
            super().__init__()
            self.query.register_forward_hook(lambda module, args, result: result * 1.01)

    comparison = judged(Wrong)
    assert (comparison.diagnosis.kind, comparison.diagnosis.tap) == ("module", "block.query")
    assert comparison.calls == ()


def test_infinite_elements_must_be_equal():
    def masked(self, ids):
        return torch.zeros(N, N, device=ids.device).masked_fill(~Model.mask(self, ids), -torch.inf)

    class Infinite(Model):
        mask = masked

    block = in_block(mask=lambda self, mask: mask == 0)
    run = CleanRun(Glue(functools.partial(Infinite, block=block)), PRECISIONS["fp32"])
    for changed, expected in ((masked, None), (lambda self, ids: masked(self, ids).T, "block(mask)")):
        runner = TorchRunner()
        port = functools.partial(type("Port", (Model,), {"mask": changed}), block=block)
        runner.load(Glue(port), run.precision, run.weights)
        diagnosis = compare(run.evidence, run.results(runner)).diagnosis
        assert (diagnosis.argument or None) == expected
