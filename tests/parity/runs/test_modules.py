"""The port against the reference, one test a module, precision and seed.

`pytest -k rel_attn_bias` or `pytest -k "ml1m and bf16"` picks some. A failure prints the module's path, both
errors, the bound and where it comes from, and the five worst elements. Runners run in this process.

`make test` has every case in float32, and the smallest case of each family in the half precisions.
"""

import pytest

from cases.shipped import load_case
from parity.report.assemble import verdict_report
from parity.report.overview import verdict_lines
from tests.parity.case_runs import judged, tapped_paths

# Every variant of every module in small, and the public configurations with their real widths.
RUNS = [
    (case, precision, seed)
    for case, seeds in (
        ("hstu_tiny", (0, 1)),
        ("hstu_tiny_rated", (0,)),
        ("hstu_tiny_combined", (0,)),
        ("hstu_ml1m", (0,)),
        ("stu_tiny", (0, 1)),
        ("stu_tiny_group", (0,)),
        ("dlrm_tiny", (0, 1)),
        ("dlrm_tiny_weighted", (0,)),
        ("dlrm_tiny_qr", (0,)),
        ("dlrm_tiny_md", (0,)),
        ("dlrm_tiny_int8", (0,)),
        ("dlrm_tiny_quantised", (0,)),
        ("hstu_tiny_quantised", (0,)),
        ("stu_tiny_quantised", (0,)),
        ("dlrm_kaggle", (0,)),
        ("dlrm_lecture", (0,)),
        ("dlrm_lecture_index", (0,)),
    )
    for seed in seeds
    for precision in ("fp32", "fp16", "bf16")
]
IN_HALF = ("hstu_tiny", "stu_tiny", "dlrm_tiny", "dlrm_lecture_index", "dlrm_tiny_quantised")
"""Cases that `make test` runs in float16 and bfloat16, too."""


def _runners(case: str) -> tuple[str, ...]:
    has_jagged = "jagged" in load_case(case).forms
    return ("torch_jagged", "tripy") if has_jagged else ("tripy",)


def _id(case: str, precision: str, seed: int) -> str:
    return f"{case}-{precision}-seed{seed}"


def _grouped(case: str, precision: str, seed: int, *values: object, name: str):
    """A parameter set whose tests run in one process, so that they share one run."""
    marks = [pytest.mark.xdist_group(_id(case, precision, seed))]
    if seed != 0 or (precision != "fp32" and case not in IN_HALF):
        marks.append(pytest.mark.full)
    return pytest.param(case, precision, seed, *values, id=name, marks=marks)


@pytest.mark.parametrize(
    ("case", "precision", "seed", "runner", "path"),
    [
        _grouped(*run, runner, path, name=f"{_id(*run)}-{runner}-{path}")
        for run in RUNS
        for runner in _runners(run[0])
        for path in tapped_paths(load_case(run[0]))
    ],
)
def test_module(case, precision, seed, runner, path):
    taps = [tap for tap in judged(case, precision, seed, runner).taps if tap.path == path]
    assert taps, f"{path} left no tap"
    failures = [
        verdict_lines(f"{case}, {precision}, {runner}: {tap.tap} {name}", verdict_report(verdict))
        for tap in taps
        for name, verdict in tap.verdicts.items()
        if not verdict.passed
    ]
    assert not failures, "\n".join(["", *failures])


@pytest.mark.parametrize(
    ("case", "precision", "seed", "runner"),
    [_grouped(*run, runner, name=f"{_id(*run)}-{runner}") for run in RUNS for runner in _runners(run[0])],
)
def test_model(case, precision, seed, runner):
    comparison = judged(case, precision, seed, runner)
    assert comparison.passed, comparison.diagnosis.text
    assert comparison.padding_leak == ""
    # Each module is measured on its own, and none is looked at by position or left out.
    assert {tap.path for tap in comparison.taps} >= set(tapped_paths(load_case(case)))
    output = f"{load_case(case).entry}."
    assert all(tap.isolated for tap in comparison.taps if not tap.tap.startswith(output))


@pytest.mark.parametrize(
    ("case", "precision", "seed"),
    [
        _grouped(*run, name=_id(*run))
        for run in RUNS
        if load_case(run[0]).config.family in ("hstu", "stu", "dlrmv3")
    ],
)
def test_appending_to_the_cache_equals_the_full_forward(case, precision, seed):
    checks = judged(case, precision, seed, "tripy").checks
    loaded = load_case(case)
    if loaded.config.family == "hstu" and loaded.model.positions_per_item > 1:
        assert checks == {}, "an item and its rating are two positions; the cache appends one"
    else:
        assert [check.passed for check in checks.values()] == [True]
