"""A repository of 30 commits of a small port, one of which plants a regression, for `parity bisect`.

    python -m benchmarks.planted_regression FOLDER
    cd FOLDER && parity bisect first last --code model -- parity run --model model.case:case \\
        --precision fp32 --runners tripy --save {report}

Every commit is an edit that a maintainer makes: names, notes, another form of the same function. The tags
`first` and `last` are its ends. `planted` is the regression: the port's norm gets another constant. One
commit does not import.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from pathlib import Path

FILES = {
    "README.md": "# A small ranking model\n",
    "model/__init__.py": "",
    "model/reference.py": """import torch


class Reference(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(50, 16)
        self.norm = torch.nn.LayerNorm(16, eps=1e-5)
        self.hidden = torch.nn.Linear(16, 24)
        self.out = torch.nn.Linear(24, 1)

    def forward(self, ids_B):
        return self.out(torch.relu(self.hidden(self.norm(self.table(ids_B)))))
""",
    "model/port.py": """import nvtripy as tp

from model.settings import EPS, HIDDEN, ROWS, WIDTH


class Port(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.table = tp.Embedding(ROWS, WIDTH, dtype=dtype)
        self.norm = tp.LayerNorm(WIDTH, eps=EPS, dtype=dtype)
        self.hidden = tp.Linear(WIDTH, HIDDEN, dtype=dtype)
        self.out = tp.Linear(HIDDEN, 1, dtype=dtype)

    def forward(self, ids_B):
        x = self.norm(self.table(ids_B))
        return self.out(tp.relu(self.hidden(x)))
""",
    "model/settings.py": "ROWS = 50\nWIDTH = 16\nHIDDEN = 24\nEPS = 1e-5\n",
    "model/case.py": """import numpy as np

import parity
from model.port import Port
from model.reference import Reference


class Case(parity.Case):
    name = "small"
    batch_size = 40

    def build_reference(self):
        return Reference()

    def build_port(self, dtype):
        return Port(dtype)

    def make_inputs(self):
        return {"ids_B": np.random.default_rng(self.seed).integers(0, 50, self.batch_size)}


case = Case()
""",
}
_PORT, _SETTINGS, _README = "model/port.py", "model/settings.py", "README.md"
_END = "# A small ranking model\n"
EDITS = (
    ("Say what the model ranks", _README, _END, f"{_END}\nItems by their identifiers.\n"),
    (
        "Name the embedded rows",
        _PORT,
        "x = self.norm(self.table(ids_B))",
        "rows = self.table(ids_B)\n        x = self.norm(rows)",
    ),
    (
        "Say what the port is",
        _PORT,
        "class Port(tp.Module):\n",
        'class Port(tp.Module):\n    """The port."""\n\n',
    ),
    (
        "Say how to run",
        _README,
        "identifiers.\n",
        "identifiers.\n\nRun `parity run --model model.case:case`.\n",
    ),
    (
        "Name the hidden layer's result",
        _PORT,
        "return self.out(tp.relu(self.hidden(x)))",
        "hidden = tp.relu(self.hidden(x))\n        return self.out(hidden)",
    ),
    (
        "Relu is a maximum",
        _PORT,
        "tp.relu(self.hidden(x))",
        "tp.maximum(self.hidden(x), tp.Tensor(0.0, dtype=x.dtype))",
    ),
    (
        "Relu is an operation again",
        _PORT,
        "tp.maximum(self.hidden(x), tp.Tensor(0.0, dtype=x.dtype))",
        "tp.relu(self.hidden(x))",
    ),
    ("Say what the settings are", _SETTINGS, "ROWS = 50\n", "# Sizes of both sides.\nROWS = 50\n"),
    ("Write rows as a sum", _SETTINGS, "ROWS = 50\n", "ROWS = 49 + 1  # items and padding\n"),
    (
        "Write rows as a number",
        _SETTINGS,
        "ROWS = 49 + 1  # items and padding\n",
        "ROWS = 50  # with the padding\n",
    ),
    ("Name the number of outputs", _SETTINGS, "HIDDEN = 24\n", "HIDDEN = 24\nOUTPUTS = 1\n"),
    ("Import the number of outputs", _PORT, "import EPS, HIDDEN, ROWS", "import EPS, HIDDEN, OUTPUTS, ROWS"),
    ("Use the number of outputs", _PORT, "tp.Linear(HIDDEN, 1, ", "tp.Linear(HIDDEN, OUTPUTS, "),
    ("Begin a helper", _PORT, "class Port", "def scaled(x:\n    return x\n\n\nclass Port"),
    ("Remove the helper", _PORT, "def scaled(x:\n    return x\n\n\nclass Port", "class Port"),
    ("Link the documentation", _README, "Run `parity", "See the documentation.\n\nRun `parity"),
    (
        "Say what the norm is",
        _PORT,
        "        rows = self",
        "        # A row has the mean 0 and the variance 1.\n        rows = self",
    ),
    ("All norms of the company share one constant", _SETTINGS, "EPS = 1e-5\n", "EPS = 1e-3\n"),
    ("Name the normalised rows", _PORT, "x = self.norm(rows)", "normalised = self.norm(rows)"),
    ("Use the normalised rows", _PORT, "self.hidden(x)", "self.hidden(normalised)"),
    ("Say what comes out", _PORT, '"""The port."""', '"""The port, with a score a row."""'),
    ("List the files", _README, "See the", "Files: reference, port, case.\n\nSee the"),
    ("Write the settings in capitals", _SETTINGS, "# Sizes of both sides.", "# SIZES OF BOTH SIDES."),
    ("Write the settings small again", _SETTINGS, "# SIZES OF BOTH SIDES.", "# Sizes of both sides."),
    ("Thank the authors", _README, "Files:", "With thanks to the authors.\n\nFiles:"),
    (
        "Order the imports",
        _PORT,
        "import EPS, HIDDEN, OUTPUTS, ROWS, WIDTH",
        "import EPS, HIDDEN, OUTPUTS\nfrom model.settings import ROWS, WIDTH",
    ),
    ("Name the score", _PORT, "return self.out(hidden)", "score = self.out(hidden)\n        return score"),
    (
        "Return the score at once",
        _PORT,
        "score = self.out(hidden)\n        return score",
        "return self.out(hidden)",
    ),
    ("Release", _README, _END, "# A small ranking model, release 1\n"),
)
"""Message, file, old text and new text of every commit behind the first one."""
PLANTED = "All norms of the company share one constant"


def make(folder: Path) -> None:
    """Make the repository in a new folder, with the tags `first`, `planted` and `last`."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    _git(folder, "init", "--quiet")
    _commit(folder, "A model and its port")
    _git(folder, "tag", "first")
    for message, name, old, new in EDITS:
        path = folder / name
        text = path.read_text()
        if text.count(old) != 1:
            raise ValueError(f"{message!r} does not fit {name}")
        path.write_text(text.replace(old, new))
        _commit(folder, message)
        if message == PLANTED:
            _git(folder, "tag", "planted")
    _git(folder, "tag", "last")


def _commit(folder: Path, message: str) -> None:
    _git(folder, "add", "--all")
    _git(folder, "commit", "--quiet", "--message", message)


def _git(folder: Path, *words: str) -> None:
    people = {f"GIT_{who}_{what}": "port" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    subprocess.run(["git", *words], cwd=folder, env={**os.environ, **people}, check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="new folder")
    make(parser.parse_args().folder)
