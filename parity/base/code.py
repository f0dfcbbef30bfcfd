"""The code that this process runs: digests of its packages, and of files."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_ENGINE = __name__.partition(".")[0]
_SOURCES = {".py", ".yaml", ".yml", ".json", ".toml", ".cu", ".cuh", ".cpp", ".h"}
_CHUNK = 2**20


def is_library(path: str) -> bool:
    """Whether a file belongs to Python or to an installed package."""
    return path.startswith(_LIBRARIES)


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def imported_code() -> dict[str, str]:
    """Digest of each imported package or module at the top level, by name.

    Installed packages are left out, since the environment has their versions; the engine itself is in. A
    package counts with all of its sources and settings, imported or not. Digests are those of the first call.
    """
    digests = {}
    for name in sorted({name.partition(".")[0] for name in tuple(sys.modules)} - {"__main__", "__mp_main__"}):
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        places = tuple(getattr(module, "__path__", ())) or ((file,) if file else ())
        if places and (name == _ENGINE or not any(map(is_library, places))):
            digests[name] = _digest_at_first(places)
    return digests


def present_code(names: Iterable[str]) -> dict[str, str]:
    """Digests of packages and modules at the top level as they are now, by name; without those not found."""
    digests = {}
    for name in names:
        spec = importlib.util.find_spec(name)
        places = tuple(spec.submodule_search_locations or (spec.origin,)) if spec is not None else ()
        if places and all(places):
            digests[name] = _digest(places)
    return digests


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
