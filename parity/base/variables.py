"""The environment variables that decide where and with how many threads the program works.

Libraries drop a value that they do not understand, mostly in silence.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from parity.base import onednn
from parity.base.errors import UserError

_NUMBER = r"\s*\+?0*[1-9][0-9]*\s*"
_DEVICE = r"\s*([0-9]+|GPU-[0-9a-fA-F-]+|MIG-[0-9a-zA-Z/-]+)\s*"
PORTABLE_TF32 = "TRIPY_PORTABLE_TF32"
"""The portable runtime's switch for products in TF32, which a runner sets for its precision."""
_FOLDERS = ("TMPDIR", "TEMP", "TMP")
"""Variables with the folder for temporary files. The first one with a value is in force."""


@dataclass(frozen=True)
class _Rule:
    """The values of a variable.

    Attributes:
        pattern: Regular expression of the whole value.
        problem, fix: Words for every other value.
    """

    pattern: str
    problem: str
    fix: str


_THREADS = _Rule(_NUMBER, "is no positive number of threads", "give one such as 4, or unset it")
_SWITCH = _Rule("[01]", "is neither 0 nor 1", "give one of them, or unset it")
_RULES: Mapping[str, _Rule] = {
    # A list has a number for each level of nested regions.
    "OMP_NUM_THREADS": _Rule(f"{_NUMBER}(,{_NUMBER})*", _THREADS.problem, _THREADS.fix),
    "OMP_THREAD_LIMIT": _THREADS,
    # These libraries take an empty value for none.
    **dict.fromkeys(
        ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS"),
        _Rule(f"|{_NUMBER}", _THREADS.problem, _THREADS.fix),
    ),
    # CUDA drops the first device that it does not know and all behind it: the run would have no GPU.
    "CUDA_VISIBLE_DEVICES": _Rule(
        rf"\s*|\s*-1\s*|NoDevFiles|{_DEVICE}(,{_DEVICE})*",
        "is no list of GPUs",
        "give their numbers such as 0,1, or -1 for none, or unset it",
    ),
    "NVIDIA_TF32_OVERRIDE": _SWITCH,
    "OMP_WAIT_POLICY": _Rule(
        r"(?i)\s*(active|passive)\s*",
        "is no policy of waiting threads",
        "give active or passive, or unset it",
    ),
    **dict.fromkeys(
        onednn.VARIABLES,
        _Rule(
            onednn.PATTERN, "is no name of instructions", "give one such as AVX2 or AVX512_CORE, or unset it"
        ),
    ),
}
_SWITCHES = "TRIPY_PORTABLE_"
"""Beginning of the names of the portable runtime's variables."""


def require_text(texts: Iterable[tuple[str, str]]) -> None:
    """Raise `UserError` for a text, given with its field, whose bytes are none in the locale's encoding.

    Python holds such bytes as surrogates, which no report and no saved run can hold.
    """
    for field, text in texts:
        if re.search("[\ud800-\udfff]", text):
            problem = f"has bytes that are no text in {sys.getfilesystemencoding()}"
            fix = "rename it or link to it in ASCII, or set LC_ALL=C.UTF-8 and leave PYTHONUTF8 out"
            raise UserError(field, ascii(text), problem, fix)


@contextlib.contextmanager
def kept(*names: str) -> Iterator[None]:
    """Behind the body, the variables have the values that they had before it, or none."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def require_variables() -> None:
    """Raise `UserError` for the value of an environment variable that cannot be used."""
    paths = (*_FOLDERS, "PYTHONPATH")
    require_text((name, value) for name, value in os.environ.items() if name in paths)
    switches = {name: _SWITCH for name in os.environ if name.startswith(_SWITCHES)}
    for name, rule in {**_RULES, **switches}.items():
        value = os.environ.get(name)
        if value is not None and not re.fullmatch(rule.pattern, value):
            raise UserError(name, repr(value), rule.problem, rule.fix)
    _require_folder()


def _require_folder() -> None:
    """Raise `UserError` if the folder for temporary files would be another one than a variable names."""
    named = [(name, os.environ[name]) for name in _FOLDERS if os.environ.get(name)]
    try:
        used = tempfile.gettempdir()
    except FileNotFoundError as error:
        name, value = named[0] if named else (_FOLDERS[0], "")
        problem = "cannot be written, nor any other folder"
        raise UserError(name, value, problem, "free space, or set it") from error
    if named and os.path.abspath(named[0][1]) != os.path.abspath(used):
        name, value = named[0]
        problem = "cannot be written" if os.path.isdir(value) else "is no folder"
        raise UserError(name, value, problem, "set it to another folder, or unset it")
