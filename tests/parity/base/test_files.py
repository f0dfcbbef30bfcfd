"""Files are whole or absent, and nothing is written over."""

import json
import os
import subprocess
import sys

import pytest

from parity.base.errors import UserError
from parity.base.files import (
    MAX_DEPTH,
    making,
    parse_json,
    read_file,
    remove_unfinished,
    remove_unfinished_of,
    replacing,
    write_new,
)
from parity.base.locks import LOCK, Locked, locked


def test_a_new_file_is_written_with_its_folders(tmp_path):
    path = tmp_path / "a" / "b" / "file"
    write_new(path, b"content")
    assert path.read_bytes() == b"content"
    assert os.listdir(path.parent) == ["file"]


def test_the_same_content_stays_and_other_content_is_refused(tmp_path):
    path = tmp_path / "file"
    write_new(path, b"content")
    before = path.stat().st_mtime_ns
    write_new(path, b"content")
    assert path.stat().st_mtime_ns == before
    with pytest.raises(UserError, match="exists with other content; remove it"):
        write_new(path, b"other")
    assert path.read_bytes() == b"content"


def test_a_folder_in_the_place_of_the_file_is_refused(tmp_path):
    with pytest.raises(UserError, match="exists with other content"):
        write_new(tmp_path, b"")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot be written \((File exists|Not a directory)\)"):
        write_new(tmp_path / "file" / "inside", b"")


def test_an_error_leaves_the_old_file_and_no_part_of_the_new_one(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def interrupted():
        with replacing(path) as temporary:
            temporary.write_text("half")
            assert path.read_text() == "old"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interrupted()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_the_new_file_takes_the_place_of_the_old_one(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["file"]


def test_an_error_leaves_no_new_folder(tmp_path):
    def filled():
        with replacing(tmp_path / "a" / "b" / "file") as temporary:
            temporary.write_bytes(b"part")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        filled()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["folder", "pipe", "large", "none", "nul\0"])
def test_only_a_regular_file_of_bounded_size_is_read(tmp_path, name):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"123")
    with pytest.raises(OSError, match=r"directory|regular|3 bytes, more than 2|No such file|null"):
        read_file(tmp_path / name, most=2)
    assert read_file(tmp_path / "large", most=3) == b"123"


def test_unfinished_files_are_removed_and_others_stay(tmp_path):
    (tmp_path / "a").mkdir()
    for name in (".a.json.12.34567", "a/.b.12.3", "a/.b", "a/b.12.3", "a/.hidden.json"):
        (tmp_path / name).touch()
    remove_unfinished(tmp_path, "a")
    assert {path.name for path in tmp_path.rglob("*")} == {"a", ".b", "b.12.3", ".hidden.json"}


def test_no_file_is_removed_from_a_folder_of_somebody_else(tmp_path):
    (tmp_path / "a").mkdir()
    for name in ("a/.b.12.3", ".c.12.3"):
        (tmp_path / name).touch()
    remove_unfinished(tmp_path, "started.json")
    assert {path.name for path in tmp_path.rglob("*")} == {"a", ".b.12.3", ".c.12.3"}


def test_unfinished_files_alone_are_those_of_a_killed_beginning(tmp_path):
    for name in (LOCK, ".started.json.12.3"):
        (tmp_path / name).touch()
    remove_unfinished(tmp_path, "started.json")
    assert {path.name for path in tmp_path.rglob("*")} == {LOCK}


def test_unfinished_files_of_living_writers_stay(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    others = [f".a.py.{os.getpid()}.1", ".a.py.1.1", f".b.py.{ended.pid}.1", f".a.py.{ended.pid}", "a.py"]
    for name in (*others, f".a.py.{ended.pid}.1", f".a.py.{10**30}.1"):
        (tmp_path / name).touch()
    remove_unfinished_of(tmp_path / "a.py")
    assert {path.name for path in tmp_path.iterdir()} == set(others)


@pytest.mark.parametrize("document", [None, 3, "x", {}, [], {"a": [1, {"b": []}]}])
def test_json_is_read(document):
    assert parse_json(json.dumps(document)) == document


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a": ', "}")])
def test_json_that_is_too_deep_is_refused_at_any_depth(opening, closing):
    innermost = "[]"
    parse_json(opening * (MAX_DEPTH - 1) + innermost + closing * (MAX_DEPTH - 1))
    for depth in (MAX_DEPTH, 500, *range(900, 1000, 5), 2000, 100_000):
        with pytest.raises(ValueError, match="more than 100 levels"):
            parse_json(opening * depth + innermost + closing * depth)


class TestMaking:
    def test_a_folder_takes_its_name_when_it_is_whole(self, tmp_path):
        with making(tmp_path / "a" / "b") as unfinished:
            (unfinished / "file").touch()
            assert not (tmp_path / "a" / "b").exists()
        assert os.listdir(tmp_path / "a") == ["b"]
        assert os.listdir(tmp_path / "a" / "b") == ["file"]

    def test_an_error_leaves_nothing(self, tmp_path):
        with pytest.raises(RuntimeError), making(tmp_path / "a" / "b"):
            raise RuntimeError
        assert os.listdir(tmp_path) == []

    def test_an_existing_folder_is_left_alone(self, tmp_path):
        with pytest.raises(FileExistsError), making(tmp_path):
            pass

    def test_the_part_of_a_killed_process_is_removed_and_that_of_a_living_one_stays(self, tmp_path):
        part = tmp_path / ".a.unfinished"
        part.mkdir()
        (part / "old").touch()
        with locked(part), pytest.raises(Locked, match="in use by process"), making(tmp_path / "a"):
            pass
        assert os.listdir(part) == ["old"]
        (part / LOCK).touch()
        with making(tmp_path / "a"):
            pass
        assert os.listdir(tmp_path / "a") == []


def test_a_link_to_nothing_is_not_written_over(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with pytest.raises(UserError, match="exists with other content"):
        write_new(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
