"""`pip install -r requirements.txt` changes no distribution of NVIDIA's containers.

Neither container can be had here. Each is stood in for by a virtual environment with the metadata, and only
the metadata, of the distributions that the container has (from Tripy's Dockerfile, Dockerfile.release and
pyproject.toml, and nvtripy 0.1.7's own metadata); pip's resolver then says what it would install there. Once
from an index of our own, in which everything has a newer version to be tempted by; once from the real one,
for what the real packages drag in.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest

# One process makes the fixtures of this module.
pytestmark = pytest.mark.xdist_group("environment")

ROOT = Path(__file__).parent.parent
REQUIREMENTS = ROOT / "requirements.txt"
ENGINE = ROOT / "requirements-engine.txt"

# Imports of the engine that are no requirements: Tripy and its stand-in, optional runners and files
# of a report, and the program that loads the plugin. Jinja brings MarkupSafe.
OPTIONAL = {"nvtripy", "mlir_tensorrt", "tensorrt", "tripy_portable", "pytest", "markupsafe"}
OPTIONAL |= {"onnx_ir", "onnxruntime", "onnxscript", "polygraphy", "pynvml", "mlperf_loadgen"}

# Name to version and requirements.
Distributions = Mapping[str, tuple[str, tuple[str, ...]]]

NVTRIPY: Distributions = {
    "nvtripy": (
        "0.1.7",
        (
            "tensorrt-cu12<11,>=10.15",
            "mlir-tensorrt-compiler==0.1.43+cuda12.trt109",
            "mlir-tensorrt-runtime==0.1.43+cuda12.trt109",
            "colored==2.2.3",
            "nvidia-cuda-runtime-cu12",
        ),
    ),
    "tensorrt-cu12": ("10.15.1.29", ("tensorrt-cu12-libs==10.15.1.29", "tensorrt-cu12-bindings==10.15.1.29")),
    "tensorrt-cu12-libs": ("10.15.1.29", ("nvidia-cuda-runtime-cu12",)),
    "tensorrt-cu12-bindings": ("10.15.1.29", ()),
    "mlir-tensorrt-compiler": ("0.1.43+cuda12.trt109", ()),
    "mlir-tensorrt-runtime": ("0.1.43+cuda12.trt109", ()),
    "colored": ("2.2.3", ()),
    "nvidia-cuda-runtime-cu12": ("12.9.79", ()),
}


@dataclass(frozen=True)
class Container:
    """A container's Python and what is installed in it."""

    python: str
    installed: Distributions


CONTAINERS = {
    "release": Container("python3.11", NVTRIPY),
    "development": Container(
        "python3.10",
        {
            **NVTRIPY,
            "torch": ("2.10.0+cu130", ("filelock", "typing-extensions>=4.10.0", "triton==3.6.0")),
            "triton": ("3.6.0", ()),
            "numpy": ("1.26.0", ()),
            "filelock": ("3.20.3", ()),
            "typing-extensions": ("4.12.2", ()),
        },
    ),
}

# An index of our own: beside what the requirements ask for, newer and older versions of what a container has.
INDEX: dict[str, dict[str, tuple[str, ...]]] = {
    "nvtripy": {"0.2.0": ("tensorrt-cu12>=11",)},
    "tensorrt-cu12": {"11.0.0": ()},
    "mlir-tensorrt-compiler": {"0.2.0": ()},
    "mlir-tensorrt-runtime": {"0.2.0": ()},
    "colored": {"2.3.2": ()},
    "torch": {"2.9.1": (), "2.13.0": ("filelock", "typing-extensions>=4.10.0"), "3.0.0": ("filelock",)},
    "triton": {"3.7.1": ()},
    "numpy": {"1.25.2": (), "1.26.4": (), "2.4.6": (), "3.0.0": ()},
    "filelock": {"4.2.11": ()},
    "typing-extensions": {"4.16.0": ()},
    "pydantic": {"2.14.3": ("typing-extensions>=4.14.1",), "3.0.0": ("numpy>=2",)},
    "ruamel-yaml": {"0.19.1": ()},
    "pyarrow": {"25.0.1": ()},
    "threadpoolctl": {"3.8.0": ()},
    "coverage": {"7.17.3": ()},
    "rich": {"15.0.0": ()},
    "click": {"8.5.1": ()},
    "safetensors": {"0.8.0": ()},
    "jinja2": {"3.1.6": ("markupsafe>=2.0",), "4.0.0": ("markupsafe>=2.0",)},
    "markupsafe": {"3.0.4": ()},
    "vl-convert-python": {"1.9.0": (), "2.0.0": ("numpy>=3",)},
    "junitparser": {"5.0.3": ()},
    "tabulate": {"0.10.0": ()},
    "scipy": {"1.16.3": ("numpy<2.6,>=1.25.2",), "1.17.1": ("numpy<2.7,>=1.26.4",)},
    "scikit-learn": {"1.9.1": ("numpy>=1.24.1", "scipy>=1.10.0")},
}


def canonical(name: str) -> str:
    """The one spelling under which pip knows a distribution."""
    return re.sub(r"[-_.]+", "-", name).lower()


def metadata_text(name: str, version: str, requires: tuple[str, ...]) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    return "\n".join([*lines, *(f"Requires-Dist: {requirement}" for requirement in requires), ""])


def write_wheel(folder: Path, name: str, version: str, requires: tuple[str, ...]) -> None:
    """A wheel that holds nothing but its metadata."""
    stem = f"{name.replace('-', '_')}-{version}"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{stem}.dist-info/METADATA", metadata_text(name, version, requires))
        wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{stem}.dist-info/RECORD", "")


def interpreter_of(container: Container) -> str:
    """The container's version of Python where this machine has it, else the one that runs the tests."""
    found = shutil.which(container.python)
    runs = found and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0
    return found if runs else sys.executable


@dataclass(frozen=True)
class StandIn:
    """A virtual environment in which a container's distributions seem to be installed."""

    python: Path
    protected: frozenset[str]

    def would_install(self, requirements: Path, *options: str) -> dict[str, str]:
        """Canonical name to version of what pip would install for `requirements` here. Installs nothing."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check"]
        plan = [*pip, "install", "--quiet", "--dry-run", "--report", "-", "--only-binary", ":all:"]
        # Distributions on a caller's PYTHONPATH seem to be installed.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [*plan, *options, "-r", str(requirements)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        items = [item["metadata"] for item in json.loads(done.stdout)["install"]]
        return {canonical(item["name"]): item["version"] for item in items}

    def touched(self, planned: Mapping[str, str]) -> set[str]:
        """Distributions of the container that `planned` replaces."""
        return self.protected & set(planned)


@pytest.fixture(scope="module", params=CONTAINERS)
def stand_in(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    container = CONTAINERS[request.param]
    venv = tmp_path_factory.mktemp(request.param)
    subprocess.run([interpreter_of(container), "-m", "venv", "--without-pip", str(venv)], check=True)
    (site_packages,) = venv.glob("lib/python3*/site-packages")
    for name, (version, requires) in container.installed.items():
        folder = site_packages / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(metadata_text(name, version, requires))
        (folder / "INSTALLER").write_text("pip\n")
        (folder / "RECORD").write_text("")
    # Pure Python helpers of torch's may be brought up to date; everything else is as NVIDIA tested it.
    return StandIn(venv / "bin/python", frozenset(container.installed) - {"filelock", "typing-extensions"})


@pytest.fixture(scope="module")
def own_index(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """pip's options for resolving from INDEX alone."""
    folder = tmp_path_factory.mktemp("index")
    for name, versions in INDEX.items():
        for version, requires in versions.items():
            write_wheel(folder, name, version, requires)
    return ("--no-index", "--find-links", str(folder))


@pytest.fixture(scope="module")
def real_index(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """pip's options for resolving from the index that this machine is set up with; skips without one."""
    patience = ("--retries", "0", "--timeout", "20")
    probe = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
    folder = str(tmp_path_factory.mktemp("download"))
    if subprocess.run([*probe, folder, *patience, "colored"], capture_output=True).returncode:
        pytest.skip("no package index can be reached from here")
    return patience


def asked_for(*files: Path) -> set[str]:
    """The names in requirement files."""
    lines = (line for file in files for line in file.read_text().splitlines())
    return {canonical(match[0]) for line in lines if (match := re.match(r"\w[\w.-]*", line))}


def imported(*folders: str) -> set[str]:
    """The names of the packages that a folder's modules import from outside of the project."""
    paths = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    nodes = (node for path in paths for node in ast.walk(ast.parse(path.read_text())))
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module.partition(".")[0])
    return names - sys.stdlib_module_names - {path.parent.name for path in ROOT.glob("*/__init__.py")}


def distributions_of() -> dict[str, set[str]]:
    """Distributions by package. Those of `importlib.metadata` lack some packages in Python 3.10."""
    homes: dict[str, set[str]] = {}
    for distribution in metadata.distributions():
        for file in distribution.files or ():
            if file.suffix == ".py":
                package = file.parts[0].removesuffix(".py")
                homes.setdefault(package, set()).add(distribution.metadata["Name"])
    return homes


def test_nothing_native_is_asked_for() -> None:
    asked = asked_for(REQUIREMENTS, ENGINE)
    assert "torch" in asked
    assert not asked & set(NVTRIPY)


def test_the_engine_asks_for_its_imports_and_nothing_else() -> None:
    homes = distributions_of()
    needed = {canonical(home) for name in imported("parity") - OPTIONAL for home in homes[name]}
    assert needed == asked_for(ENGINE)
    assert not asked_for(REQUIREMENTS) & needed
    assert not OPTIONAL - imported("parity")


def test_the_readers_of_data_have_their_imports() -> None:
    assert imported("datasets") <= asked_for(REQUIREMENTS, ENGINE)


class TestOwnIndex:
    def test_nothing_of_the_container_changes(self, stand_in: StandIn, own_index: tuple[str, ...]) -> None:
        planned = stand_in.would_install(REQUIREMENTS, *own_index)
        assert planned["pydantic"] == "2.14.3"
        assert stand_in.touched(planned) == set()

    def test_what_the_container_lacks_comes_in_a_supported_version(
        self, stand_in: StandIn, own_index: tuple[str, ...]
    ) -> None:
        planned = stand_in.would_install(REQUIREMENTS, *own_index)
        lacking = {"torch", "numpy"} - stand_in.protected
        assert lacking <= set(planned)
        assert planned.get("numpy", "2.4.6") == "2.4.6"

    @pytest.mark.parametrize(
        ("requirement", "touched"),
        [
            ("nvtripy>=0.2", "nvtripy"),
            ("tensorrt-cu12>=11", "tensorrt-cu12"),
            ("mlir-tensorrt-runtime!=0.1.43+cuda12.trt109", "mlir-tensorrt-runtime"),
            ("colored>2.2.3", "colored"),
            ("numpy<1.26", "numpy"),
            ("numpy>=2", "numpy"),
            ("scipy>=1.17", "numpy"),
            ("torch==2.13.0", "torch"),
            ("triton>=3.7", "triton"),
        ],
    )
    @pytest.mark.parametrize(
        "stand_in", ["development", pytest.param("release", marks=pytest.mark.full)], indirect=True
    )
    def test_a_bad_requirement_is_seen(
        self, stand_in: StandIn, own_index: tuple[str, ...], tmp_path: Path, requirement: str, touched: str
    ) -> None:
        """`requirement`, in place of what the requirements say, is seen wherever it matters."""
        package = re.match(r"[\w-]+", requirement)[0]
        lines = [line for file in (ENGINE, REQUIREMENTS) for line in file.read_text().splitlines()]
        others = [line for line in lines if not line.startswith((package, "-r"))]
        planted = tmp_path / "requirements.txt"
        planted.write_text("\n".join([*others, requirement]))
        planned = stand_in.would_install(planted, *own_index)
        assert (touched in stand_in.touched(planned)) == (touched in stand_in.protected)


@pytest.mark.full
class TestRealIndex:
    def test_nothing_of_the_container_changes(self, stand_in: StandIn, real_index: tuple[str, ...]) -> None:
        planned = stand_in.would_install(REQUIREMENTS, *real_index)
        assert {"pydantic", "safetensors"} <= set(planned)
        assert stand_in.touched(planned) == set()
