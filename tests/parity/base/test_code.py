"""Which files belong to libraries, and which to the user; digests of files."""

import hashlib
import importlib
import importlib.util
import sys
import sysconfig
import types
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest
import torch

from parity.base.code import (
    Code,
    add_unlisted,
    changed_code,
    file_digests,
    imported_code,
    imported_now,
    is_library,
    one_state,
    require_unchanged,
)
from parity.base.errors import UserError


@pytest.fixture
def target(tmp_path, monkeypatch):
    """A folder of the search path with a package, as `pip install --target` leaves it."""
    metadata = tmp_path / "lib-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: lib\nVersion: 1.0\n")
    for file in ("lib/core.py", "lib/deep/core.py", "lib_alone.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    (metadata / "RECORD").write_text("lib/core.py,,\nlib_alone.py,,\nlib-1.0.dist-info/METADATA,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_python_and_its_packages_are_libraries():
    assert is_library(torch.__file__)
    assert is_library(f"{sysconfig.get_path('stdlib')}/json/decoder.py")
    assert is_library("/usr/lib/python3/dist-packages/click/core.py")


@pytest.mark.parametrize("file", ["lib/core.py", "lib/deep/core.py", "lib_alone.py", "lib"])
def test_a_package_beside_its_metadata_is_a_library(target, file):
    assert is_library(str(target / file))


@pytest.mark.parametrize("file", ["mine.py", "mine/model.py", "library/core.py"])
def test_other_files_there_are_the_users(target, file):
    assert not is_library(str(target / file))


def test_a_package_elsewhere_is_the_users(target, tmp_path):
    assert not is_library(str(tmp_path.parent / "lib/core.py"))


def test_the_source_of_an_editable_installation_is_the_users(tmp_path, monkeypatch):
    metadata = tmp_path / "mine.egg-info"
    metadata.mkdir()
    (metadata / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (metadata / "SOURCES.txt").write_text("mine/model.py\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not is_library(str(tmp_path / "mine/model.py"))


def test_a_file_under_the_interpreters_prefix_is_the_users():
    """With the prefix /usr, code in /usr/src/app is the user's."""
    assert not is_library(str(Path(sys.base_prefix) / "src/app/model.py"))


def test_digests_of_files_are_in_their_order(tmp_path):
    paths = [tmp_path / str(number) for number in range(20)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * (3_000_000 if number == 0 else 7))
    assert file_digests(paths) == [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    assert file_digests([]) == []


def test_digests_of_now_follow_an_edit_and_those_of_the_first_call_do_not(tmp_path, monkeypatch):
    (tmp_path / "edited_module.py").write_text("ONE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("edited_module")
    before = imported_code()["edited_module"]
    assert before.places == (str(tmp_path / "edited_module.py"),)
    assert imported_now()["edited_module"] == before
    require_unchanged({"edited_module": before})
    (tmp_path / "edited_module.py").write_text("ONE = 2\n")
    assert imported_code()["edited_module"] == before
    assert imported_now()["edited_module"] != before
    with pytest.raises(UserError, match="code: edited_module changed during the run; run again"):
        require_unchanged({"edited_module": before})
    (tmp_path / "edited_module.py").unlink()
    del sys.modules["edited_module"]
    importlib.invalidate_caches()
    with pytest.raises(UserError, match="code: edited_module changed during the run"):
        require_unchanged({"edited_module": before})


@pytest.mark.parametrize("suffix", [EXTENSION_SUFFIXES[0], ".so"])
def test_what_a_library_compiles_at_run_time_is_not_the_user_s_code(tmp_path, monkeypatch, suffix):
    """Launchers of Triton have one name and many files. An extension on the search path is the user's."""
    file = tmp_path / f"launcher_of_one_kernel{suffix}"
    file.write_bytes(b"machine code")
    module = types.ModuleType("launcher_of_one_kernel")
    module.__spec__ = spec_from_file_location(module.__name__, file)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert module.__name__ not in imported_now()
    # A folder of the search path has it inside, where no import finds it.
    monkeypatch.syspath_prepend(str(tmp_path.parent))
    assert module.__name__ not in imported_now()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert module.__name__ in imported_now()


@pytest.mark.parametrize("folder", ["", "/a/folder/"])
def test_a_module_that_is_made_of_a_text_is_not_the_user_s(monkeypatch, folder):
    """PyTorch makes one at an import. Some versions of Python put the present folder before its name."""
    module = types.ModuleType("made_of_a_text")
    module.__spec__ = spec_from_file_location(module.__name__, f"{folder}<made_of_a_text>.py")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert module.__spec__.has_location
    assert module.__name__ not in imported_code()


def test_a_module_from_a_file_elsewhere_is_the_user_s(tmp_path, monkeypatch):
    (tmp_path / "a_port_elsewhere.py").touch()
    module = types.ModuleType("a_port_elsewhere")
    module.__spec__ = spec_from_file_location(module.__name__, tmp_path / "a_port_elsewhere.py")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert module.__name__ in imported_now()


def test_one_state_has_the_digests_of_all_processes():
    one, same, two, three = Code("1", ("here",)), Code("1", ("there",)), Code("2", ()), Code("3", ())
    assert one_state([{"a": one}, {"a": same, "b": two}]) == {"a": one, "b": two}
    with pytest.raises(UserError, match="code: b changed during the run"):
        one_state([{"a": one, "b": two}, {"b": three}])


def _on_path(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module("found_port")


def _from_file(folder, monkeypatch):
    spec = spec_from_file_location("found_port", _file(folder))
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "found_port", module)
    spec.loader.exec_module(module)
    return module


def _unlisted(folder, monkeypatch):
    spec = spec_from_file_location("found_port", _file(folder))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr("parity.base.code._UNLISTED", {})
    add_unlisted(module.Port.__mro__)
    return module


def _relative(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend("")
    module = importlib.import_module("found_port")
    monkeypatch.chdir(folder.parent)
    return module


def _file(folder):
    package = folder / "found_port" / "__init__.py"
    return package if package.exists() else folder / "found_port.py"


@pytest.mark.parametrize("form", ["found_port.py", "found_port/__init__.py", "found_port/port.py"])
@pytest.mark.parametrize("find", [_on_path, _from_file, _unlisted, _relative])
def test_code_is_the_same_before_and_after_its_import(tmp_path, monkeypatch, find, form):
    """However a case finds it: a process that has not imported the case looks at the same place."""
    # Digests of the first call stay, so that no two tests may share a place.
    folder = tmp_path / f"{find.__name__} {form.replace('/', ' ')}"
    file = folder / form
    if form == "found_port/port.py" and find in (_from_file, _unlisted):
        pytest.skip("a folder without __init__.py has no file to import")
    file.parent.mkdir(parents=True)
    file.write_text("class Port:\n    def forward(self): pass\n")
    with monkeypatch.context() as patch:
        find(folder, patch)
        own = imported_code()["found_port"]
        assert changed_code({"found_port": own}) == ()
    sys.modules.pop("found_port", None)
    importlib.invalidate_caches()
    assert importlib.util.find_spec("found_port") is None
    assert changed_code({"found_port": own}) == ()
    file.write_text("class Port:\n    def forward(self): return 1\n")
    assert changed_code({"found_port": own}) == ("found_port",)
    file.unlink()
    assert changed_code({"found_port": own}) == ("found_port",)


def test_code_that_is_found_by_name_wins_over_its_former_place(tmp_path, monkeypatch):
    """A run in another checkout imports the code that is there."""
    for folder, text in (("former", "ONE = 1\n"), ("here", "ONE = 2\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "in_two_checkouts.py").write_text(text)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path / "former"))
        importlib.import_module("in_two_checkouts")
        own = imported_code()["in_two_checkouts"]
        sys.modules.pop("in_two_checkouts")
    monkeypatch.syspath_prepend(str(tmp_path / "here"))
    assert changed_code({"in_two_checkouts": own}) == ("in_two_checkouts",)


@pytest.mark.parametrize("place", ["/", "/dev/zero", "etc", "."])
def test_a_place_that_holds_no_module_is_not_read(place):
    """A saved run of somebody else may name any place."""
    assert changed_code({"no_such_module": Code("0" * 64, (place,))}) == ("no_such_module",)
