"""The command line: whatever is wrong with what was typed ends in one message, 2, and nothing written."""

import json
import os
import pickle
import shutil

import pytest
import safetensors.torch
import torch
import yaml

import configs
import run_parity
from parity.families import get_family
from parity.precision import PRECISIONS
from parity.runners import RUNNERS
from parity.weights import initial_weights

TINY = ("--case", "hstu_tiny")


@pytest.fixture
def refused(command, content, tmp_path, monkeypatch):
    """Runs a command in an empty folder of its own and returns the message that it was refused with."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("parity.pipeline.Runners", None)  # bad input is found before a runner starts

    def run(*arguments):
        before = content(tmp_path)
        ended = command(*arguments)
        assert isinstance(ended.error, SystemExit), ended.error
        assert ended.code == 2
        assert ended.out == ""
        assert "Traceback" not in ended.err
        assert ended.err.startswith("error: ")
        assert ended.err.count("error: ") == 1
        assert content(tmp_path) == before
        return ended.err.removeprefix("error: ").strip()

    return run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--case", "hstu_tinny"), "case: 'hstu_tinny' is not known; did you mean 'hstu_tiny'? use one of"),
        (("--case", "none.yaml"), "case: 'none.yaml' cannot be read (No such file or directory); give"),
        (("--case", "hstu_tiny,./hstu_tiny.yml"), "case: 'hstu_tiny.yml' cannot be read"),
        (("--case", ","), "--case: ',' names nothing; give a name, or leave the option out"),
        (("--runners", ""), "--runners: '' names nothing; give a name, or leave the option out"),
        (("--runners", "torch,tripi"), "--runners: tripi is not known; did you mean 'tripy'? known: torch,"),
        (("--runners", "cuda"), "--runners: cuda is not known; use torch, torch_jagged, "),
        (("--runners", "oracle"), "--runners: oracle is not known; "),
        (("--precision", "fp23"), "--precision: fp23 is not known; did you mean 'fp32'? known: fp32, tf32"),
        (("--precision", "fp32,double"), "--precision: double is not known; use fp32, tf32, fp16, bf16"),
        ((*TINY, "--batch", "0"), "input.batch_size: 0 is below 1; give at least 1"),
        ((*TINY, "--batch", "-3"), "input.batch_size: -3 is below 1; give at least 1"),
        ((*TINY, "--seed", "-1"), "input.seed: -1 is below 0; give at least 0"),
        (
            (*TINY, "--batch", "27"),
            "hstu_tiny: padded length: 27 is also the size of the batch or of another axis, so that padding "
            "cannot be told apart; choose another batch size",
        ),
        (("--time-limit", "-1"), "--time-limit: -1.0 is not a positive number of seconds, or more than"),
        (("--time-limit", "0"), "--time-limit: 0.0 is not a positive number of seconds"),
        (("--time-limit", "nan"), "--time-limit: nan is not a positive number of seconds"),
        (("--time-limit", "inf"), "--time-limit: inf is not a positive number of seconds"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, tuple) else "",
)
def test_an_option_that_cannot_be_used(refused, arguments, message):
    assert message in refused(*arguments)


@pytest.mark.parametrize("option", ["--batch", "--seed", "--time-limit"])
def test_text_where_a_number_belongs(command, option):
    ended = command(option, "many")
    assert ended.code == 2
    assert f"Invalid value for '{option}': 'many' is not a valid" in ended.err


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
        path.write_text(yaml.safe_dump(values))
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
        "--case: hstu_tiny is the name of two cases; give each a name of its own"
    )


SOUND = "1\t5\t3\t100\n1\t6\t4\t200\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SOUND + "1\t61\t4\t300\n", "(ml-100k) has item 61, and 1 ratings above num_items 60; use a"),
        (SOUND + "1\t7\n1\tx\t4\t300\n", "has 2 broken lines (line 3: not four fields; line 4: a field"),
        (SOUND + "1\t-7\t4\t300\n", "has 1 broken lines (line 3: a field is not a number, or negative)"),
        (SOUND + "1\t7\t9\t300\n", "has 1 broken lines (line 3: the rating is not one of 1 to 5"),
        ("1\t5\t3\t100\n", "has no user with two ratings; give a file with histories"),
        ("", "is empty; give MovieLens u.data (tabs)"),
        ("user item\n", "which no known format does; give MovieLens u.data (tabs)"),
    ],
    ids=["item", "fields", "negative", "rating", "single", "empty", "format"],
)
def test_a_data_file_that_cannot_be_used(refused, tmp_path, text, message):
    path = tmp_path / "u.data"
    path.write_text(text)
    refusal = refused(*TINY, "--data", path)
    assert refusal.startswith(f"data: {path} ")
    assert message in refusal


def test_a_data_file_that_cannot_be_read(refused, tmp_path):
    missing = refused(*TINY, "--data", tmp_path / "none")
    assert missing.endswith("cannot be read (No such file or directory); give the path of a rating file")
    assert "cannot be read (Is a directory)" in refused(*TINY, "--data", tmp_path)


def _tiny_weights():
    case = configs.load_case("hstu_tiny")
    model = get_family(case.family).build_reference(case.model, "dense")
    return initial_weights(model, case.input.seed)


class _Exploit:
    """A pickle that makes a folder when it is loaded as pickles usually are."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


POSITIONS, FIRST = "_input_features_preproc._pos_emb.weight", "_hstu._attention_layers.0._uvqk"


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop(POSITIONS), f"has not the model's tensors (only in the model: {POSITIONS})"),
        (lambda w: w.update(more=torch.ones(2)), "has not the model's tensors (only in the file: more)"),
        (
            lambda w: w.update({FIRST: w[FIRST].T.contiguous()}),
            f"has tensors of another shape ({FIRST} is [64, 16] in the file and [16, 64] in the model)",
        ),
        (
            lambda w: w.update({FIRST: w[FIRST].double()}),
            f"has tensors of another type ({FIRST} is float64 in the file and float32 in the model)",
        ),
        (
            lambda w: w[POSITIONS][3].fill_(torch.nan),
            f"NaN or Inf ({POSITIONS} has 16, the first nan at [3, 0]",
        ),
    ],
    ids=["missing", "extra", "shape", "type", "nan"],
)
def test_a_checkpoint_that_does_not_fit(refused, tmp_path, suffix, change, message):
    tensors = _tiny_weights()
    change(tensors)
    path = tmp_path / f"checkpoint.{suffix}"
    (safetensors.torch.save_file if suffix == "safetensors" else torch.save)(tensors, path)
    refusal = refused(*TINY, "--weights", path)
    assert refusal.startswith(f"weights: {path} ")
    assert message in refusal
    assert refusal.count("; ") == 1  # the fix


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_a_checkpoint_that_is_cut_short(refused, tmp_path, suffix):
    path = tmp_path / f"checkpoint.{suffix}"
    (safetensors.torch.save_file if suffix == "safetensors" else torch.save)(_tiny_weights(), path)
    path.write_bytes(path.read_bytes()[:-1000])
    assert f"weights: {path} is cut short" in refused(*TINY, "--weights", path)


@pytest.mark.filterwarnings("error")
def test_a_checkpoint_with_pickled_objects_is_not_executed(refused, tmp_path):
    for name, write in (("plain", pickle.dumps), ("torch", None)):
        path = tmp_path / f"{name}.pt"
        exploit = {"weight": _Exploit(tmp_path / "executed")}
        path.write_bytes(write(exploit)) if write else torch.save(exploit, path)
        refusal = refused(*TINY, "--weights", path)
        assert "holds objects other than tensors" in refusal
        assert "Warning" not in refusal
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [("", "is empty"), ("my weights", "starts like neither"), (None, "cannot be read (No such")],
)
def test_a_file_that_is_no_checkpoint(refused, tmp_path, text, problem):
    path = tmp_path / "checkpoint.pt"
    if text is not None:
        path.write_text(text)
    assert f"weights: {path} {problem}" in refused(*TINY, "--weights", path)


def test_a_folder_that_cannot_be_written(refused, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    # Not even the superuser can make a folder below a file.
    below = refused(*TINY, "--save", file / "out")
    assert below.startswith(f"--save: {file / 'out'} cannot be written (Not a directory); choose a folder")
    assert f"--save: {file} cannot be written (File exists)" in refused(*TINY, "--save", file)


def test_a_folder_that_is_not_empty_is_not_written_over(refused, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.json").write_text("mine")
    message = refused(*TINY, "--save", tmp_path / "out")
    assert message == f"--save: {tmp_path / 'out'} is not empty; choose a new folder; nothing is written over"


def test_bad_input_is_found_before_the_folder_is_made(refused, tmp_path):
    refused(*TINY, "--data", tmp_path / "none", "--save", tmp_path / "out")
    refused(*TINY, "--weights", tmp_path / "none", "--save", tmp_path / "out")


def test_a_replay_of_what_is_no_run(refused, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / "request.json").write_text('{"runners_asked": []}')
    (tmp_path / "file").write_text("mine")
    for name in ("none", "empty", "unfinished", "file"):
        assert refused("--replay", tmp_path / name) == (
            f"--replay: {tmp_path / name} holds no complete saved run; give the folder of a run with --save"
        )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: (run / "request.json").write_text("[]"), "holds no complete saved run"),
        (lambda run: (run / "hstu_tiny" / "case.json").write_text("{}"), "holds no complete saved run"),
        (lambda run: (_batch(run) / "fp32" / "record.json").unlink(), "record.json is missing or"),
        (lambda run: (_batch(run) / "fp32" / "record.json").write_text("{"), "record.json is missing or"),
        (lambda run: (_batch(run) / "inputs.safetensors").unlink(), "inputs.safetensors cannot be read"),
        (lambda run: (_batch(run) / "fp32" / "torch" / "tapped.json").unlink(), "tapped is missing or"),
        (lambda run: _cut(_batch(run) / "fp32" / "oracle" / "tapped.safetensors"), "tapped is missing or"),
        (lambda run: shutil.rmtree(_batch(run)), "is missing or"),
    ],
    ids=["request", "case", "no_record", "record", "inputs", "no_capture", "capture", "batch"],
)
def test_a_replay_of_a_damaged_run(refused, saved_run, tmp_path, damage, message):
    shutil.copytree(saved_run.folder, tmp_path / "run")
    damage(tmp_path / "run")
    refusal = refused("--replay", tmp_path / "run")
    assert message in refusal
    assert str(tmp_path / "run") in refusal


def _batch(run):
    return run / "hstu_tiny" / "batch_0000"


def _cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def test_a_replay_takes_no_other_options(refused, saved_run, tmp_path):
    message = refused("--replay", saved_run.folder, "--save", tmp_path / "out", "--precision", "fp16")
    assert message.startswith("--replay: together with --precision, --save has no meaning")


def test_list_shows_what_can_be_named(command, content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = command("--list")
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


class _Stop(Exception):
    pass


@pytest.fixture
def requested(command, monkeypatch):
    """What a command line asks the pipeline for; nothing runs."""

    def ask(*arguments):
        seen = []

        def run(request, progress):
            seen.append(request)
            raise _Stop

        monkeypatch.setattr(run_parity, "run", run)
        assert isinstance(command(*arguments).error, _Stop)
        return seen[0]

    return ask


def test_a_plain_run_is_every_default_case_and_no_runner_is_asked_for(requested):
    request = requested()
    cases = [configs.load_case(name) for name in configs.list_cases()]
    assert request.cases == tuple(case for case in cases if case.default)
    assert request.precisions == ("fp32", "fp16", "bf16")
    assert {"torch", "torch_jagged", "tripy"} <= set(request.runners)
    assert not request.runners_asked


def test_options_reach_the_pipeline(requested, tmp_path):
    request = requested(
        *("--case", "hstu_tiny_rated, hstu_tiny,hstu_tiny", "--precision", "bf16,fp32"),
        *("--runners", "tripy,torch"),
        *("--batch", "9", "--seed", "4", "--data", "u.data", "--weights", "w.pt", "--time-limit", "2.5"),
    )
    assert [case.name for case in request.cases] == ["hstu_tiny_rated", "hstu_tiny"]
    assert {(case.input.batch_size, case.input.seed) for case in request.cases} == {(9, 4)}
    assert request.precisions == ("bf16", "fp32")
    assert request.runners == ("tripy", "torch")
    assert request.runners_asked
    assert (str(request.data), str(request.checkpoint), request.save) == ("u.data", "w.pt", None)
    assert request.limit == 2.5


@pytest.mark.parametrize(("asked", "code"), [(["torch", "torch_compile"], 2), ([], 0)])
def test_a_runner_that_is_unavailable_counts_if_it_was_asked_for(
    command, saved_run, tmp_path, monkeypatch, asked, code
):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    shutil.copytree(saved_run.folder, run)
    (run / "request.json").write_text(json.dumps({"runners_asked": asked}))
    path = _batch(run) / "fp32" / "record.json"
    record = json.loads(path.read_text())
    record["runners"]["torch_compile"] = {
        "label": "torch.compile dense",
        "status": "UNAVAILABLE",
        "reason": "no compiler",
    }
    path.write_text(json.dumps(record))
    ended = command("--replay", run)
    assert ended.code == code
    assert "UNAVAILABLE: hstu_tiny, fp32, torch.compile dense: no compiler" in ended.out
    assert ("INCOMPLETE: " if asked else "PASS: ") in ended.out


def test_names_of_files_are_shown_as_they_are(command, saved_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    shutil.copytree(saved_run.folder, run)
    path = run / "hstu_tiny" / "case.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"weights_source": "a[red]/b[/bold].pt"}))
    monkeypatch.setattr(run_parity, "REPORTS", tmp_path / ("[/x]" + "long" * 40))
    ended = command("--replay", run)
    assert ended.code == 0
    assert "a[red]/b[/bold].pt" in "".join(ended.out.split())  # a narrow table's title has lines
    (report,) = tmp_path.glob("[[]/*long*/*/report.json")
    assert f"report: {report}" in ended.out.splitlines()
