"""Programs in a process group of their own, as a shell starts them at a terminal."""

import signal
import subprocess

from tests.locations import ROOT


def start(words, **options):
    """Start a program of the checkout with pipes for its text."""
    return subprocess.Popen(
        words,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell ignores SIGINT for programs in the background, and so do their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )
