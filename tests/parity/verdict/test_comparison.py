"""From captures to a diagnosis, on made-up captures of a two-module model."""

import numpy as np
import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.capture.captures import Capture, ModuleCall
from parity.verdict.comparison import compare, compare_runners
from parity.verdict.evidence import Evidence, Results
from parity.verdict.explanation import explain_tap
from tests.parity import comparisons

B, N, D = 3, 7, 40
LENGTHS = np.array([7, 4, 1])


def _noise(tensor, seed, scale=2.0**-25):
    generator = torch.Generator().manual_seed(seed)
    return (
        tensor * (1 + scale * torch.randn(tensor.shape, generator=generator, dtype=torch.float64))
    ).float()


@pytest.fixture
def exact():
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(B, N, D, generator=generator, dtype=torch.float64)
        for name in ("a.inner", "a", "b", "score.out")
    }


@pytest.fixture
def evidence(exact):
    calls = [
        ModuleCall(path, path, kind, [], {}, (path,))
        for path, kind in (("a.inner", "Inner"), ("a", "Outer"), ("b", "Outer"))
    ]
    reference = Capture(
        tensors={name: _noise(tensor, 1) for name, tensor in exact.items()},
        calls=calls,
        longest_sums={"a.inner": 1, "a": 5, "b": 5},
        longest_sums_before={"a.inner": 1, "a": 5, "b": 5},
    )
    return Evidence(
        precision=PRECISIONS["fp32"],
        entry="score",
        reference=reference,
        oracle=exact,
        oracle_isolated=exact,
        reference_incremental={},
        incremental_outputs={"incremental.out": "score.out"},
        valid={N: np.arange(N) < LENGTHS[:, None]},
        batch_size=B,
    )


@pytest.fixture
def results(exact):
    port, alone = ({name: _noise(tensor, 2) for name, tensor in exact.items()} for _ in range(2))
    return Results(
        untapped={"score.out": port["score.out"]}, tapped=port, isolated=alone, poisoned=dict(port)
    )


def test_a_good_port_passes(evidence, results):
    comparison = compare(evidence, results)
    assert comparison.passed
    assert [tap.tap for tap in comparison.taps] == ["a.inner", "a", "b", "score.out"]
    assert all(tap.accumulated.checked == LENGTHS.sum() * D for tap in comparison.taps)


def test_the_innermost_module_that_fails_alone_is_the_culprit(evidence, results):
    for name in ("a.inner", "a"):
        results.isolated[name] = results.isolated[name] * 1.01
    for name in results.tapped:
        results.tapped[name] = results.tapped[name] * 1.01
    diagnosis = compare(evidence, results).diagnosis
    assert (diagnosis.kind, diagnosis.tap) == ("module", "a.inner")


def test_a_module_a_little_further_off_than_those_inside_it_names_the_nearest(evidence, results):
    alone = {tap.tap: tap.isolated for tap in compare(evidence, results).taps}
    good = results.isolated["a"]
    results.isolated["a"] = good * (1 + 3 * alone["a"].limit.scale_error)
    diagnosis = compare(evidence, results).diagnosis
    assert (diagnosis.kind, diagnosis.tap) == ("module", "a")
    share = f"{alone['a.inner'].margin:.2g}"
    assert diagnosis.text.endswith(f"a.inner is nearest to its own limit, {share} of it")
    # What is far off has its cause in its own code; and where one inside fails, that one is named.
    results.isolated["a"] = good * 1.01
    assert "nearest" not in compare(evidence, results).diagnosis.text
    results.isolated["a.inner"] = results.isolated["a.inner"] * 1.01
    assert "nearest" not in compare(evidence, results).diagnosis.text


def test_growth_without_a_culprit_is_amplification(evidence, results):
    results.tapped["b"] = results.tapped["b"] * (1 + 1e-4)
    diagnosis = compare(evidence, results).diagnosis
    assert (diagnosis.kind, diagnosis.tap) == ("amplification", "b")
    assert diagnosis.amplification > 100


def test_missing_and_extra_taps_fail(evidence, results):
    del results.tapped["b"], results.isolated["b"]
    diagnosis = compare(evidence, results).diagnosis
    assert diagnosis.tap == "b"
    assert "missing" in diagnosis.text
    results.tapped["b"] = results.isolated["b"] = _noise(evidence.oracle["b"], 2)
    results.tapped["c"] = results.tapped["a"]
    diagnosis = compare(evidence, results).diagnosis
    assert diagnosis.tap == "c"
    assert "extra" in diagnosis.text


def test_a_missing_output_fails(evidence, results):
    results.untapped = {}
    assert compare(evidence, results).diagnosis.tap == "score.out"


def test_a_gap_is_a_row_with_its_reason_and_nothing_else_is(evidence, results):
    del results.tapped["a.inner"], results.isolated["a.inner"], results.poisoned["a.inner"]
    evidence.gaps = {"Inner": "no such operation"}
    comparison = compare(evidence, results)
    assert comparison.passed
    assert comparison.taps[0].gap == "no such operation"
    del results.tapped["b"], results.isolated["b"]
    assert not compare(evidence, results).passed


def test_a_module_with_other_outputs_is_not_absent(evidence, results):
    evidence.absence = lambda path, kind: "the port has no module of this path"
    results.tapped["a[0]"] = results.tapped.pop("a")
    results.isolated["a[0]"] = results.isolated.pop("a")
    comparison = compare(evidence, results)
    assert not comparison.passed
    assert comparison.diagnosis.tap == "a"
    assert "missing" in comparison.diagnosis.text
    for captured in (results.tapped, results.isolated, results.poisoned):
        captured.pop("a[0]", None), captured.pop("a", None)
    assert compare(evidence, results).passed


def test_a_module_that_raises_is_the_culprit(evidence, results):
    del results.isolated["a"]
    results.isolated_problems = {"a": "TripyException: no"}
    diagnosis = compare(evidence, results).diagnosis
    assert diagnosis.tap == "a"
    assert "TripyException" in diagnosis.text


def test_padding_does_not_count_but_a_leak_does(evidence, results):
    for tensors in (results.tapped, results.isolated, results.untapped, results.poisoned):
        for tensor in tensors.values():
            tensor[2, 1:] = torch.nan
    assert compare(evidence, results).passed
    leaking = results.poisoned["a"].clone()
    leaking[1, 3, 0] += 1e-7
    results.poisoned["a"] = leaking
    comparison = compare(evidence, results)
    assert comparison.padding_leak == "a"
    assert (comparison.diagnosis.kind, comparison.diagnosis.tap) == ("check", "a")


@pytest.mark.parametrize(
    ("sequence", "positions", "words"),
    [
        (1, slice(3, 4), ["1 of 480 valid elements change", "no further than 1 positions"]),
        (1, slice(2, 4), ["2 of 480 valid elements change", "no further than 2 positions"]),
        (
            slice(1, 3),
            slice(0, 4),
            ["5 of 480 valid elements change", "every valid position of the sequences with"],
        ),
    ],
    ids=["one too far", "two too far", "a sum over all"],
)
def test_a_leak_says_how_far_from_the_padding_it_reaches(evidence, results, sequence, positions, words):
    # The padding itself changes, too.
    poisoned = results.poisoned["a"].clone()
    poisoned[sequence, positions, 0] += 1.0
    poisoned[2, 1:] = 7.0
    results.poisoned["a"] = poisoned
    comparison = compare(evidence, results)
    texts = explain_tap(evidence, results, comparison.tap(comparison.padding_leak))
    assert len(texts) == len(words)
    assert all(text.startswith(word) for text, word in zip(texts, words, strict=True))
    assert "axis 2 0" in texts[0]


def test_a_leak_that_cannot_be_compared_has_no_explanation(evidence, results):
    del results.poisoned["a"]
    comparison = compare(evidence, results)
    assert explain_tap(evidence, results, comparison.tap(comparison.padding_leak)) == ()


def test_what_counts_is_neither_padding_nor_at_a_discontinuity(evidence):
    shape = (B, N, D)
    assert evidence.counted("a", shape).sum() == LENGTHS.sum() * D
    evidence.boundary = {"a": np.zeros(shape, dtype=bool)}
    evidence.boundary["a"][0, 0, 0] = evidence.boundary["a"][2, 5, 0] = True
    assert evidence.counted("a", shape).sum() == LENGTHS.sum() * D - 1
    assert evidence.counted("other", (4,)).all()


def test_a_tap_without_its_poisoned_twin_is_a_leak(evidence, results):
    del results.poisoned["a"]
    assert compare(evidence, results).padding_leak == "a"


def test_tapping_that_changes_the_output_is_reported_and_the_untapped_one_judged(evidence, results):
    results.tapped["score.out"] = results.poisoned["score.out"] = results.tapped["score.out"] + 1e-3
    comparison = compare(evidence, results)
    assert comparison.passed
    assert comparison.observer_difference == pytest.approx(1e-3, rel=1e-3)


def test_appending_must_equal_the_full_forward(evidence, results):
    evidence.reference_incremental = {"incremental.out": evidence.reference.tensors["score.out"]}
    results.incremental = {"incremental.out": results.untapped["score.out"]}
    assert compare(evidence, results).passed
    results.incremental = {"incremental.out": results.untapped["score.out"] * 1.001}
    assert compare(evidence, results).diagnosis.tap == "incremental.out"
    results.incremental = {}
    assert "missing" in compare(evidence, results).diagnosis.text


def test_boundary_flips_are_left_out_here_and_behind(evidence, results):
    boundary = np.zeros((B, N, D), bool)
    boundary[0, 5, 2] = True
    evidence.boundary = {"a.inner": boundary}
    results.tapped["a.inner"] = results.tapped["a.inner"].clone()
    results.tapped["a.inner"][0, 5, 2] += 1
    for name in ("a", "b"):
        results.tapped[name][0, 5:] += 1
    results.untapped["score.out"] = results.untapped["score.out"].clone()
    results.untapped["score.out"][0, 6] += 1
    results.poisoned = dict(results.tapped)
    comparison = compare(evidence, results)
    assert comparison.passed
    assert [tap.accumulated.boundary for tap in comparison.taps] == [1, 2 * D, 2 * D, 2 * D]
    # What lies before the flip still counts.
    results.tapped["b"][0, 4] += 1
    assert compare(evidence, results).diagnosis.tap == "b"


@pytest.mark.parametrize("causal", [True, False])
def test_a_flip_reaches_earlier_rows_where_attention_is_not_causal(evidence, results, causal):
    evidence.causal = causal
    boundary = np.zeros((B, N, D), bool)
    boundary[1, 2, 0] = True
    evidence.boundary = {"a.inner": boundary}
    results.tapped = {name: tensor.clone() for name, tensor in results.tapped.items()}
    results.tapped["a.inner"][1, 2, 0] += 1
    results.tapped["a"][1, 0] += 1
    results.poisoned = dict(results.tapped)
    comparison = compare(evidence, results)
    assert comparison.passed is not causal
    assert comparison.taps[1].accumulated.boundary == (LENGTHS[1] - 2 if causal else LENGTHS[1]) * D


def test_too_many_boundary_elements_test_nothing(evidence, results):
    evidence.boundary = {"a.inner": np.ones((B, N, D), bool) & (np.arange(N) < 2)[None, :, None]}
    comparison = compare(evidence, results)
    assert not comparison.passed
    assert "discontinuity" in comparison.diagnosis.text


def test_behind_other_modules_a_lucky_reference_is_no_alarm(evidence, results, exact):
    """The reference happens to be exact; the port has lost a little in each of three modules."""
    name, u = "score.out", evidence.precision.unit_roundoff
    evidence.reference.tensors[name] = exact[name].float()
    evidence.oracle = {**exact, name: evidence.reference.tensors[name].double()}
    signs = torch.randint(2, exact[name].shape, generator=torch.Generator().manual_seed(3)) * 2 - 1

    def off(share):
        results.untapped = {name: (evidence.oracle[name] * (1 + share * u * signs)).float()}
        return compare(evidence, results).passed

    assert evidence.modules(name, isolated=False) == 3
    assert off(2.6)  # more than 2 u, which one operation may lose, and less than sqrt(3) times that
    assert not off(4.0)


def test_the_padding_of_a_whole_output_counts():
    """An output that promises zeros behind its rows is compared there, too."""
    size = comparisons.TENSORS[comparisons.OUTPUT].shape[1]
    valid = {size: np.arange(size) < comparisons.LENGTHS[:, None]}
    results = comparisons.results_with()
    results.untapped[comparisons.OUTPUT][2, -1] += 1.0
    for whole, passed in (((), True), ((comparisons.OUTPUT,), False)):
        evidence = comparisons.evidence_with(valid=valid, whole_outputs=whole)
        (comparison,) = compare_runners(evidence, [results])
        assert comparison.tap(comparisons.OUTPUT).accumulated.passed is passed
    # Explanations look at the same elements.
    assert evidence.counted(comparisons.OUTPUT, (comparisons.B, size)).all()
