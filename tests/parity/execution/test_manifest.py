"""A saved run proves itself: a replay refuses every change that the run did not make, and names the file."""

import os
import re
import shutil
from pathlib import Path

import pytest

from parity.base.code import Code, changed_code, file_digest, imported_code, present_code
from parity.base.errors import UserError
from parity.base.sealed import read_sealed, sealed
from parity.execution.done import done_code
from parity.execution.folder import RunFolder
from parity.execution.manifest import code_of, read_manifest, write_files
from tests.parity.saved_runs import manifest, rewrite, seal

CASE = "hstu_tiny"
FIRST = f"{CASE}/batch_0000"


@pytest.fixture
def run(saved_run, tmp_path):
    """A copy of a saved run."""
    folder = tmp_path / "run"
    shutil.copytree(saved_run.folder, folder)
    return folder


def _remove(name):
    def damage(run):
        paths = sorted(run.glob(name))
        assert paths, name
        for path in paths:
            path.unlink()

    return damage


def _flip(name, bit=0):
    """Another value of one bit in the middle of a file."""

    def damage(run):
        (path,) = run.glob(name)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1 << bit
        path.write_bytes(content)

    return damage


def _lengthen(name):
    """A hole behind a file's end, which no one can read to its end."""

    def damage(run):
        (path,) = run.glob(name)
        os.truncate(path, 1 << 42)

    return damage


def _copy(source, target):
    def damage(run):
        pairs = [(path, run / target / path.name) for path in sorted(run.glob(source))]
        assert pairs
        for path, other in pairs:
            shutil.copy(path, other)

    return damage


def _replace(name, old, new):
    def damage(run):
        path = run / name
        text = path.read_text()
        assert re.search(old, text)
        path.write_text(re.sub(old, new, text))

    return damage


FORGERIES = {
    "poisoned captures deleted": _remove(f"{FIRST}/fp32/*/poisoned.*"),
    "incremental captures deleted": _remove(f"{FIRST}/fp32/*/incremental.*"),
    "poisoned inputs deleted": _remove(f"{FIRST}/poisoned.safetensors"),
    "the port's captures are the reference's": _copy(f"{FIRST}/fp32/torch/*", f"{FIRST}/fp32/torch_jagged"),
    "a low bit of the oracle": _flip(f"{FIRST}/fp32/oracle/tapped.safetensors"),
    "captures with a hole behind their end": _lengthen(f"{FIRST}/fp32/oracle/tapped.safetensors"),
    "a high bit of the inputs": _flip(f"{FIRST}/inputs.safetensors", 7),
    "a record of another precision": _replace(f"{FIRST}/fp32/record.json", '"fp32"', '"bf16"'),
    "a runner that failed is well": _replace(f"{FIRST}/fp32/record.json", '"OK"', '"UNAVAILABLE"'),
    "inputs of another batch": _copy(f"{CASE}/batch_0001/inputs.safetensors", FIRST),
    "captures of another batch": _copy(f"{CASE}/batch_0001/fp32/torch/*", f"{FIRST}/fp32/torch"),
    "a batch dropped": lambda run: shutil.rmtree(run / CASE / "batch_0001"),
    "the case dropped": lambda run: shutil.rmtree(run / CASE),
    "weights deleted": _remove(f"{CASE}/weights/*"),
    "weights changed": _flip(f"{CASE}/weights/*.safetensors"),
    "the report with its streams changed": _replace("report.json", '"exit_code": 0', '"exit_code": 1'),
    "the report deleted": _remove("report.json"),
    "digests set to zero": _replace("manifest.json", "[0-9a-f]{64}", "0" * 64),
    "a case dropped from the manifest": _replace("manifest.json", '"cases": ', '"others": '),
    "a capture cut short": lambda run: (run / FIRST / "fp32/torch/tapped.safetensors").write_bytes(b"1"),
    "a folder in the place of a file": lambda run: (
        (run / FIRST / "inputs.safetensors").unlink(),
        (run / FIRST / "inputs.safetensors").mkdir(),
    ),
    "a capture added": lambda run: shutil.copy(
        run / FIRST / "fp32/torch/tapped.json", run / FIRST / "fp32/oracle/other.json"
    ),
    "a batch added": lambda run: shutil.copytree(run / CASE / "batch_0001", run / CASE / "batch_0099"),
}


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES)
def test_a_changed_run_is_refused(run, forgery):
    read_manifest(RunFolder(run))
    forgery(run)
    with pytest.raises(UserError) as refusal:
        read_manifest(RunFolder(run))
    assert refusal.value.value.startswith(str(run))


def _described(change):
    """A change of the manifest, sealed."""
    return lambda run: rewrite(run / "manifest.json", change)


def _first(content):
    (case,) = content["cases"]
    return case


def _rehash(name, change=lambda content: content + b" "):
    """A changed file with a new digest in the manifest, but not in the batch's own list."""

    def damage(run):
        path = run / name
        path.write_bytes(change(path.read_bytes()))
        digest = file_digest(path)
        rewrite(run / "manifest.json", lambda content: content["files"].update({name: digest}))

    return damage


SEALED_FORGERIES = {
    "a capture": _rehash(f"{FIRST}/fp32/torch_jagged/tapped.json"),
    "a record": _rehash(f"{FIRST}/fp32/record.json"),
    "a capture gone": lambda run: (
        (run / FIRST / "fp32/torch/incremental.json").unlink(),
        rewrite(
            run / "manifest.json",
            lambda content: content["files"].pop(f"{FIRST}/fp32/torch/incremental.json"),
        ),
    ),
    "no case": _described(lambda content: content.update(cases=[])),
    "no batch": _described(lambda content: _first(content).update(batches=[])),
    "a batch less": _described(lambda content: _first(content)["batches"].pop()),
    "a batch twice": _described(
        lambda content: _first(content)["batches"].append(_first(content)["batches"][0])
    ),
    "no precision": _described(lambda content: _first(content).update(precisions=[])),
    "a precision more": _described(lambda content: _first(content)["precisions"].append("fp99")),
    "another folder of the case": _described(
        lambda content: _first(content)["case"].update(name=f"../run/{CASE}")
    ),
    "an absolute path": _described(
        lambda content: content["files"].update({__file__: file_digest(Path(__file__))})
    ),
}


@pytest.mark.parametrize("forgery", SEALED_FORGERIES.values(), ids=SEALED_FORGERIES)
def test_a_manifest_that_is_sealed_anew_agrees_with_the_batches(run, forgery):
    forgery(run)
    with pytest.raises(UserError):
        read_manifest(RunFolder(run))


def test_a_record_of_another_precision_is_refused(command, run):
    path = run / FIRST / "fp32/record.json"
    path.write_text(path.read_text().replace('"fp32"', '"bf16"', 1))
    seal(run)
    ended = command("replay", run)
    assert ended.code == 2
    assert "record.json is of bf16" in " ".join(ended.err.split())


def test_the_values_of_one_case_under_another_s_name_are_refused(command, run):
    (run / CASE).rename(run / "dlrm_tiny")
    (first,) = manifest(run)["cases"]
    seal(run, cases=[first | {"case": first["case"] | {"name": "dlrm_tiny"}}])
    ended = command("replay", run)
    assert ended.code == 2
    assert "makes hstu_tiny, not dlrm_tiny" in ended.err


@pytest.mark.parametrize("name", [CASE, FIRST, f"{FIRST}/fp32/oracle"], ids=["case", "batch", "runner"])
def test_a_link_to_a_folder_is_refused(run, tmp_path, name):
    shutil.move(run / name, tmp_path / "elsewhere")
    (run / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="is a link to a folder") as refusal:
        read_manifest(RunFolder(run))
    assert refusal.value.value == str(run / name)


def test_a_second_case_cannot_be_dropped(run):
    shutil.copytree(run / CASE, run / "second")
    (first,) = manifest(run)["cases"]
    seal(run, cases=[first, first | {"case": first["case"] | {"name": "second"}}])
    read_manifest(RunFolder(run))
    shutil.rmtree(run / "second")
    with pytest.raises(UserError, match="second/batch_0000.* is missing"):
        read_manifest(RunFolder(run))


def test_the_command_refuses_and_names_the_file(command, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    FORGERIES["a low bit of the oracle"](run)
    ended = command("replay", run)
    assert ended.code == 2
    assert f"{run / FIRST / 'fp32' / 'oracle' / 'tapped.safetensors'} is not as the run wrote it" in ended.err


def test_a_users_own_file_beside_the_report_is_no_part_of_the_run(run):
    (run / "my notes.txt").write_text("approved")
    assert read_manifest(RunFolder(run)).cases[0].case.name == CASE


def test_the_manifest_has_the_facts_of_the_run(saved_run, report):
    read = read_manifest(RunFolder(saved_run.folder))
    assert (read.runners_asked, read.environment) == (("torch", "torch_jagged"), report.environment)
    assert read.cases[0].precisions == ("fp32",)
    assert {"parity", "reference", "cases", "configs"} <= read.code.keys()
    assert "torch" not in read.code
    assert changed_code(read.code) == ()
    names = {path.relative_to(saved_run.folder).as_posix() for path in saved_run.folder.rglob("*.*")}
    assert read.files.keys() == {name for name in names if (saved_run.folder / name).is_file()} - {
        "manifest.json"
    }


def test_a_replay_says_that_the_code_has_changed(run, replayed):
    other = {name: {"digest": "0" * 64, "places": []} for name in ("reference", "gone_with_the_port")}
    seal(run, code=manifest(run)["code"] | other)
    _, report, out = replayed(run)
    assert report.changed_code == ("reference", "gone_with_the_port")
    assert "of other code than today's reference, gone_with_the_port" in " ".join(out.split())


def test_a_replay_keeps_the_environment_of_the_run(run, replayed):
    seal(run, environment={"gpu": "another"})
    assert replayed(run)[1].environment == {"gpu": "another"}


def test_code_that_changes_during_a_run_is_refused(run):
    folder = RunFolder(run)
    rewrite(folder.done()[1].files, lambda done: done["code"]["reference"].update(digest="0" * 64))
    with pytest.raises(UserError, match="code: reference changed during the run"):
        code_of(folder)


def test_files_of_a_batch_are_digested_once_it_is_done(run):
    batch = RunFolder(run).case(CASE).batch(0).precision("fp32")
    before = read_sealed(batch.files)
    batch.files.unlink()
    reference, engine = Code("1", ("a", "b")), Code("2", ())
    write_files(batch, [{"reference": reference}, {"reference": reference, "engine": engine}])
    assert done_code(batch, "resume") == {"reference": reference, "engine": engine}
    polygraphy = [name for name in read_sealed(batch.files)["files"] if name.startswith("polygraphy/")]
    assert before["files"].keys() == read_sealed(batch.files)["files"].keys() - set(polygraphy)


class TestSealed:
    def test_is_read_as_it_was_written(self, tmp_path):
        path = tmp_path / "file.json"
        path.write_bytes(sealed({"b": [1, None, "é"], "a": {"x": 0.1}}))
        assert read_sealed(path) == {"b": [1, None, "é"], "a": {"x": 0.1}}
        rewrite(path, lambda content: content.update(b=2))
        assert read_sealed(path)["b"] == 2

    @pytest.mark.parametrize(
        "text",
        ["", "{", "[]", "3", "{}", '{"sha256": "0", "content": {}}', '{"content": {}}', "[" * 100_000],
        ids=["empty", "cut", "list", "number", "object", "digest", "no digest", "deep"],
    )
    def test_refuses_all_else(self, tmp_path, text):
        path = tmp_path / "file.json"
        path.write_text(text)
        with pytest.raises(ValueError, match="."):
            read_sealed(path)

    @pytest.mark.parametrize(
        "change",
        [
            lambda text: text + b"\n",
            lambda text: text.replace(b": 1", b":1"),
            lambda text: text.replace(b'"a"', b'"\\u0061"'),
            lambda text: text.replace(b'"a": 1', b'"a": 2, "a": 1'),
            lambda text: text.replace(b'"content"', b'"other": 1, "content"'),
        ],
        ids=["end", "space", "escape", "twice", "entry"],
    )
    def test_refuses_other_bytes_of_equal_content(self, tmp_path, change):
        path = tmp_path / "file.json"
        path.write_bytes(change(sealed({"a": 1})))
        with pytest.raises(ValueError, match="not as it was written|has a name twice"):
            read_sealed(path)

    def test_refuses_any_depth(self, tmp_path):
        path = tmp_path / "file.json"
        for depth in (*range(700, 1000, 3), 2000):
            path.write_text(f'{{"sha256": "", "content": {{"a": {"[" * depth}{"]" * depth}}}}}')
            with pytest.raises(ValueError, match="levels"):
                read_sealed(path)


class TestCode:
    def test_a_module_and_a_package_change_with_their_sources(self, tmp_path, monkeypatch):
        package = tmp_path / "made_up_package"
        (package / "sub").mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "sub" / "layers.yaml").write_text("width: 3")
        (tmp_path / "made_up_module.py").write_text("x = 1")
        monkeypatch.syspath_prepend(tmp_path)
        names = ("made_up_package", "made_up_module", "not_there")
        before = present_code(names)
        assert before.keys() == {"made_up_package", "made_up_module"}
        (package / "sub" / "__pycache__").mkdir()
        (package / "sub" / "__pycache__" / "layers.pyc").write_text("compiled")
        assert present_code(names) == before
        (package / "sub" / "layers.yaml").write_text("width: 4")
        (tmp_path / "made_up_module.py").write_text("x = 2")
        after = present_code(names)
        assert all(after[name] != before[name] for name in before)

    def test_text_that_names_no_module_is_not_there(self):
        assert present_code(["..", "", "gone.sub", "a b", "__main__.x", "\0"]) == {}

    def test_installed_packages_are_left_out(self):
        code = imported_code()
        assert {"parity", "tests"} <= code.keys()
        assert not {"torch", "numpy", "json", "pytest"} & code.keys()
        assert changed_code(code) == ()
