"""The option `--checkout` of the scripts in this folder: a folder with public code."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path


def add_to_path(source: str, folder: str, *packages: str) -> Path:
    """Let Python import from a folder of the checkout. Without one, end the process with exit code 2.

    Args:
        source: Arguments of `git clone` that bring the public code.
        folder: The folder, relative to the checkout.
        packages: Packages that the public code needs and this project does not install.

    Returns:
        The checkout.
    """
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--checkout", type=Path, metavar="DIR", help=f"result of: git clone {source} DIR")
    checkout = parser.parse_args().checkout
    if checkout is None or not (checkout / folder).is_dir():
        where = "no --checkout DIR" if checkout is None else f"no {folder} in {checkout}"
        print(f"{where}; get the public code with: git clone {source} DIR", file=sys.stderr)
        sys.exit(2)
    for package in packages:
        if importlib.util.find_spec(package) is None:
            print(f"no {package}: pip install {package}", file=sys.stderr)
            sys.exit(2)
    sys.path.insert(0, str((checkout / folder).resolve()))
    return checkout
