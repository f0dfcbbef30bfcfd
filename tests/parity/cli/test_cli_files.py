"""Files and folders given to the command line: one that cannot be used ends in one message, and 2."""

import errno
import os
import pickle
import re
import shutil

import pytest
import safetensors.torch
import torch

from cases.shipped import load_case
from parity.inputs.weights import case_weights

TINY = ("--case", "hstu_tiny")


SOUND = "1\t5\t3\t100\n1\t6\t4\t200\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SOUND + "1\t61\t4\t300\n", "(ml-100k) has item 61, and 1 rating above num_items 60; use a"),
        (SOUND + "1\t7\n1\tx\t4\t300\n", "has 2 broken lines (line 3: not four fields; line 4: a field"),
        (SOUND + "1\t-7\t4\t300\n", "has 1 broken line (line 3: a field is not a number, or negative)"),
        (SOUND + "1\t7\t9\t300\n", "has 1 broken line (line 3: the rating is not one of 1 to 5"),
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


def test_data_for_one_of_two_cases_name_the_other(refused, tmp_path):
    path = tmp_path / "u.data"
    path.write_text("".join(f"{user}\t{item}\t3\t{1000 + item}\n" for user in (1, 2) for item in range(1, 9)))
    refusal = refused("--case", "hstu_tiny,dlrm_tiny", "--precision", "fp32", "--data", path)
    assert "(in dlrm_tiny)" in refusal
    assert refusal.endswith("give Criteo logs, or name a case that reads these data")


def test_a_data_file_that_cannot_be_read(refused, tmp_path):
    missing = refused(*TINY, "--data", tmp_path / "none")
    assert missing.endswith("cannot be read (No such file or directory); give the path of a rating file")
    assert "cannot be read (Is a directory)" in refused(*TINY, "--data", tmp_path)


def _tiny_weights():
    return case_weights(load_case("hstu_tiny"))[0]


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
    kinds = (
        ("plain", pickle.dumps, "holds objects other than tensors"),
        ("torch", None, "holds an object of posix.mkdir, and is no state dict"),
    )
    for name, write, problem in kinds:
        path = tmp_path / f"{name}.pt"
        exploit = {"weight": _Exploit(tmp_path / "executed")}
        path.write_bytes(write(exploit)) if write else torch.save(exploit, path)
        refusal = refused(*TINY, "--weights", path)
        assert problem in refusal
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
    assert f"--save: {file} is a file; choose a folder" in refused(*TINY, "--save", file)


def test_a_folder_that_is_not_empty_is_not_written_over(refused, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.json").write_text("mine")
    message = refused(*TINY, "--save", tmp_path / "out")
    assert message == f"--save: {tmp_path / 'out'} is not empty; choose a new folder; nothing is written over"


@pytest.mark.parametrize("verb", [("run",), ("self-test", "--clean-runs", "1", "--share", "0")])
def test_a_folder_in_a_saved_run_is_refused(refused, tmp_path, verb):
    (tmp_path / "run" / "hstu_tiny").mkdir(parents=True)
    (tmp_path / "run" / "started.json").write_text("{}")
    inner = tmp_path / "run" / "hstu_tiny" / "new"
    told = refused(*verb, "--case", "hstu_tiny", "--precision", "fp32", "--save", inner)
    assert told == f"--save: {inner} lies in the saved run {tmp_path / 'run'}; choose a folder outside of it"


def test_a_folder_whose_name_is_too_long_leaves_none_of_its_parents(refused, tmp_path):
    refusal = refused("--case", "hstu_tiny", "--precision", "fp32", "--save", tmp_path / "new" / ("x" * 300))
    assert "cannot be written (File name too long)" in " ".join(refusal.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ("--case", "hstu_tiny", "--save", ""),
        ("--case", "hstu_tiny", "--data", ""),
        ("--case", "hstu_tiny", "--profile", ""),
        ("replay", ""),
        ("compare", "", ""),
    ],
    ids=lambda arguments: "-".join(arguments[-2:]),
)
def test_an_empty_path_is_not_the_present_folder(command, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    ended = command(*arguments)
    assert ended.code == 2
    assert "the path is empty" in ended.err
    assert not list(tmp_path.iterdir())


def test_bad_input_is_found_before_the_folder_is_made(refused, tmp_path):
    refused(*TINY, "--data", tmp_path / "none", "--save", tmp_path / "out")
    refused(*TINY, "--weights", tmp_path / "none", "--save", tmp_path / "out")


def test_a_verb_for_saved_runs_on_what_is_none(refused, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / "report.json").write_text("{}")
    (tmp_path / "file").write_text("mine")
    none = {"replay": "holds no complete saved run", "resume": "holds no run that was begun with --save"}
    fixes = {"replay": "give the folder of a run with --save", "resume": "begin one with --save"}
    problems = {"none": "does not exist", "file": "is a file"}
    for verb, problem in none.items():
        for name in ("none", "empty", "unfinished", "file"):
            found = problems.get(name, problem)
            assert refused(verb, tmp_path / name) == f"{verb}: {tmp_path / name} {found}; {fixes[verb]}"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: (run / "manifest.json").write_text("[]"), "manifest.json is not as the run wrote it"),
        (lambda run: (run / "manifest.json").unlink(), "holds no complete saved run"),
        (lambda run: (_batch(run) / "fp32" / "record.json").unlink(), "record.json is missing"),
        (lambda run: _cut(_batch(run) / "fp32" / "oracle" / "tapped.safetensors"), "is not as the run wrote"),
        (lambda run: shutil.rmtree(_batch(run)), "is missing"),
    ],
    ids=["manifest", "no_manifest", "no_record", "capture", "batch"],
)
def test_a_replay_of_a_damaged_run(refused, saved_run, tmp_path, damage, message):
    shutil.copytree(saved_run.folder, tmp_path / "run")
    damage(tmp_path / "run")
    refusal = refused("replay", tmp_path / "run")
    assert message in refusal
    assert str(tmp_path / "run") in refusal


def _batch(run):
    return run / "hstu_tiny" / "batch_0000"


def _cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def test_a_replay_takes_no_other_options(refused, saved_run, tmp_path):
    message = refused("replay", saved_run.folder, "--save", tmp_path / "out", "--precision", "fp16")
    assert (
        message == "replay: --save is no option of this verb; leave it out; "
        "it belongs to run, precision, self-test, serve"
    )


def test_a_refusal_leaves_no_folder_for_traces(refused):
    message = refused("--case", "dlrm_tiny", "--weights", "none", "--profile", "a/b")
    assert "weights: none cannot be read" in message


@pytest.mark.parametrize(("saved", "traces"), [("new", "new"), ("new", "new/traces"), ("new/run", "new")])
def test_two_new_folders_lie_apart(refused, saved, traces):
    message = refused("run", *TINY, "--save", saved, "--profile", traces)
    assert re.search("--(save|profile): new.* is or lies in the folder of --(save|profile)", message)


def test_more_rows_than_bytes_are_refused_where_the_case_knows_no_sizes(refused):
    for rows in (2**63, 10**400):
        message = refused("run", "--model", "parity.cli.new_case:case", "--batch", rows)
        assert re.match("case: new_case needs .* GiB of memory, and .* GiB are available; give", message)


def test_rows_that_a_case_does_not_make_are_refused(refused, tmp_path_factory, monkeypatch):
    code = tmp_path_factory.mktemp("code")
    (code / "fixed_rows.py").write_text(
        "from parity.cli.new_case import NewCase\n"
        "class Fixed(NewCase):\n"
        "    def make_inputs(self):\n"
        "        return {name: array[:5] for name, array in super().make_inputs().items()}\n"
    )
    monkeypatch.syspath_prepend(code)
    message = refused("run", "--model", "fixed_rows:Fixed", "--batch", 64)
    assert message == (
        "--batch: 64 does not change new_case, whose make_inputs gives 5 rows; "
        "make self.batch_size rows, or leave --batch out"
    )


@pytest.mark.parametrize(
    ("option", "arguments"),
    [("--save", ("precision", "--case", "dlrm_tiny")), ("--profile", ("run", *TINY))],
    ids=["precision", "traces"],
)
def test_a_target_that_exists_is_refused_before_any_work(refused, tmp_path, option, arguments):
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    for target, problem in (
        ("file", "cannot be written (File exists); choose another folder"),
        ("full", "is not empty; choose a new folder"),
        ("full/x", "cannot be written (File exists); choose another folder"),
        ("/sys/x", "cannot be written"),
    ):
        message = refused(*arguments, option, target)
        assert message.startswith(f"{option}: {target} {problem}")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["x"]


def test_shrink_refuses_a_folder_that_cannot_be_made_before_it_searches(refused):
    message = refused("shrink", "/sys/x", "--case", "dlrm_tiny", "--precision", "fp32")
    assert message.startswith("shrink: /sys/x cannot be written")


def test_shrink_refuses_a_folder_that_exists_before_it_searches(refused, tmp_path):
    (tmp_path / "there").mkdir()
    message = refused("shrink", "there", "--case", "dlrm_tiny", "--precision", "fp32")
    assert message == "shrink: there exists; give a folder that does not exist"


@pytest.mark.parametrize("arguments", [("run", *TINY), ("replay", "saved")])
def test_a_place_without_reports_is_refused_before_the_work(refused, tmp_path, monkeypatch, arguments):
    (tmp_path / "parity_reports").write_text("")
    assert refused(*arguments) == (
        f"parity_reports: {tmp_path / 'parity_reports'} cannot be written (Not a directory); "
        "run in another folder, or give --save where the verb has it"
    )
    (tmp_path / "parity_reports").unlink()

    def read_only(dir):
        # Permissions do not stop the administrator, who may run the tests.
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("parity.cli.output.tempfile.NamedTemporaryFile", read_only)
    assert f"parity_reports: {tmp_path} cannot be written (Read-only file system); run" in refused(*arguments)
    # With --save no report goes there.
    told = refused("run", *TINY, "--save", "saved", "--data", "none")
    assert told.startswith("data: none cannot be read")
