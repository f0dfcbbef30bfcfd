"""Completion in bash itself, by the line that the documentation gives."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.locations import ROOT

# bash names the function of a program in the output of `complete`.
ASK = r"""
function=$(complete | sed -n 's/.*-F \(_[a-z_]*_completion\) .*/\1/p')
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
$function "$1"
printf '%s\n' "${COMPREPLY[@]}"
"""


def bash_completions(program: str, folder: Path, **environment: str) -> Callable[..., list[str]]:
    """The words that bash offers for the last one of a call.

    Args:
        program: The program, as the documentation writes it.
        folder: The folder of the call.
        environment: Variables beside those of this process.
    """
    text = (ROOT / "docs" / "command_line.md").read_text()
    (line,) = (line for line in text.splitlines() if line.endswith(f'_COMPLETE=bash_source {program})"'))
    python = Path(sys.executable).parent
    variables = os.environ | {"PATH": f"{python}{os.pathsep}{os.environ['PATH']}"} | environment

    def offered(*words: str) -> list[str]:
        command = ["bash", "--norc", "--noprofile", "-c", line.strip() + ASK, "bash", program, *words]
        ended = subprocess.run(
            command, cwd=folder, env=variables, capture_output=True, text=True, check=True, timeout=120
        )
        assert ended.stderr == ""
        return ended.stdout.split()

    return offered
