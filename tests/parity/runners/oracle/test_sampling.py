"""Rounding samples taken at once have the distribution of samples taken one by one, and are independent."""

import functools

import numpy as np
import pytest
import torch
from scipy import stats

from cases.shipped import load_case
from parity.base.precision import PRECISIONS
from parity.capture.names import TapName
from parity.inputs.arrays import make_inputs
from parity.inputs.weights import case_weights
from parity.runners import make_runner
from parity.runners.oracle import sampling
from parity.runners.oracle.rounding import Errors, Roundings
from parity.runners.oracle.sampling import NotBatchable, RoundingSamples, rounding_samples
from tests.selection import first_in_test

SIGNIFICANCE = 1e-3
"""Chance that a right program fails one of these tests, over all seeds; the seeds are fixed."""
FP32, FP16, BF16 = PRECISIONS["fp32"], PRECISIONS["fp16"], PRECISIONS["bf16"]


class Model(torch.nn.Module):
    """Operations of every kind: products, sums, moved data, masks, writes, and a bias of parameters alone."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(11, 6)
        self.positions = torch.nn.Parameter(torch.randn(4))
        self.project = torch.nn.Linear(6, 9)
        self.norm = torch.nn.LayerNorm(9)
        self.out = torch.nn.Linear(9, 5)

    def forward(self, indices: torch.Tensor, values: torch.Tensor) -> dict[str, torch.Tensor]:
        # (4, 4), once for all rows: from parameters alone.
        bias = self.positions[:, None] * 0.7 - torch.sigmoid(self.positions)[None, :]
        x_BND = self.table(indices) * 1.7 + values
        y_BND = self.norm(torch.nn.functional.silu(self.project(x_BND)))
        scores = torch.einsum("bnd,bmd->bnm", y_BND, y_BND) / 3.0 + bias
        mask = torch.ones(4, 4, dtype=torch.bool).tril()
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        mixed = torch.cat([weights @ y_BND, y_BND.mean(1, keepdim=True)], dim=1)
        mixed[:, 0].mul_(1.3)
        result = self.out(mixed).transpose(1, 2).reshape(mixed.shape[0], -1)
        rows = torch.maximum(result, result.new_zeros(()))[..., ::2].square().sum(-1)
        return {"bias": bias, "scores": scores, "result": result, "rows": rows}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(5)
    return Model().double().eval()


def _arguments():
    generator = torch.Generator().manual_seed(6)
    indices = torch.randint(0, 11, (2, 4), generator=generator)
    return indices, torch.randn(2, 4, 6, generator=generator, dtype=torch.float64)


def _all_at_once(function, precision, chunks, size, seed=0):
    """(chunks, size, ...) samples by tap."""
    errors, taken = Errors(precision, seed), []
    for _ in range(chunks):
        arguments = _arguments()
        with torch.inference_mode(), RoundingSamples(errors, size):
            taken.append(function(*arguments))
    return {tap: torch.stack([one[tap].values for one in taken]) for tap in taken[0]}


def _one_by_one(function, precision, count, seed=10_000):
    taken = []
    for number in range(count):
        arguments = _arguments()
        with torch.inference_mode(), Roundings(Errors(precision, seed + number)):
            taken.append(function(*arguments))
    return {tap: torch.stack([one[tap] for one in taken]) for tap in taken[0]}


def _spreads_differ(first, second):
    """Smallest p-value of F tests of the variances of (K, E) samples, times the number of tests.

    Roundings are bounded, and their sample variances spread less than those of normal numbers. A right
    program fails less often than stated.
    """
    ratios = (first.var(0) / second.var(0)).double().numpy()
    below = stats.f.cdf(ratios, len(first) - 1, len(second) - 1)
    return 2.0 * float(np.minimum(below, 1.0 - below).min()) * ratios.size


def _chunks_differ(samples):
    """Smallest p-value of one-way analyses of variance over chunks of (G, S, E) samples, times their number.

    Samples that share an error in a chunk spread more between chunks than within them.
    """
    chunks, size, elements = samples.shape
    between = size * samples.mean(1).var(0)
    within = samples.var(1).mean(0)
    ratio = (between / within).double().numpy()
    return float(stats.f.sf(ratio, chunks - 1, chunks * (size - 1)).min()) * elements


@functools.cache
def _samples_of(precision_name):
    torch.manual_seed(5)
    model, precision = Model().double().eval(), PRECISIONS[precision_name]
    return _all_at_once(model, precision, 64, 32), _one_by_one(model, precision, 2048)


@pytest.mark.parametrize("tap", first_in_test(["scores", "bias", "result", "rows"]))
@pytest.mark.parametrize("precision", first_in_test(["fp32", "bf16"]))
def test_spreads_are_equal(precision, tap):
    at_once, one_by_one = (taken[tap] for taken in _samples_of(precision))
    assert _spreads_differ(at_once.flatten(0, 1).flatten(1), one_by_one.flatten(1)) > SIGNIFICANCE


@pytest.mark.parametrize("tap", ["bias", "scores", "result", "rows"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_distributions_of_single_elements_are_equal(precision, tap):
    at_once, one_by_one = (taken[tap] for taken in _samples_of(precision))
    pairs = zip(at_once.flatten(0, 1).flatten(1).T, one_by_one.flatten(1).T, strict=True)
    smallest = [stats.ks_2samp(first.numpy(), second.numpy()).pvalue for first, second in pairs]
    assert min(smallest) * len(smallest) > SIGNIFICANCE


@pytest.mark.parametrize("tap", ["bias", "scores", "result", "rows"])
def test_samples_of_one_pass_are_independent(tap):
    assert _chunks_differ(_samples_of("fp32")[0][tap].flatten(2)) > SIGNIFICANCE


def test_a_common_rounding_of_a_parameter_is_seen(model):
    """The tests above fail where a bias of parameters alone has the same errors in all samples of a pass."""

    def with_common_bias(indices, values):
        scores = model(indices, values)["scores"]
        # Rounded before the samples part: as a computation outside of the mode.
        return {"scores": scores + common}

    chunks = []
    for seed in range(64):
        with torch.inference_mode(), Roundings(Errors(FP32, 1_000 + seed)):
            common = model.positions[:, None] * 0.7
        chunks.append(_all_at_once(with_common_bias, FP32, 1, 32, seed)["scores"])
    assert _chunks_differ(torch.cat(chunks).flatten(2)) < SIGNIFICANCE


def test_a_missing_rounding_is_seen(model):
    """The tests of spreads fail where one operation of the chain has no error."""

    def unrounded(indices, values):
        results = model(indices, values)
        return {"bias": results["bias"], "tripled": results["bias"] * 3.0}

    at_once = _all_at_once(unrounded, FP32, 64, 32)
    assert (
        _spreads_differ(
            at_once["bias"].flatten(0, 1).flatten(1) * 3.0, at_once["tripled"].flatten(0, 1).flatten(1)
        )
        < SIGNIFICANCE
    )


SHIPPED = [
    "dlrm_tiny",
    "dlrm_tiny_qr",
    "dlrm_tiny_md",
    "dlrm_tiny_weighted",
    "dlrm_lecture_index",
    "hstu_tiny",
    "stu_tiny",
]


@functools.cache
def _shipped(name, precision):
    case = load_case(name)
    weights = case_weights(case)[0]
    oracle, reference = make_runner("oracle"), make_runner("torch")
    oracle.load(case, precision, weights)
    reference.load(case, precision, weights)
    arrays = make_inputs(case).typical.arrays
    return oracle, reference.record(arrays), arrays


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_models_and_their_modules_run_for_all_samples_at_once(name, monkeypatch, caplog):
    def refuse(*_):
        raise AssertionError("samples are taken one by one")

    sampling._STATED.clear()
    monkeypatch.setattr(sampling, "Roundings", refuse)
    monkeypatch.setattr(sampling, "CHUNK_BYTES", 1 << 40)
    oracle, capture, arrays = _shipped(name, FP32)
    taps = oracle.run_tapped(arrays).tensors
    assert any(TapName.parse(tap).samples for tap in taps)
    for call in capture.calls:
        oracle.run_call(call, capture.call_inputs, arrays)
    assert not caplog.records


@pytest.mark.parametrize("name", ["dlrm_tiny", "hstu_tiny", "stu_tiny"])
@pytest.mark.parametrize("precision", [FP32, BF16], ids=lambda p: p.name)
def test_distances_of_shipped_models_have_the_same_distribution(name, precision, monkeypatch):
    """Relative distances from the oracle, by tap: norm, largest element, common factor."""
    oracle, _, arrays = _shipped(name, precision)
    at_once = oracle.run_tapped(arrays).tensors
    monkeypatch.setattr(sampling, "CHUNK_BYTES", 0)
    one_by_one = oracle.run_tapped(arrays).tensors
    smallest = []
    for tap in (tap for tap in at_once if TapName.parse(tap).samples):
        exact = at_once[str(TapName.parse(tap).of_tap())].double()
        if exact.eq(0.0).all():
            continue
        pairs = zip(_distances(at_once[tap], exact), _distances(one_by_one[tap], exact), strict=True)
        smallest += [stats.ks_2samp(first, second).pvalue for first, second in pairs]
    assert min(smallest) * len(smallest) > SIGNIFICANCE


def _distances(samples, exact):
    errors = (samples.double() - exact).flatten(1)
    yield errors.norm(dim=1).numpy()
    yield errors.abs().amax(1).numpy()
    yield (errors @ exact.flatten()).numpy()


def test_what_no_rounding_reaches_is_equal_in_all_samples():
    def function(indices, values):
        return {"moved": values.transpose(0, 1), "indices": indices * 2, "ones": torch.ones(3)}

    taken = rounding_samples(
        _arguments, lambda arguments: function(*arguments), ["moved", "ones"], FP32, 5, 8
    )
    _, values = _arguments()
    assert taken["moved"].shape == (5, 4, 2, 6)
    assert all(torch.equal(sample, values.transpose(0, 1)) for sample in taken["moved"])
    assert torch.equal(taken["ones"], torch.ones(5, 3))


@pytest.mark.parametrize(
    "function",
    [
        lambda values: values * 3.0 if float((values * 1.1).sum()) > 0.12345 else values * 4.0,
        lambda values: values[(values * 1.1) > 0.0] * 3.0,
        lambda values: torch.zeros(2, 4, 6, dtype=torch.float64).copy_(values * 1.1),
        lambda values: values.mul_(1.1),
        lambda values: torch.nn.functional.dropout(values * 1.1, 0.5),
    ],
    ids=["branch", "shape", "write", "in place", "random"],
)
def test_what_cannot_run_at_once_is_refused(function):
    values = _arguments()[1]
    with pytest.raises(NotBatchable), torch.inference_mode(), RoundingSamples(Errors(BF16, 0), 4):
        function(values)


def test_samples_are_taken_one_by_one_where_they_must_be(caplog):
    def function(arguments):
        _, values = arguments
        return {"out": torch.zeros(2, 4, 6, dtype=torch.float64).copy_(values * 1.1) * 1.3}

    sampling._STATED.clear()
    taken = rounding_samples(_arguments, function, ["out"], BF16, 6, 8)["out"]
    exact = _arguments()[1] * 1.1 * 1.3
    assert taken.shape == (6, 2, 4, 6)
    assert len({sample.numpy().tobytes() for sample in taken}) == 6
    assert all((sample - exact).norm() < 2 * BF16.unit_roundoff * exact.norm() for sample in taken)
    assert "takes longer" in caplog.text
    assert "copy_" in caplog.text
    # The line of the user's code, and not of the engine.
    assert f"test_sampling.py:{function.__code__.co_firstlineno + 2})" in caplog.text
    rounding_samples(_arguments, function, ["out"], BF16, 6, 8)
    assert caplog.text.count("takes longer") == 1


def test_a_branch_on_a_number_that_all_samples_share_is_taken():
    def function(arguments):
        indices, values = arguments
        rounded = values * 1.1
        return {"out": rounded * 2.0 if bool((rounded.abs() < 1e6).all()) else rounded}

    assert rounding_samples(_arguments, function, ["out"], BF16, 3, 8)["out"].shape == (3, 2, 4, 6)


def test_an_infinite_number_stays_infinite_and_a_zero_zero():
    values = torch.tensor([float("inf"), -float("inf"), 0.0, 1.0], dtype=torch.float64)
    with torch.inference_mode(), RoundingSamples(Errors(BF16, 0), 50):
        scaled = (values * 1.7).values
        added = (values[None] @ torch.eye(4, dtype=torch.float64).mul(3.0)).values
    assert torch.equal(scaled[:, :3], (values * 1.7)[:3].expand(50, 3))
    assert len(scaled[:, 3].unique()) > 40
    assert added.isnan()[..., 2:].all()


def test_memory_is_bounded_by_the_chunk(monkeypatch):
    """Numbers alive in a pass, at most: those of a chunk's tensors, however many samples are asked for."""
    seen = []
    add = Errors.add

    def noted(self, result, shape, *others):
        seen.append(shape.numel() * result.element_size())
        return add(self, result, shape, *others)

    monkeypatch.setattr(Errors, "add", noted)
    values = torch.ones(16, 16, dtype=torch.float64)
    for chunk in (1 << 14, 1 << 16):
        seen.clear()
        monkeypatch.setattr(sampling, "CHUNK_BYTES", chunk)
        taken = rounding_samples(
            lambda: values, lambda x: {"out": (x * 1.1).square().sum(-1)}, ["out"], FP32, 64, values.nbytes
        )
        assert taken["out"].shape == (64, 16)
        assert max(seen) == chunk
