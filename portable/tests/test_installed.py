"""The installed package: a wheel beside nothing but its dependencies runs the README's three lines."""

import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def run(*command, cwd):
    return subprocess.run(
        [*map(str, command)], cwd=cwd, env={}, capture_output=True, text=True, check=True, timeout=600
    ).stdout


def distributions(names):
    """The distributions of these names and of their requirements, by name."""
    gathered = {}
    while names:
        name = names.pop()
        # An extra and another platform's packages are not installed.
        if name in gathered or not (installed := _installed(name)):
            continue
        gathered[name] = installed
        requirements = map(Requirement, installed.requires or ())
        names += [r.name for r in requirements if not r.marker or r.marker.evaluate({"extra": ""})]
    return gathered


def _installed(name):
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


@pytest.mark.full
@pytest.mark.xdist_group("installed")
def test_three_lines_run_a_program(tmp_path):
    """In an environment that has the declared dependencies of this package, nvtripy, and colored."""
    program = re.search(r"Three lines run a Tripy program:\n\n((?:    .+\n)+)", README)[1].replace("    ", "")
    assert program.count("\n") == 3
    source, wheels = tmp_path / "source", tmp_path / "wheels"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", wheels, source, cwd=tmp_path)
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv/bin/python"
    site = Path(
        run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip()
    )
    run(*pip, "install", "--no-deps", "--no-index", "--target", site, *wheels.glob("*.whl"), cwd=tmp_path)
    declared = [Requirement(text) for text in next(iter(metadata.distributions(path=[str(site)]))).requires]
    names = [requirement.name for requirement in declared if requirement.marker is None]
    assert {"torch", "numpy"} <= set(names)
    for distribution in (*distributions([*names, "colored"]).values(), metadata.distribution("nvtripy")):
        for top in {
            file.parts[0] for file in distribution.files if file.parts[0] not in ("..", "__pycache__")
        }:
            place = Path(distribution.locate_file(top))
            if place.exists() and not (site / top).exists():
                (site / top).symlink_to(place)
    (tmp_path / "program.py").write_text(program)
    out = run(python, "program.py", cwd=tmp_path)
    assert "[[2, 2, 2],\n     [2, 2, 2]]" in out
    where = run(python, "-c", "import tripy_portable; print(tripy_portable.__file__)", cwd=tmp_path)
    assert where.startswith(str(site))
