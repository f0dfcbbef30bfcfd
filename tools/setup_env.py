"""Make `.venv`, the portable environment in which `make parity` and `make test` run.

    python3 tools/setup_env.py [PYTHON]

The program makes `.venv` anew unless it is complete and current. Current means: made from the present
requirement files, Python and checkout path. That check takes a fraction of a second. PYTHON is the
interpreter to make it with; without it, the first supported one of: the interpreter that runs this file,
python3.11, python3.12, python3.10. Runs before the installation, on any `python3`: standard
library only.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
SUPPORTED = ((3, 11), (3, 12), (3, 10))
ANNOUNCED = ("torch", "fbgemm-gpu-cpu", "nvtripy", "tensorrt-rtx-cu13")
REQUIREMENTS = ("requirements-engine.txt", "requirements.txt", "requirements-dev.txt", "constraints.txt")
INPUTS = (*REQUIREMENTS, "portable/pyproject.toml", "tools/setup_env.py")

# Without a GPU the tests of `kernels/` run in Triton's interpreter. torch's CPU build does not bring Triton.
# Its CUDA build does, in the version that it was made with, and keeps it: hence no line of constraints.txt.
# The interpreter of 3.6 fails with numpy 2.4.
TRITON = "triton==3.9.0"
TRITON_FROM = (3, 11)

# A user's paths must not leak into the environment, nor pip settings that send its packages elsewhere.
# Settings of the packages' source (index, proxy, certificates) stay.
SCRUBBED = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_CONSTRAINT")

# `base` is the interpreter behind a virtual environment: with .venv itself activated, `python3` is the one
# that goes away when .venv is made anew.
PROBE = """
import json, sys
from importlib.metadata import distributions
names = [d.metadata["Name"] for d in distributions()]
base = getattr(sys, "_base_executable", sys.executable)
print(json.dumps({"version": sys.version_info[:3], "base": base, "names": [name for name in names if name]}))
"""

SMOKE = "import mlir_tensorrt, nvtripy, torch; assert mlir_tensorrt.__portable__ is True"


class SetupError(Exception):
    """The environment cannot be made; the message has the fix."""


@dataclass(frozen=True)
class Interpreter:
    """A Python that answered: its base interpreter's path and the names of the distributions that it sees."""

    command: str
    base: str
    version: tuple[int, int, int]
    names: tuple[str, ...]

    @property
    def label(self) -> str:
        return "Python " + ".".join(map(str, self.version))

    @property
    def supported(self) -> bool:
        return self.version[:2] in SUPPORTED


def load_guard() -> ModuleType:
    """The portable package's own rule of native packages, loaded from its file: nothing is installed yet."""
    path = ROOT / "portable/src/tripy_portable/guard.py"
    spec = importlib.util.spec_from_file_location("portable_guard", path)
    guard = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(guard)
    return guard


def refuse_native(interpreter: Interpreter) -> None:
    """Raises SetupError where the native packages are: there the project runs on them, not on stand-ins."""
    is_native = load_guard().is_native_distribution
    if native := sorted({name for name in interpreter.names if is_native(name)}):
        raise SetupError(
            f"{interpreter.command} ({interpreter.label}) has the native packages {', '.join(native)},\n"
            "for which .venv would hold portable stand-ins. Run on the real ones instead:\n"
            "    pip install -r requirements.txt && python run_parity.py"
        )


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without variables that leak into an installation or divert it."""
    return {key: value for key, value in environ.items() if key not in SCRUBBED}


def probe(command: str) -> Interpreter | None:
    """The Python behind `command`. None without an answer, as from an idle shim of pyenv."""
    try:
        answer = subprocess.run(
            [command, "-I", "-c", PROBE],
            env=clean_environment(os.environ),
            capture_output=True,
            text=True,
            timeout=60,
        )
        facts = json.loads(answer.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
    return Interpreter(command, facts["base"], tuple(facts["version"]), tuple(facts["names"]))


def choose_interpreter(requested: str | None) -> Interpreter:
    """The interpreter to make the environment with.

    Raises:
        SetupError: `requested` is not a supported Python, or there is none, or it has the native packages.
    """
    supported = " or ".join("{}.{}".format(*version) for version in sorted(SUPPORTED))
    commands = [requested] if requested else [sys.executable, *("python{}.{}".format(*v) for v in SUPPORTED)]
    tried = []
    for command in commands:
        interpreter = probe(command)
        if interpreter is None:
            tried.append(f"{command}: not there, or does not run")
        elif not interpreter.supported:
            tried.append(f"{command}: {interpreter.label}")
        else:
            refuse_native(interpreter)
            return interpreter
    raise SetupError(
        f"Python {supported} is needed. Tried:\n    " + "\n    ".join(tried) + "\n"
        "Install one of them, or name it: make PYTHON=/path/to/python3.11"
    )


def fingerprint(root: Path, version: tuple[int, ...]) -> str:
    """Fingerprint of the inputs of `root`'s environment; an environment with another one is stale.

    The path is part of it because the portable package is installed by reference to its folder.
    """
    digest = hashlib.sha256(repr((str(root), tuple(version))).encode())
    for name in INPUTS:
        digest.update(hashlib.sha256((root / name).read_bytes()).digest())
    return digest.hexdigest()


def is_current(root: Path, requested: Interpreter | None) -> bool:
    """Whether the environment of `root` is complete, of the present inputs, and of `requested` if given."""
    venv = root / ".venv"
    stamp = venv / "complete"
    if not stamp.is_file():
        return False
    interpreter = probe(str(venv / "bin/python"))
    if interpreter is None or (requested and requested.version != interpreter.version):
        return False
    return stamp.read_text() == fingerprint(root, interpreter.version)


def wants_triton(interpreter: Interpreter) -> bool:
    """Whether Triton is to be added to an environment: where it has a wheel, and torch has not brought it."""
    has_wheel = sys.platform == "linux" and platform.machine() == "x86_64"
    return has_wheel and interpreter.version[:2] >= TRITON_FROM and "triton" not in interpreter.names


def pinned_versions(constraints: str) -> dict[str, str]:
    """Name to version of each unconditional `name==version` line in the text of a constraints file."""
    return dict(re.findall(r"^([\w.-]+)==([^\s;]+)\s*$", constraints, flags=re.MULTILINE))


def run(command: list[str], root: Path, hint: str) -> None:
    """Runs one step of the set-up in `root`. Raises SetupError with `hint` if it fails."""
    environment = clean_environment(os.environ)
    done = subprocess.run(
        command, cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        said = "\n".join(done.stdout.splitlines()[-15:])
        raise SetupError(f"{said}\nSet-up failed: `{' '.join(command)}` ended with {done.returncode}. {hint}")


def build(root: Path, interpreter: Interpreter) -> None:
    """Makes the environment of `root` from nothing. A half-made or stale one is removed first."""
    venv = root / ".venv"
    if venv.is_symlink():
        venv.unlink()
    elif venv.exists():
        shutil.rmtree(venv)
    run(
        [interpreter.base, "-I", "-m", "venv", str(venv)],
        root,
        "Debian and Ubuntu keep venv in a package of its own: apt install python3-venv.",
    )
    python = str(venv / "bin/python")
    log = venv / "setup.log"
    pip = [python, "-I", "-m", "pip", "--quiet", "--disable-pip-version-check", "--log", str(log)]
    install = [*pip, "install", "--constraint", "constraints.txt"]
    # pip calls it a conflict when it cannot reach its index.
    hint = f"Is pip's package index reachable? The log is {log}; the next make starts afresh."
    run([*install, "-r", "requirements-dev.txt", "fbgemm-gpu-cpu", "colored"], root, hint)
    # nvtripy's metadata asks for the native packages, which portable/ stands in for.
    run([*install, "--no-deps", "nvtripy"], root, hint)
    run([*install, "--no-deps", "--no-build-isolation", "--editable", "./portable"], root, hint)
    if (interpreter := probe(python)) and wants_triton(interpreter):
        run([*pip, "install", "--no-deps", TRITON], root, hint)
    # A TensorRT that builds engines without a GPU. Its source packages do not declare their build
    # requirements.
    run([*install, "--no-build-isolation", "tensorrt-rtx-cu13"], root, hint)
    run([python, "-I", "-c", SMOKE], root, hint)
    # Written last: an interrupted set-up leaves no stamp and is done again.
    (venv / "complete").write_text(fingerprint(root, interpreter.version))


def ensure(root: Path, requested: str | None) -> None:
    """Makes the environment of `root` if it is missing, incomplete or stale, and says so on stdout."""
    wanted = choose_interpreter(requested) if requested else None
    if is_current(root, wanted):
        return
    interpreter = wanted or choose_interpreter(None)
    pins = pinned_versions((root / "constraints.txt").read_text())
    packages = ", ".join(f"{name} {pins[name]}" for name in ANNOUNCED)
    state = "out of date" if (root / ".venv/complete").exists() else "missing or incomplete"
    print(
        f".venv is {state}. Installing with {interpreter.label}: {packages}, portable runtime, test tools.\n"
        "The first time takes minutes, mostly for torch. Log: .venv/setup.log",
        flush=True,
    )
    start = time.monotonic()
    build(root, interpreter)
    print(f"Set up in {time.monotonic() - start:.0f} s.", flush=True)


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0 when `.venv` is ready, 1 when it cannot be made, 130 when interrupted."""
    # Two makes at once: the second waits here and then finds the work done.
    lock = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ensure(ROOT, arguments[0] if arguments else None)
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted: the next make starts the set-up afresh.", file=sys.stderr)
        return 130
    finally:
        os.close(lock)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
