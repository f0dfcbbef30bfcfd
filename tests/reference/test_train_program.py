"""`python -m reference.train`: refusals, files, a kill, and parity on trained weights."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

from cases.shipped import load_case
from parity.report.files import read_report
from reference import train, training_tasks
from reference.checkpoints import BEST, CHECKPOINT
from reference.training import TRAIN, VALIDATION, Schedule
from tests.locations import ROOT
from tests.reference.training_setup import write_case, write_clicks, write_ratings

DATA = ROOT.parent / "shared" / "data"
ML_100K, CRITEO = DATA / "ml-100k" / "u.data", DATA / "criteo_sample.csv"
LOSSES = re.compile(r"(initial|best, epoch \d+): train ([\d.]+), validation ([\d.]+)")


def run(*arguments: object):
    """Exit code, output and error text of the program, in this process."""
    with torch.random.fork_rng(devices=[]):
        return CliRunner().invoke(train.main, [str(entry) for entry in arguments])


KILLED = """
import os, signal
from reference import train
report, left = train._Bar.on_step, 7
def on_step(*arguments):
    global left
    report(*arguments)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
train._Bar.on_step = on_step
train.main()
"""
"""The training program, killed within an epoch: at its seventh step."""


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "reference.train", *map(str, arguments)]


@pytest.fixture
def ratings(tmp_path):
    return write_ratings(tmp_path / "u.data")


@pytest.fixture
def clicks(tmp_path):
    return write_clicks(tmp_path / "train.txt")


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_training_on_clicks_says_what_came_of_it(optimizer, clicks, tmp_path):
    case, out = write_case(tmp_path / "small.yaml"), tmp_path / "out"
    ended = run("--case", case, "--data", clicks, "--out", out, "--epochs", 3, "--optimizer", optimizer)
    assert ended.exit_code == 0, ended.output
    assert re.search(r"epoch   1  train \d\.\d{4}  validation \d\.\d{4}", ended.output)
    assert [entry[0].split(",")[0] for entry in LOSSES.findall(ended.output)] == ["initial", "best"]
    assert str(out / BEST) in ended.output
    assert sorted(path.name for path in out.iterdir()) == [BEST, CHECKPOINT]


def test_training_on_ratings_lowers_both_losses(ratings, tmp_path):
    out = tmp_path / "out"
    ended = run(
        "--case", "hstu_tiny", "--data", ratings, "--out", out, "--learning-rate", 0.01, "--batch", 10
    )
    assert ended.exit_code == 0, ended.output
    (_, *initial), (_, *best) = LOSSES.findall(ended.output)
    assert [float(entry) for entry in best] < [float(entry) for entry in initial]
    assert float(best[1]) < float(initial[1])


def test_training_sees_the_rows_that_parity_is_run_on(ratings, clicks, tmp_path):
    case = load_case(write_case(tmp_path / "small.yaml"))
    task, _ = training_tasks._dlrm(case.config, clicks, "sgd", 0.1)
    parts = [task._parts[part] for part in (TRAIN, VALIDATION)]
    batches = case.recorded(case.read(clicks)).inputs
    counts = np.concatenate([inputs["counts"] for inputs in batches])
    assert np.array_equal(torch.cat([part.counts_NC for part in parts]), counts)
    for table in range(26):
        rows = np.concatenate([inputs[f"lS_i_{table}"] for inputs in batches])
        assert np.array_equal(torch.cat([part.rows_TN[table] for part in parts]), rows)

    case = load_case("hstu_tiny").with_input(batch_size=30)
    task, _ = training_tasks._hstu(case.config, ratings, "adamw", 0.001)
    (inputs,) = case.recorded(case.read(ratings)).inputs
    before, last = task._parts[TRAIN], task._parts[VALIDATION]
    for name in ("past_lengths", "past_ids", "ratings", "timestamps"):
        assert np.array_equal(getattr(last, name), inputs[name]), name
    assert np.array_equal(last.targets, inputs["item_ids"][:, 0])
    # What is trained on ends one item earlier: the validation's last history item is its target.
    users = torch.arange(30)
    assert torch.equal(before.targets, last.past_ids[users, last.past_lengths - 1])
    assert torch.equal(before.past_lengths, last.past_lengths - 1)


def test_the_default_folder_has_the_cases_name(ratings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("--case", "hstu_tiny", "--data", ratings, "--epochs", 1).exit_code == 0
    assert (tmp_path / "trained" / "hstu_tiny" / BEST).is_file()


def test_a_terminal_shows_a_bar_with_the_loss():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with train._progress(console, Schedule(epochs=7, patience=1, batch_size=1, seed=0)) as bar:
        bar.on_step(2, 3, 8, 0.12345)
    shown = console.file.getvalue()
    assert "epoch 2 of at most 7, loss 0.1235" in shown
    assert "3/8" in shown


def test_an_occupied_folder_is_refused_before_the_data_are_read(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    ended = run("--case", "hstu_tiny", "--data", tmp_path / "missing", "--out", tmp_path)
    assert (ended.exit_code, "is not empty; choose a new folder" in ended.stderr) == (2, True)


@pytest.mark.full
def test_a_killed_run_continues_to_the_same_bits(ratings, tmp_path):
    options = ["--case", "hstu_tiny", "--data", ratings, "--epochs", 40, "--patience", 40, "--batch", 10]
    assert run(*options, "--out", tmp_path / "whole").exit_code == 0
    killed = tmp_path / "killed"
    for resume in ([], ["--resume"]):
        words = [sys.executable, "-c", KILLED, *map(str, options), "--out", str(killed), *resume]
        assert subprocess.run(words, cwd=ROOT).returncode == -signal.SIGKILL
    state = torch.load(killed / CHECKPOINT, weights_only=True)["state"]
    assert 2 <= state["progress"]["epoch"] < 40, "it was killed in the middle"
    assert run(*options, "--out", killed, "--resume").exit_code == 0
    assert (killed / BEST).read_bytes() == (tmp_path / "whole" / BEST).read_bytes()
    whole, continued = (
        torch.load(tmp_path / name / CHECKPOINT, weights_only=True)["state"] for name in ("whole", "killed")
    )
    assert whole["progress"] == continued["progress"]
    assert torch.equal(whole["rng"], continued["rng"])
    for key, tensor in whole["model"].items():
        assert torch.equal(tensor, continued["model"][key]), key


def test_it_imports_neither_the_port_nor_the_harness():
    code = "import sys, reference.train; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    modules = ended.stdout.split()
    assert {name for name in modules if name.split(".")[0] == "parity"} == {
        "parity",
        "parity.base",
        "parity.base.errors",
        "parity.base.interruption",
        "parity.base.locks",
        "parity.base.module_patterns",
        "parity.base.option_numbers",
        "parity.base.process",
        "parity.base.quantisation",
        "parity.base.streams",
        "parity.base.strict_yaml",
        "parity.base.supervision",
    }, "configs' YAML and patterns, numbers of options, the end of a program, its streams and locks alone"
    actual = {name.split(".")[0] for name in modules}
    assert {"reference", "configs", "datasets", "torch"} <= actual
    assert not actual & {
        "cases",
        "nvtripy",
        "tripy_port",
        "tripy_portable",
        "mlir_tensorrt",
        "tensorrt",
    }


CLICK_PROBABILITY = "does not end in one click probability; end arch_mlp_top in 1, under a sigmoid"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--case hstu_tinny", "case: 'hstu_tinny' is not known; did you mean 'hstu_tiny'?"),
        (
            "--case dlrm_lecture",
            "--case: dlrm_lecture is of the family lecture_dlrm; use a case of dlrm or dlrmv3 or hstu",
        ),
        ("--case hstu_tiny_combined", "--case: hstu_tiny_combined has ratings at positions of their own"),
        ("--case hstu_tiny --data CLICKS", "train.txt holds Criteo logs, and hstu_tiny is of hstu"),
        (
            "--case dlrm_kaggle --data RATINGS",
            "u.data holds MovieLens ratings, and dlrm_kaggle is of dlrm; use a case of hstu, or other data",
        ),
        ("--case dlrm_tiny --data absent.txt", "data: absent.txt does not exist"),
        ("--case dlrm_tiny --data CLICKS", "has 13 dense and 26 sparse features, and dlrm_tiny takes"),
        ("--case hstu_tiny --data none", "data: none cannot be read (No such file or directory)"),
        ("--case dlrm_kaggle --data none", "data: none does not exist"),
        ("--optimizer sgd", "--optimizer: sgd does not train hstu; use adamw"),
        (
            "--case dlrm_kaggle --data CLICKS --optimizer adamw",
            "--optimizer: adamw does not train dlrm; use sgd or adagrad",
        ),
        (
            "--learning-rate 0",
            "--learning-rate: 0.0 is no positive number up to 1e+30; give one such",
        ),
        ("--learning-rate nan", "--learning-rate: nan is no positive number"),
        ("--learning-rate 1e39", "--learning-rate: 1e+39 is no positive number up to 1e+30"),
        (f"--batch {10**30}", "is not in the range 1<=x<=9223372036854775807"),
        ("--learning-rate 1e30", "learning rate: 1e+30 makes the loss "),
        ("--resume", "out is no folder; give the --out of the run to continue"),
        ("--epochs 0", "0 is not in the range x>=1"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(options, message, ratings, clicks, tmp_path):
    files = {"RATINGS": ratings, "CLICKS": clicks}
    # Of an option that is given twice the last one counts.
    words = ["--case", "hstu_tiny", "--data", "RATINGS", "--out", tmp_path / "out", *options.split()]
    ended = run(*(files.get(entry, entry) for entry in words))
    assert ended.exit_code == 2, ended.output
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


def test_long_and_unprintable_values_are_quoted_in_part(tmp_path):
    for value in ("a" * 5000, "\x1b[31m", "a/" * 2000):
        for option in ("--case", "--data", "--out"):
            words = ["--case", "hstu_tiny", "--data", "none", "--out", tmp_path / "out", option, value]
            ended = run(*words)
            assert ended.exit_code == 2, ended.output
            assert len(ended.stderr) < 1000
            assert "\x1b" not in ended.stderr


def test_many_problems_of_a_case_are_six_lines(tmp_path):
    case = tmp_path / "x.yaml"
    case.write_text("family: hstu\nmodel: {}\n" + "".join(f"key_{n}: 1\n" for n in range(9)))
    ended = run("--case", case, "--data", "none", "--out", tmp_path / "out")
    assert ended.exit_code == 2
    lines = ended.stderr.strip().split("\n")
    assert len(lines) == 6
    assert lines[-1].endswith("more lines")


def test_a_top_mlp_without_a_click_probability_is_refused(clicks, tmp_path):
    for change in (('"6-1"', '"6-2"'), ("model:\n", "model:\n  sigmoid_top: -1\n")):
        case = write_case(tmp_path / "small.yaml")
        case.write_text(case.read_text().replace(*change))
        ended = run("--case", case, "--data", clicks, "--out", tmp_path / "out")
        assert ended.exit_code == 2
        assert CLICK_PROBABILITY in ended.stderr


def test_too_little_data_is_refused(tmp_path):
    one_row = write_clicks(tmp_path / "train.txt", rows=1)
    ended = run("--case", "dlrm_kaggle", "--data", one_row, "--out", tmp_path / "out")
    assert (ended.exit_code, "has 1 rows; give at least two" in ended.stderr) == (2, True)
    pairs = tmp_path / "u.data"
    pairs.write_text("1\t3\t5\t10\n1\t4\t5\t11\n2\t3\t5\t10\n")
    ended = run("--case", "hstu_tiny", "--data", pairs, "--out", tmp_path / "out")
    assert (ended.exit_code, "has no user with three ratings" in ended.stderr) == (2, True)


def test_a_run_continues_with_the_same_options_and_data_only(ratings, tmp_path):
    options = ["--case", "hstu_tiny", "--data", ratings, "--epochs", 1, "--out", tmp_path / "out"]
    assert run(*options).exit_code == 0
    again = run(*options)
    assert (again.exit_code, "is not empty" in again.stderr) == (2, True)
    assert run(*options, "--resume").exit_code == 0
    for name, value, message in (
        ("--epochs", 2, "epochs 1 there, 2 here"),
        ("--seed", 1, "seed 0 there, 1 here"),
        ("--learning-rate", 0.5, "learning_rate 0.001 there, 0.5 here"),
        ("--case", "hstu_ml1m", "case hstu_tiny there, hstu_ml1m here, model "),
    ):
        other = run(*options, "--resume", name, value)
        assert (other.exit_code, message in other.stderr) == (2, True), other.stderr
    write_ratings(ratings, users=31)
    other = run(*options, "--resume")
    assert (other.exit_code, "other settings (data " in other.stderr) == (2, True)


def parity(folder: Path, *arguments: object):
    """The saved report of a parity run."""
    ended = subprocess.run(
        [sys.executable, "run_parity.py", *map(str, arguments), "--precision", "fp32", "--save", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr
    return read_report(folder / "report.json")


@pytest.mark.full
@pytest.mark.skipif(not ML_100K.exists(), reason=f"{ML_100K.name} of MovieLens 100K is not in shared/data")
def test_real_ratings_train_and_the_port_agrees_on_the_trained_weights(tmp_path):
    """A few users of the real file, so that parity is one small batch of them."""
    some = tmp_path / "u.data"
    lines = ML_100K.read_text().splitlines(keepends=True)
    some.write_text("".join(line for line in lines if int(line.split("\t")[0]) <= 40))
    out = tmp_path / "out"
    ended = run("--case", "hstu_ml1m", "--data", some, "--out", out, "--epochs", 2, "--batch", 10)
    assert ended.exit_code == 0, ended.output
    (_, *initial), (_, *best) = LOSSES.findall(ended.output)
    assert all(float(after) < float(before) for before, after in zip(initial, best, strict=True))
    options = ["--case", "hstu_ml1m", "--data", some, "--weights", out / BEST, "--runners", "torch,tripy"]
    report = parity(tmp_path / "parity", *options)
    assert report.cases[0].weights_source == str(out / BEST)


@pytest.mark.full
@pytest.mark.skipif(not CRITEO.exists(), reason=f"{CRITEO.name} is not in shared/data")
def test_real_clicks_train_and_the_port_agrees_on_the_trained_weights(tmp_path):
    out = tmp_path / "out"
    ended = run("--case", "dlrm_kaggle", "--data", CRITEO, "--out", out)
    assert ended.exit_code == 0, ended.output
    (_, *initial), (_, *best) = LOSSES.findall(ended.output)
    assert all(float(after) < float(before) for before, after in zip(initial, best, strict=True))
    options = ["--case", "dlrm_kaggle", "--data", CRITEO, "--weights", out / BEST, "--runners", "torch,tripy"]
    report = parity(tmp_path / "parity", *options)
    assert report.cases[0].weights_source == str(out / BEST)
