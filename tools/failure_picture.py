"""Write docs/failure.svg, the picture of the README: the screen of a real run of an example with a bug.

PYTHONPATH=. python tools/failure_picture.py
"""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

import parity
from examples import gpt2_block
from parity.report.terminal import render

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "failure.svg"
COMMAND = "python examples/gpt2_block.py"
WIDTH = 100


def screen(result: parity.Result) -> Console:
    """A recorded console with the screen of a result."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(render(result.report))
    return console


if __name__ == "__main__":
    result = gpt2_block.main(gpt2_block.BlockPort)
    PICTURE.write_text(screen(result).export_svg(title="parity", unique_id="parity"))
