"""The command line: any wrong input ends in one message and exit code 2, and writes no file."""

import json
import shutil

import click
import pytest

import configs
from parity.base.errors import UserError
from parity.base.precision import PRECISIONS
from parity.cli import output
from parity.cli.program import VERBS
from parity.runners import RUNNERS
from tests.parity.saved_runs import manifest, seal

TINY = ("--case", "hstu_tiny")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--case", "hstu_tinny"), "case: 'hstu_tinny' is not known; did you mean 'hstu_tiny'? use one of"),
        (("--case", "none.yaml"), "case: 'none.yaml' cannot be read (No such file or directory); give"),
        (("--case", "hstu_tiny,./hstu_tiny.yml"), "case: 'hstu_tiny.yml' cannot be read"),
        (("--case", ","), "--case: ',' names nothing; give a name, or leave the option out"),
        (
            (*TINY, "--precision", "fp32,"),
            "--precision: 'fp32,' has a comma without a name; leave that comma out",
        ),
        (("--case", "hstu_tiny,,dlrm_tiny"), "--case: 'hstu_tiny,,dlrm_tiny' has a comma without a name"),
        ((*TINY, "--precision", "fp32,fp32"), "--precision: fp32 is named twice; name it once"),
        ((*TINY, "--runners", "tripy, tripy"), "--runners: tripy is named twice; name it once"),
        (("--case", "hstu_tiny,hstu_tiny"), "--case: hstu_tiny is named twice; name it once"),
        (("--model", "a:case,a:case"), "--model: a:case is named twice; name it once"),
        ((*TINY, *TINY), "--case: 2 values are given; give one"),
        ((*TINY, "--seed", "1", "--seed=2"), "--seed: 2 values are given; give one"),
        (("bisect", "a", "b", "--code", "x,", "--", "c"), "--code: 'x,' has a comma without a name"),
        (
            ("--model", "small"),
            "--model: small is no import path; write it as package.module:attribute, such as",
        ),
        (("--model", "no_such:case"), "--model: no_such:case cannot be imported (No module named 'no_such')"),
        ((*TINY, "--precision", "fp32,", "fp16"), "arguments: fp16 is left over; leave it out; values of"),
        # Without the verb, the call would be a run.
        ((*TINY, "replay", "out"), "arguments: replay out is left over; begin with the verb: `"),
        (("--seed", "3", "list"), "arguments: list is left over; begin with the verb: `"),
        (("list", ""), "arguments: '' is left over; leave it out; values of one option"),
        (("compare", "a", "b", "c", "d"), "arguments: c d is left over; leave it out; values of one option"),
        (("compare", "a"), "NEW: is missing; give it, as in `"),
        (("--case",), "--case: requires an argument; `"),
        ((*TINY, "--verbose=3"), "--verbose: does not take a value; `"),
        ((*TINY, "--weights", ""), "--weights: the path is empty; `"),
        (("replay", ""), "FOLDER: the path is empty; `"),
        (("--runners", ""), "--runners: '' names nothing; give a name, or leave the option out"),
        (("--runners", "torch,tripi"), "--runners: tripi is not known; did you mean 'tripy'? known: torch,"),
        (("--runners", "cuda"), "--runners: cuda is not known; use torch, torch_jagged, "),
        (("--runners", "oracle"), "--runners: oracle is not known; "),
        (("--precision", "fp23"), "--precision: fp23 is not known; did you mean 'fp32'? known: fp32, tf32"),
        (("--precision", "fp32,double"), "--precision: double is not known; use fp32, tf32, fp16, bf16"),
        ((*TINY, "--batch", "0"), "--batch: 0 is below 1; give at least 1"),
        ((*TINY, "--batch", "-3"), "--batch: -3 is below 1; give at least 1"),
        ((*TINY, "--seed", "-1"), "--seed: -1 is below 0; give at least 0"),
        (
            (*TINY, "--batch", "27"),
            "hstu_tiny: padded length: 27 is also the size of the batch or of another axis, so that padding "
            "cannot be told apart; choose another batch size",
        ),
        (("--memory", "-1"), "--memory: -1.0 is no positive number of gigabytes; give one such as 8"),
        (("--memory", "0.5"), "--memory: 0.5 is less than the "),
        (("--memory", "1e9"), "--memory: 1000000000.0 is more than the "),
        (("--time-limit", "-1"), "--time-limit: -1.0 is not a positive number of seconds, or more than"),
        (("--time-limit", "0"), "--time-limit: 0.0 is not a positive number of seconds"),
        (("--time-limit", "nan"), "--time-limit: nan is not a positive number of seconds"),
        (("--time-limit", "inf"), "--time-limit: inf is not a positive number of seconds"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, tuple) else "",
)
def test_an_option_that_cannot_be_used(refused, arguments, message):
    assert message in refused(*arguments)


def test_a_stream_that_needs_more_memory_than_there_is_is_refused_before_it_is_drawn(refused):
    arguments = ("stream", "--case", "hstu_tiny", "--precision", "fp32", "--steps", 10**12)
    assert "--steps: 1000000000000 needs 4.77e+05 GiB of memory" in " ".join(refused(*arguments).split())


@pytest.mark.parametrize("option", ["--batch", "--seed", "--time-limit"])
@pytest.mark.parametrize("text", ["many", "\u0663", "1_0", "\uff11"])
def test_text_where_a_number_belongs(command, option, text):
    ended = command(option, text)
    assert ended.code == 2
    kind, example = ("float", "a number such as 2.5")
    if option != "--time-limit":
        kind, example = "integer", "a whole number such as 8"
    assert " ".join(ended.err.split()) == f"error: {option}: '{text}' is not a valid {kind}; give {example}"


def test_every_number_of_a_verb_has_ascii_digits():
    for verb in VERBS:
        for option in verb.params:
            if isinstance(option.type, (click.types.IntParamType, click.types.FloatParamType)):
                with pytest.raises(click.BadParameter):
                    option.type.convert("\u0663", option, None)


def test_switches_may_be_repeated(command, tmp_path):
    assert "holds no complete saved run" in command("replay", tmp_path, "-v", "-v").err


@pytest.fixture
def case_file(tmp_path):
    """Writes the tiny case with some values changed; `__` leads into a mapping."""

    def write(**changes):
        values = configs.load_case("hstu_tiny").model_dump(mode="json")
        for key, value in changes.items():
            *parents, last = key.split("__")
            target = values
            for parent in parents:
                target = target[parent]
            target[last] = value
        path = tmp_path / "case.yaml"
        path.write_text(json.dumps(values))
        return path

    return write


@pytest.mark.parametrize(
    ("changes", "messages"),
    [
        ({"model__num_blocks": "two"}, ["model.num_blocks: 'two' (text) does not fit; give a whole number"]),
        ({"model__num_blocks": 0}, ["model.num_blocks: 0 is below 1; give at least 1"]),
        ({"model__blocks": 2}, ["model.blocks: 2 is under an unknown key; "]),
        (
            {"model__attention_dim": None, "model__num_heads": 3},
            ["model.attention_dim: missing, and embedding_dim 16 is not divisible by num_heads 3; give"],
        ),
        ({"model__max_sequence_len": 20_000}, ["model.max_sequence_len: 20000 is above 16384; give at most"]),
        (
            {"input__lengths": [1, 2, 3, 4, 25]},
            ["input.lengths[4]: 25 is above model.max_sequence_len 24; give at most 24"],
        ),
        ({"input__lengths": [1, 2, 3, 4, -5]}, ["input.lengths[4]: -5 is below 1; give at least 1"]),
        (
            {"input__num_candidates": 27},
            ["hstu_tiny: padded length: 27 is also the size of the batch or of another axis"],
        ),
        (
            {"model__num_heads": 0, "model__epsilon": "tiny"},
            ["2 to correct", "model.num_heads: 0 is below 1", "model.epsilon: 'tiny' (text) does not fit"],
        ),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, dict) else "",
)
def test_a_case_file_that_cannot_be_used(refused, case_file, changes, messages):
    refusal = refused("--case", case_file(**changes))
    assert all(message in refusal for message in messages), refusal


def test_a_case_file_that_is_no_yaml(refused, tmp_path):
    path = tmp_path / "case.yaml"
    path.write_text("name: [unclosed\n")
    assert "is not valid YAML" in refused("--case", path)


def test_two_cases_of_one_name(refused, case_file):
    assert refused("--case", f"hstu_tiny,{case_file()}") == (
        "name: hstu_tiny is the name of two cases; give each a name of its own"
    )
    assert refused("self-test", "--case", f"hstu_tiny,{case_file()}", "--clean-runs", "0") == (
        "name: hstu_tiny is the name of two cases; give each a name of its own"
    )


def test_list_shows_what_can_be_named(command, content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = command("list")
    assert (ended.code, ended.err) == (0, "")
    lines = [line.strip() for line in ended.out.splitlines()]
    for name in configs.list_cases():
        case = configs.load_case(name)
        (row,) = (line for line in lines if line.split()[:1] == [name])
        assert ("yes" in row.split()[:2]) == case.default
        assert case.description.split()[0] in row
    listed = {line.split()[0] for line in lines if line}
    assert listed >= {*PRECISIONS, *RUNNERS}
    assert "oracle" not in listed
    assert content(tmp_path) == {}


@pytest.fixture
def requested(command, monkeypatch):
    """The request of a command line to the pipeline; no runner starts."""

    def ask(*arguments):
        seen = []

        def run(request, progress, streams=None):
            seen.append(request)
            raise UserError("run", "", "is not asked for", "end here")

        monkeypatch.setattr("parity.pipeline.run", run)
        monkeypatch.setattr("parity.execution.fork_server.start", lambda cases="", one_thread=False: None)
        command(*arguments)
        return seen[0]

    return ask


def test_a_plain_run_is_every_default_case_and_no_runner_is_asked_for(requested):
    request = requested()
    cases = [configs.load_case(name) for name in configs.list_cases()]
    assert [case.name for case in request.cases] == [case.name for case in cases if case.default]
    assert request.precisions == ("fp32", "fp16", "bf16")
    assert {"torch", "torch_jagged", "tripy"} <= set(request.runners)
    assert not request.runners_asked


def test_options_reach_the_pipeline(requested, tmp_path):
    request = requested(
        *("--case", "hstu_tiny_rated, hstu_tiny", "--precision", "bf16,fp32"),
        *("--runners", "tripy,torch"),
        *("--batch", "9", "--seed", "4", "--data", "u.data", "--weights", "w.pt", "--time-limit", "2.5"),
        *("--memory", "4"),
    )
    assert [case.name for case in request.cases] == ["hstu_tiny_rated", "hstu_tiny"]
    assert {(case.input.batch_size, case.input.seed) for case in request.cases} == {(9, 4)}
    assert request.precisions == ("bf16", "fp32")
    assert request.runners == ("tripy", "torch")
    assert request.runners_asked
    assert (str(request.data), str(request.checkpoint), request.save) == ("u.data", "w.pt", None)
    assert (request.timeout, request.memory) == (2.5, 4e9)


@pytest.mark.parametrize(
    ("options", "judged"),
    [
        ("", True),
        ("--case hstu_tiny --precision bf16 --batch 3 --seed 2", True),
        ("--case hstu_tiny --runners torch,tripy", True),
        ("--case hstu_tiny --runners torch", False),
        ("--case hstu_ml1m --data u.data", False),
        ("--case hstu_tiny --weights w.pt", False),
    ],
)
def test_streams_are_judged_where_the_port_runs_on_what_the_case_makes(requested, options, judged):
    assert requested(*options.split()).streams is judged


@pytest.mark.usefixtures("beside_another_report")
@pytest.mark.parametrize(("is_asked", "code"), [(True, 2), (False, 0)])
def test_a_runner_that_is_unavailable_counts_if_it_was_asked_for(
    command, saved_run, tmp_path, monkeypatch, is_asked, code
):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    shutil.copytree(saved_run.folder, run)
    path = run / "hstu_tiny" / "batch_0000" / "fp32" / "record.json"
    record = json.loads(path.read_text())
    record["runners"]["torch_compile"] = {
        "label": "torch.compile dense",
        "status": "UNAVAILABLE",
        "reason": "no compiler",
    }
    path.write_text(json.dumps(record))
    runners = ["torch", "torch_jagged", "torch_compile"]
    seal(run, runners=runners, runners_asked=runners if is_asked else [])
    ended = command("replay", run)
    assert ended.code == code
    assert "UNAVAILABLE: hstu_tiny, fp32, torch.compile dense: no compiler" in ended.out
    assert ("INCOMPLETE: " if is_asked else "PASS: ") in ended.out


@pytest.mark.usefixtures("beside_another_report")
def test_names_of_files_are_shown_as_they_are(command, saved_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    shutil.copytree(saved_run.folder, run)
    (case,) = manifest(run)["cases"]
    seal(run, cases=[case | {"weights_source": "a[red]/b[/bold].pt"}])
    monkeypatch.setattr(output, "REPORTS", tmp_path / ("[/x]" + "long" * 40))
    ended = command("replay", run, "-v")
    assert ended.code == 0
    assert "a[red]/b[/bold].pt" in "".join(ended.out.split())  # a narrow table's title has lines
    (report,) = tmp_path.glob("[[]/*long*/*/report.json")
    assert f"report: {report.relative_to(tmp_path)}" in ended.out.splitlines()
