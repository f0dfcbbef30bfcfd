"""Runs whose digests are all written anew: their parts still have to agree."""

import json
import shutil
import struct

import pytest
from safetensors.numpy import load_file, save_file

from parity.base.errors import UserError
from parity.execution.folder import RunFolder
from parity.execution.manifest import read_manifest
from parity.inputs.arrays import CaseInputs, load, save
from parity.inputs.weights import digest, export, load_export
from parity.report.files import read_report, write_again
from parity.report.replayed import check_replayed
from parity.report.schema import CoverageReport
from tests.parity.saved_runs import manifest, rewrite, seal

CASE = "hstu_tiny"
FIRST = f"{CASE}/batch_0000/fp32"


@pytest.fixture
def run(saved_run, tmp_path, monkeypatch):
    """A copy of a saved run, in the present folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(saved_run.folder, "run")
    return tmp_path / "run"


def of_manifest(change):
    return lambda run: rewrite(run / "manifest.json", change)


def of_case(**facts):
    return of_manifest(lambda content: content["cases"][0].update(facts))


def of_reference(**facts):
    return of_manifest(lambda content: content["cases"][0]["case"].update(facts))


def of_record(change, batch=FIRST):
    def damage(run):
        path = run / batch / "record.json"
        record = json.loads(path.read_text())
        change(record["runners"])
        path.write_text(json.dumps(record))
        seal(run)

    return damage


def of_weights(run):
    path = run / CASE / "weights" / "weights.safetensors"
    save_file({name: array * 2 for name, array in load_file(path).items()}, path)
    seal(run)


def of_other_weights(run):
    """The run says throughout that it is of other weights; only its batches know better."""
    folder = run / CASE / "weights"
    other = {name: array * 2 for name, array in load_export(folder).items()}
    shutil.rmtree(folder)
    export(other, folder)
    of_case(weights_digest=digest(other))(run)
    seal(run)


def of_other_inputs(run):
    path = run / CASE / "batch_0000" / "inputs.safetensors"
    other = load(run / CASE / "batch_0001" / "inputs.safetensors")
    path.unlink()
    save(other, path)
    of_manifest(lambda content: content["cases"][0]["batches"][0].update(digest=other.digest))(run)
    seal(run)


def without_poison(run):
    (run / CASE / "batch_0000" / "poisoned.safetensors").unlink()
    seal(run)


@pytest.mark.parametrize("forgery", [of_other_weights, of_other_inputs, without_poison])
def test_captures_of_other_weights_or_inputs_are_refused(run, forgery):
    forgery(run)
    with pytest.raises(UserError, match=r"replay: .*fp32 ran on other weights or inputs than the run has"):
        read_manifest(RunFolder(run))


def twice_in_the_header(run):
    path = run / FIRST / "torch_jagged" / "tapped.safetensors"
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, end = content[8 : 8 + length].decode().rstrip()[:-1], 8 + length
    name, entry = next(iter(json.loads(header + "}").items()))
    header = f"{header},{json.dumps(name)}:{json.dumps(entry)}}}"
    header += " " * (-len(header) % 8)
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + content[end:])
    seal(run)


def twice_in_a_record(run):
    path = run / FIRST / "record.json"
    path.write_text(path.read_text().replace('"precision":', '"precision": "fp32", "precision":', 1))
    seal(run)


def of_capture(name, change):
    def damage(run):
        path = run / FIRST / name
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))
        seal(run)

    return damage


def widened(content):
    for sums in (content["longest_sums"], content["longest_sums_before"]):
        sums.update(dict.fromkeys(sums, 2**40))


def of_oracle_in_float32(run):
    path = run / FIRST / "oracle" / "tapped.safetensors"
    tensors = load_file(path)
    save_file(
        {
            name: array.astype("float32") if array.dtype == "float64" else array
            for name, array in tensors.items()
        },
        path,
    )
    seal(run)


def without_an_input(run):
    path = run / CASE / "batch_0000" / "inputs.safetensors"
    inputs = load(path)
    path.unlink()
    save(CaseInputs(dict(list(inputs.arrays.items())[1:])), path)
    seal(run)


FORGERIES = {
    "results of the oracle in float32": of_oracle_in_float32,
    "another runtime": of_record(lambda runners: runners["torch"].update(label="torch (another)")),
    "no trials of rows": of_record(lambda runners: runners["torch_jagged"].update(row_trials=None)),
    "an input less": without_an_input,
    "widened limits": of_capture("torch/tapped.json", widened),
    "weights": of_weights,
    "the digest of the weights": of_case(weights_digest="0" * 64),
    "the seed": of_reference(seed=7),
    "the number of rows": of_reference(batch_size=999),
    "a number of rows that is none": of_reference(batch_size=True),
    "another case of that name": of_reference(target="twin:case"),
    "a negative count": of_case(counts={"rows": -1}),
    "the case twice": of_manifest(lambda content: content["cases"].append(content["cases"][0])),
    "two batches of one name": of_manifest(
        lambda content: content["cases"][0]["batches"][1].update(name="typical")
    ),
    "the environment": of_manifest(lambda content: content["environment"].update(torch="9.9")),
    "the command": of_manifest(lambda content: content.update(command="another")),
    "no runners": of_manifest(lambda content: content.update(runners=[])),
    "a runner more": of_manifest(lambda content: content["runners"].append("tripy")),
    "a runner that was asked for and did not run": of_manifest(
        lambda content: content["runners_asked"].append("tripy")
    ),
    "no code": of_manifest(lambda content: content.update(code={})),
    "other code": of_manifest(lambda content: content["code"].update(reference="0" * 64)),
    "a runner that the first batch lacks": of_record(lambda runners: runners.pop("torch_jagged")),
    "a runner that a later batch lacks": of_record(
        lambda runners: runners.pop("torch_jagged"), f"{CASE}/batch_0001/fp32"
    ),
    "a runner that nobody asked for": of_record(lambda runners: runners.update(tripy=runners["torch"])),
    "negative seconds": of_record(lambda runners: runners["torch"].update(seconds=[-1.0])),
    "endless seconds": of_record(lambda runners: runners["torch"].update(seconds=[float("inf")])),
    "a precision twice in a record": twice_in_a_record,
    "a tensor twice in a capture": twice_in_the_header,
}


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES)
def test_a_run_whose_parts_contradict_each_other_is_refused(run, command, forgery):
    read_manifest(RunFolder(run))
    forgery(run)
    ended = command("replay", "run")
    assert ended.code == 2, ended
    assert ended.err.startswith("error: ")
    assert "Traceback" not in ended.err
    assert "run/" in ended.err


@pytest.mark.parametrize("change", ["last", "names"])
def test_batches_are_those_of_the_report(run, command, change):
    (case,) = manifest(run)["cases"]
    if change == "last":
        shutil.rmtree(run / CASE / f"batch_{len(case['batches']) - 1:04}")
        case["batches"].pop()
    else:
        first, second, *_ = case["batches"]
        first["name"], second["name"] = second["name"], first["name"]
    seal(run, cases=[case])
    ended = command("replay", "run")
    assert ended.code == 2, ended
    assert "report.json has other cases, batches, precisions or runners than the run's captures" in ended.err


@pytest.mark.parametrize("verdict", ["FAIL", "INSENSITIVE"])
def test_captures_that_pass_in_a_run_that_did_not_are_refused(run, command, monkeypatch, verdict):
    report = read_report(run / "report.json")
    (case,) = report.cases
    (precision,) = case.precisions
    worse = [runner.model_copy(update={"verdict": verdict}) for runner in precision.runners]
    precisions = (precision.model_copy(update={"runners": tuple(worse)}),)
    cases = (case.model_copy(update={"precisions": precisions}),)
    # A report that contradicts itself is refused before.
    monkeypatch.setattr("parity.report.files.contradictions", lambda report: iter(()))
    write_again(report.model_copy(update={"cases": cases}), run)
    seal(run)
    ended = command("replay", "run")
    assert ended.code == 2, ended
    assert f"has {verdict} for hstu_tiny, fp32, torch, and the captures pass" in ended.err
    # Verdicts of other code may be others.
    code = manifest(run)["code"]
    seal(run, code=code | {"reference": code["reference"] | {"digest": "0" * 64}})
    assert command("replay", "run").code == 0


def test_a_report_of_another_coverage_is_refused(report, tmp_path):
    coverage = CoverageReport(asked={"line": 1}, questions={"line": 2}, unasked=(), excused=())
    saved = report.model_copy(update={"coverage": coverage})
    environment = report.environment
    check_replayed(saved, saved, environment, tmp_path, is_same_code=True)
    for other in (None, coverage.model_copy(update={"asked": {}})):
        replayed = report.model_copy(update={"coverage": other})
        with pytest.raises(UserError, match="has another coverage.* than the run's captures"):
            check_replayed(saved, replayed, environment, tmp_path, is_same_code=True)
        check_replayed(saved, replayed, environment, tmp_path, is_same_code=False)
        check_replayed(saved, replayed, environment | {"torch": "9.9"}, tmp_path, is_same_code=True)
        with pytest.raises(UserError):
            check_replayed(saved, replayed, environment | {"threads": "99"}, tmp_path, is_same_code=True)
