"""The plain run asks every option, line and branch of the shipped models, but for a reviewed list."""

from __future__ import annotations

import importlib

import pytest

from cases.options import cannot_be_asked
from cases.registry import SHIPPED
from parity.base.precision import PRECISIONS
from parity.coverage.lines import Lines
from parity.coverage.options import options_of
from parity.coverage.places import with_probes
from parity.coverage.questions import Coverage, excuse_of
from parity.coverage.source import functions, source_of
from parity.inputs.arrays import make_inputs
from parity.inputs.weights import case_weights
from parity.report.coverage import reported
from parity.runners import make_runner
from parity.studies.serving.port import ServedPort
from parity.studies.serving.requests import Requests
from parity.studies.streaming.command import judge_streams
from tests.cases.asked import asked_by, default_cases, written

OF_CODE = ("module", "function", "line", "branch", "outcome")


@pytest.fixture(scope="module")
def cases():
    return default_cases()


def test_every_choice_of_every_option_is_asked(cases):
    report = reported(options_of(cases), cannot_be_asked())
    assert report.unasked == (), written(report)
    assert report.questions["option"] > 40


@pytest.mark.parametrize(
    "together",
    [
        {"hstu.model.embedding": "categorical", "hstu.model.input_preprocessor": "rated"},
        {"hstu.model.linear_activation": "none", "hstu.model.normalization": "rel_bias"},
        {"stu.model.use_group_norm": "true", "stu.model.max_attn_len": "other"},
        {"stu.model.use_group_norm": "true", "stu.model.contextual_seq_len": "other"},
        {
            "dlrm.model.qr_operation": "mult",
            "dlrm.model.max_bag_size": "set",
            "dlrm.input.per_sample_weights": "true",
            "dlrm.model.qr_flag": "true",
        },
        {"dlrm.model.quantised": "other", "dlrm.input.per_sample_weights": "true"},
    ],
    ids=lambda together: ", ".join(name.rpartition(".")[2] for name in together),
)
def test_some_case_asks_these_options_together(cases, together):
    choices = [{name: option.value for name, option in case.options().items()} for case in cases]
    assert any(together.items() <= of_case.items() for of_case in choices)


@pytest.mark.parametrize("output", ["l2_norm", "layer_norm"])
def test_epsilons_of_blocks_and_output_differ_with_each_output(cases, output):
    models = [case.model for case in cases if case.config.family == "hstu"]
    assert any(
        model.output_postprocessor == output and model.epsilon != model.output_epsilon for model in models
    )


def test_a_choice_that_no_case_takes_is_told(cases):
    without = [case for case in cases if case.options().get("hstu.model.normalization", None) is None]
    without += [case for case in cases if case.name == "hstu_tiny"]
    report = reported(options_of(without), cannot_be_asked())
    missing = {entry.place: entry.missing for entry in report.unasked}
    assert "softmax_rel_bias" in missing["hstu.model.normalization"]


def test_every_place_of_the_reviewed_list_exists(cases):
    options = {name for case in cases for name in case.options()}
    for place in cannot_be_asked():
        module, colon, rest = place.partition(":")
        if not colon:
            assert place in options or "axis" in place or functions(place), place
            continue
        function, _, text = rest.partition(" | ")
        assert function in functions(module), place
        text = text.partition(" | ")[0]
        _, places = with_probes(source_of(module))
        lines = {line.strip() for line in source_of(module).splitlines()}
        assert not text or text in lines | {one.text for one in places}, place
        assert importlib.import_module(module)


def _measured(body, *names):
    """Questions on lines and branches of the port, with the answers of a function of each case."""
    lines, coverage = Lines(SHIPPED.load(names[0]).port_modules()), Coverage()
    with lines.on():
        for name in names:
            body(SHIPPED.load(name))
    lines.answer(coverage)
    return coverage


def _forward(case, precision, name="tripy"):
    """A plain forward of the port on the typical batch."""
    runner = make_runner(name)
    runner.load(case, PRECISIONS[precision], case_weights(case)[0])
    runner.run(make_inputs(case).typical.arrays)


def _left_to(reason):
    """Places of the reviewed list whose reason begins so."""
    return [place for place, given in cannot_be_asked().items() if given.startswith(reason)]


def _open(coverage, places):
    return [
        identity
        for question, answers in coverage.missing()
        for identity in map(question.identity, answers)
        if excuse_of(identity, dict.fromkeys(places, "left out"))
    ]


@pytest.mark.full
def test_streams_of_a_plain_run_ask_what_the_list_leaves_to_them():
    names = ("hstu_tiny", "hstu_tiny_rated", "hstu_tiny_interleaved", "hstu_tiny_positional")

    def run(case):
        _forward(case, "fp32")
        list(judge_streams(case, ("fp32",), None, 6, None))

    assert _open(_measured(run, *names), _left_to("streams")) == []


def test_whole_layers_ask_what_the_list_leaves_to_them():
    def run(case):
        for name in runners:
            _forward(case, "fp32", name)

    places = _left_to("kernels for whole layers")
    runners = ("tripy_jagged", "tripy_layers")
    assert _open(_measured(run, "stu_tiny", "dlrmv3_tiny"), places) == []
    runners = ("tripy_jagged",)
    assert _open(_measured(run, "stu_tiny", "dlrmv3_tiny"), places) != []


@pytest.mark.full
def test_a_served_cache_asks_what_the_list_leaves_to_it():
    def run(case):
        requests = Requests(case, 3, 0, returning=True)
        _forward(case, "fp32", "tripy_jagged")
        ServedPort(requests, PRECISIONS["fp32"], case_weights(case)[0], "tripy_jagged", kv_cache=kv_cache)

    places = _left_to("a k/v cache of served requests")
    kv_cache = 1 << 24
    assert _open(_measured(run, "dlrmv3_tiny", "dlrmv3_tiny_plain"), places) == []
    kv_cache = 0
    assert _open(_measured(run, "dlrmv3_tiny"), places) != []


@pytest.mark.full
def test_half_precision_asks_what_the_list_leaves_to_it():
    def run(case):
        for precision in precisions:
            _forward(case, precision)

    places = _left_to("half precision")
    precisions = ("fp32", "fp16")
    assert _open(_measured(run, "dlrm_tiny_fixed", "dlrm_tiny"), places) == []
    precisions = ("fp32",)
    assert _open(_measured(run, "dlrm_tiny_fixed", "dlrm_tiny"), places) != []


@pytest.mark.full
def test_every_line_and_branch_is_asked(cases):
    report = asked_by(cases)
    unasked = tuple(entry for entry in report.unasked if entry.kind in OF_CODE)
    assert unasked == (), written(report.model_copy(update={"unasked": unasked}))
