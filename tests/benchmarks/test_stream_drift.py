"""The drift of a stream: an error that grows is told from one that does not, and the first tensor beyond."""

import json

import numpy as np
import pytest
import torch

from benchmarks import stream_drift as program


def noisy(seed, drift=0.0, steps=2000):
    rng = np.random.default_rng(seed)
    return np.abs(rng.normal(1.0, 0.2, steps)) * (1.0 + drift * np.arange(steps))


@pytest.mark.parametrize("seed", range(20))
def test_an_error_without_drift_is_within_the_bound(seed):
    growth, bound = program.growth(noisy(seed), full=100, shared=1)
    assert growth <= bound


@pytest.mark.parametrize("seed", range(5))
def test_an_error_that_doubles_is_beyond_the_bound(seed):
    growth, bound = program.growth(noisy(seed, drift=1 / 1000), full=100, shared=16)
    assert growth > 1.5
    assert growth > bound


def test_the_first_tensor_in_the_order_of_computation_is_named():
    errors = {"first": np.array([0.1, 0.2, 0.6]), "second": np.array([0.9, 0.1, 0.1])}
    assert program.first_beyond(errors, 0.5) == ("first", 2)
    assert program.first_beyond(errors, 0.7) == ("second", 0)
    assert program.first_beyond(errors, 1.0) is None
    assert program.first_beyond({"nan": np.array([0.0, np.nan])}, 1.0) == ("nan", 1)


@pytest.mark.parametrize(("name", "bound"), [("int8", 0.5 / 127), ("fp8", 1 / 16)])
def test_codes_have_a_scale_for_each_position(name, bound):
    cached = torch.randn(3, 5, 8) * torch.logspace(-4, 2, 5)[:, None]
    cached[1, 2] = 0.0
    rounded = program.ROUNDINGS[name](cached)
    largest = cached.abs().amax(-1, keepdim=True)
    assert ((rounded - cached).abs() <= 1.001 * bound * largest).all()
    assert not torch.equal(rounded, cached)
    # What is rounded already stays, so that a position does not decay while it is in the cache.
    torch.testing.assert_close(program.ROUNDINGS[name](rounded), rounded, rtol=1e-6, atol=0.0)


def test_a_coarser_cache_has_larger_errors_and_the_budget_names_it(capsys, tmp_path):
    out = tmp_path / "errors.json"
    arguments = ["--case", "hstu_tiny", "--steps", "90", "--capacity", "6", "--caches", "fp32,fp16,int8,fp8"]
    assert program.main([*arguments, "--budget", "0.01", "--out", str(out)]) == 1
    text = capsys.readouterr().out
    assert "fp16: no tensor beyond the budget of 0.01" in text
    assert "fp8: first blocks.0.k, at step 0 beyond the budget of 0.01" in text
    errors = json.loads(out.read_text())
    medians = [float(np.median(errors[name]["blocks.0.k"])) for name in ("fp32", "fp16", "int8", "fp8")]
    assert medians == sorted(medians)
    assert medians[0] < 1e-6 < medians[1] / 10
    assert all(len(steps) == 91 for table in errors.values() for steps in table.values())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--caches", "int3"], "--caches: int3 is unknown"),
        (["--capacity", "9000"], "--capacity: 9000 does not fit the model"),
        (["--case", "hstu_tiny", "--steps", "12", "--capacity", "9"], "--steps: 12 hardly fills the cache"),
        (["--case", "dlrm_tiny"], "dlrm_tiny has no streams"),
    ],
)
def test_bad_input_ends_with_2(capsys, arguments, text):
    with pytest.raises(SystemExit) as ended:
        program.main(arguments)
    assert ended.value.code == 2
    assert text in " ".join(capsys.readouterr().err.split())
