"""The option `--checkout` of the scripts in this folder, and modules of that folder of public code."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def public_module(name: str, source: str, folder: str, *packages: str) -> ModuleType:
    """A module of a folder of the checkout. Without the checkout, the process ends with exit code 2.

    Args:
        name: The module's name behind the folder.
        source: Arguments of `git clone` that bring the public code.
        folder: The folder, relative to the checkout.
        packages: Packages that the public code needs and this project does not install.

    Returns:
        The module; from then on, Python finds the folder's others too.
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
    return importlib.import_module(name)
