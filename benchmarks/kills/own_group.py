"""Programs in a process group of their own, as a shell starts them at a terminal."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def start(words: Sequence[str], folder: Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a program in a folder, with pipes for its text."""
    return subprocess.Popen(
        words,
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell ignores SIGINT for programs in the background, and so do their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
