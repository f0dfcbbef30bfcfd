"""Refuses to build or install where the native packages are present; all metadata is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).parent / "src" / "tripy_portable"))

from guard import refuse_to_shadow_installation

refuse_to_shadow_installation()
setup()
