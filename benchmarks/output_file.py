"""The option `--out` of a program that measures: a file that can be written once the work is done."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def output_file(text: str) -> Path:
    """The path of a file to write, a type for `argparse`. Raises its error for a path that cannot be one."""
    path = Path(text)
    if not text or path.is_dir():
        raise argparse.ArgumentTypeError(
            f"{text or 'the path'} is {'a folder' if text else 'empty'}; give a file"
        )
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: {path.parent} is no folder; make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written; choose another file")
    return path
