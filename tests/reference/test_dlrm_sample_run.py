"""The public README's sample run, from the seed document where it is present, else in short."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from reference.dlrm_sample_run import main, sample_run
from tests.locations import ROOT

SEED = ROOT.parent / "shared" / "seeds" / "004_a3413aec30a2c60a.txt"
# Timings are not compared: every "-1.00 ms/it" is one number of the text, and no other number looks like it.
TIMING = re.compile(r"-?\d+\.\d+ ms/it")
NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:e[+-]?\d+)?")


def seed_output(command_end: str) -> str:
    """The README's lines under the command that ends so."""
    if not SEED.is_file():
        pytest.skip(f"the seed document is not there: {SEED.name}")
    _, _, after = SEED.read_text().partition(f"--data-size=6{command_end}\n")
    output, fence, _ = after.partition("\n```")
    assert fence, "the README's code block has an end"
    return output


def test_losses_of_the_sample_run():
    steps = [line for line in sample_run(6, 2) if "loss" in line and "it " in line]
    assert [line.rpartition("loss ")[2] for line in steps] == [
        "0.451893, accuracy 0.000%",
        "0.402002, accuracy 0.000%",
        "0.275460, accuracy 0.000%",
    ]


@pytest.mark.parametrize(("command_end", "debug"), [("", False), (" --debug-mode", True)])
def test_every_number_of_the_readme(command_end, debug):
    expected = seed_output(command_end)
    ours = "\n".join(sample_run(6, 2, debug))
    numbers = NUMBER.findall(TIMING.sub("", expected))
    assert len(numbers) == (299 if debug else 15)
    assert NUMBER.findall(TIMING.sub("", ours)) == numbers
    assert TIMING.sub("", ours) == TIMING.sub("", expected)


def test_the_command_prints_the_run():
    command = [
        sys.executable,
        "-m",
        "reference.dlrm_sample_run",
        "--mini-batch-size",
        "2",
        "--data-size",
        "6",
        "--debug",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == "\n".join(sample_run(6, 2, debug=True)).splitlines()
    assert done.stderr == ""


def test_a_last_smaller_mini_batch_is_trained_on():
    assert [line.split()[3] for line in sample_run(5, 2) if "loss " in line] == ["1/3", "2/3", "3/3"]


def test_a_size_of_zero_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--mini-batch-size", "0"])
    assert "mini_batch_size=0: must be an integer of at least 1" in capsys.readouterr().err
