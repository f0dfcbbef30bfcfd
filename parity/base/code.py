"""The code that this process runs: digests of its packages, and of files."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import itertools
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.metadata import Distribution
from pathlib import Path
from types import FunctionType

from parity.base.errors import UserError

_LIBRARIES = tuple(
    {f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_FOLDERS_OF_PACKAGES = ("site-packages", "dist-packages")
_ENGINE = __name__.partition(".")[0]
_SOURCES = {".py", ".yaml", ".yml", ".json", ".toml", ".cu", ".cuh", ".cpp", ".h"}
_CHUNK = 2**20
_DIGESTING = min(8, os.cpu_count() or 1)
"""Threads that digest files."""
_UNLISTED: dict[str, tuple[str, ...]] = {}
"""Files of modules that were imported without an entry in `sys.modules`, by the module's name."""


@dataclass(frozen=True)
class Code:
    """The state of a package or module at the top level.

    Attributes:
        digest: Digest of its sources and settings.
        places: Its folders, or its file. A case may find it in a way that no import by name repeats, such as
            a change of `sys.path`, or an import from a file.
    """

    digest: str
    places: tuple[str, ...]


def is_library(path: str) -> bool:
    """Whether a file or folder belongs to Python or to an installed package.

    An installed package lies in a folder of Python's, or beside its metadata, as `pip install --target`
    leaves it.
    """
    place = Path(path)
    if path.startswith(_LIBRARIES) or any(part in _FOLDERS_OF_PACKAGES for part in place.parts):
        return True
    beside = [folder for folder in map(Path, filter(None, sys.path)) if place.is_relative_to(folder)]
    return any(place.relative_to(folder).parts[:1] in _installed(folder) for folder in beside)


@functools.cache
def _installed(folder: Path) -> frozenset[tuple[str, ...]]:
    """The first part of the path of each file that packages have installed in a folder with their metadata.

    Metadata of an editable installation (`.egg-info`) lie beside the user's own code.
    """
    packages = map(Distribution.at, folder.glob("*.dist-info"))
    return frozenset(file.parts[:1] for package in packages for file in package.files or ())


def shown(path: Path) -> str:
    """A path, relative to the working folder if it is inside."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def file_digests(paths: Iterable[Path]) -> list[str]:
    """`file_digest` of files, in their order; threads take several at a time."""
    with ThreadPoolExecutor(max_workers=_DIGESTING) as threads:
        return list(threads.map(file_digest, paths))


def imported_code() -> dict[str, Code]:
    """Each imported package or module at the top level, by name.

    Installed packages are left out, since the environment has their versions; the engine itself is in. A
    package counts with all of its sources and settings, imported or not. Digests are those of the first call.
    """
    return {name: Code(_digest_at_first(places), places) for name, places in _imported().items()}


def imported_now() -> dict[str, Code]:
    """As `imported_code`, with the digests of this moment; without code whose files are gone."""
    imported = _imported().items()
    return {name: Code(_digest(places), places) for name, places in imported if _are_there(places)}


def add_unlisted(classes: Iterable[type]) -> None:
    """Let the files of classes count whose modules `sys.modules` lacks, as after an import from a file."""
    for kind in classes:
        if kind.__module__ in sys.modules:
            continue
        functions = (value for value in vars(kind).values() if isinstance(value, FunctionType))
        file = next((function.__code__.co_filename for function in functions), "")
        if os.path.isfile(file):
            _UNLISTED[kind.__module__.partition(".")[0]] = (os.path.abspath(file),)


def _imported() -> dict[str, tuple[str, ...]]:
    """Places of the imported packages and modules at the top level, without installed packages, by name."""
    imported = {}
    names = {name.partition(".")[0] for name in (*sys.modules, *_UNLISTED)} - {"__main__", "__mp_main__"}
    for name in sorted(names):
        places = _places(getattr(sys.modules.get(name), "__spec__", None)) or _UNLISTED.get(name, ())
        if places and (name == _ENGINE or not any(map(_is_of_libraries, places))):
            imported[name] = places
    return imported


def _is_of_libraries(path: str) -> bool:
    """Whether a file or folder of an imported module is a library's, or what one compiled at run time.

    Triton compiles launchers of kernels, all of one name, each into a file of its own. The sources of the
    kernels count. No import by name would find these files, as it finds an extension of the user's.
    """
    place = Path(path)
    is_compiled = place.name.endswith(tuple(EXTENSION_SUFFIXES))
    return is_library(path) or (is_compiled and place.parent not in map(Path.absolute, map(Path, sys.path)))


def present_code(names: Iterable[str]) -> dict[str, str]:
    """Digests of packages and modules at the top level as they are now, by name; without those not found."""
    places = {name: _places(spec_of(name)) for name in names}
    return {name: _digest(own) for name, own in places.items() if own}


def spec_of(name: str) -> ModuleSpec | None:
    """The place of a module, or None: a saved run may name any text."""
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def changed_code(code: Mapping[str, Code]) -> tuple[str, ...]:
    """Names of the packages and modules that have other digests now, or are not found.

    Where this process finds none of the name, those at the places of the code count.
    """
    here = present_code(code)
    elsewhere = {name: own.places for name, own in code.items() if name not in here}
    here |= {
        name: _digest(places)
        for name, places in elsewhere.items()
        if places and all(_may_hold(place, name) for place in map(Path, places))
    }
    return tuple(name for name, own in code.items() if here.get(name) != own.digest)


def one_state(code: Iterable[Mapping[str, Code]]) -> dict[str, Code]:
    """All code by name, each at its first places. Raises `UserError` if two digests of one name differ."""
    state: dict[str, Code] = {}
    for name, own in itertools.chain.from_iterable(of_process.items() for of_process in code):
        if state.setdefault(name, own).digest != own.digest:
            raise _changed_during_run(name)
    return state


def require_unchanged(code: Mapping[str, Code]) -> None:
    """Raises `UserError` if a package or module has another digest now, or is not found."""
    for name in changed_code(code):
        raise _changed_during_run(name)


def _changed_during_run(name: str) -> UserError:
    fix = "run again: results of two states of the code are not one run"
    return UserError("code", name, "changed during the run", fix)


def _places(spec: ModuleSpec | None) -> tuple[str, ...]:
    """The folders of a package, or the file of a module.

    Nothing for a module that Python itself contains, or that a program makes of a text and not of a file.
    """
    if spec is None:
        return ()
    folders = tuple(spec.submodule_search_locations or ())
    file = spec.origin if spec.has_location else None
    return folders or ((file,) if file and not Path(file).name.startswith("<") else ())


def _are_there(places: Iterable[str]) -> bool:
    return all(map(os.path.exists, places))


def _may_hold(place: Path, name: str) -> bool:
    """Whether a place may be that of a module: a saved run may name any file, and the root of a disk."""
    is_code = place.name.endswith((".py", *EXTENSION_SUFFIXES))
    return place.is_absolute() and ((is_code and place.is_file()) or (place.name == name and place.is_dir()))


def _digest(places: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for place in map(Path, places):
        for path in _sources(place):
            name = path.relative_to(place.parent).as_posix()
            digest.update(f"{name}\0{file_digest(path)}\n".encode())
    return digest.hexdigest()


_digest_at_first = functools.lru_cache(maxsize=None)(_digest)


def _sources(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
        return
    for path in sorted(place.rglob("*")):
        if path.suffix in _SOURCES and path.is_file():
            yield path
