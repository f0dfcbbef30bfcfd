"""What a command line asks for: the request that it makes, and the words of a refusal."""

import errno
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest

from cases.shipped import load_case
from parity.base.errors import UserError
from parity.base.precision import DEFAULT_PRECISIONS
from parity.case import Listed, Registry
from parity.cli import registered
from parity.cli.arguments import MAX_TIME_LIMIT, Arguments, apart, writable
from parity.runners import Unavailable
from tests.parity import made_reports

TINY = ("--case", "hstu_tiny")
RATINGS = "1\t5\t3\t100\n1\t6\t4\t200\n"


def arguments(**chosen):
    """Options beside the shipped cases."""
    registry = Registry(cases=lambda: [], load=load_case)
    return Arguments(registry=registry, **({"cases": "hstu_tiny"} | chosen))


def refusal(job, *given, **options):
    with pytest.raises(UserError) as error:
        job(*given, **options)
    return str(error.value)


@pytest.mark.parametrize("seconds", [0.5, 1.0, MAX_TIME_LIMIT])
def test_a_time_limit_is_more_than_nothing_and_at_most_a_week(seconds):
    assert arguments(time_limit=seconds).request().timeout == seconds


@pytest.mark.parametrize("seconds", [0.0, -1.0, MAX_TIME_LIMIT + 1])
def test_another_time_limit_is_refused(seconds):
    assert refusal(arguments(time_limit=seconds).request) == (
        f"--time-limit: {seconds} is not a positive number of seconds, or more than a week; "
        "give more than 0 and at most 604800"
    )


@pytest.mark.parametrize(
    ("chosen", "rows"), [({}, 5), ({"data": Path("x")}, 128), ({"data": Path("x"), "batch": 9}, 9)]
)
def test_recorded_data_come_in_batches_of_128(chosen, rows):
    assert load_case("hstu_tiny").input.batch_size == 5
    (case,) = arguments(**chosen).request().cases
    assert case.input.batch_size == rows


@pytest.mark.parametrize("chosen", [{"seed": 7}, {"seed": 0}, {"batch": 1}, {"seed": 7, "batch": 3}])
def test_a_seed_and_rows_are_those_of_every_case(chosen):
    own = load_case("hstu_tiny")
    (case,) = arguments(**chosen).request().cases
    assert case.seed == chosen.get("seed", own.seed)
    assert case.input.batch_size == chosen.get("batch", own.input.batch_size)


@pytest.mark.parametrize(
    ("chosen", "rows"), [({}, None), ({"batch": 9}, 9), ({"data": Path("x"), "batch": 9}, None)]
)
def test_rows_that_are_asked_for_are_counted_where_the_inputs_are_drawn(monkeypatch, chosen, rows):
    case = load_case("hstu_tiny")

    def drawn(self):
        raise AssertionError("inputs are drawn for a request")

    monkeypatch.setattr(type(case), "make_inputs", drawn)
    assert arguments(**chosen).request().rows == rows


def test_a_policy_gives_every_case_its_schemes(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text('"*": int8_channel\n')
    (case,) = arguments(cases="dlrm_tiny", policy=path).request().cases
    assert case.name == "dlrm_tiny"
    assert case.model.quantised == {"*": "int8_channel"}


def test_a_policy_of_a_run_has_no_precisions(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text('"top.*": bf16\n')
    assert refusal(arguments(policy=path).request) == (
        "--policy['top.*']: bf16 is a precision, and a run judges all modules in one; "
        "name it with --precision, or judge the policy with the verb precision"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '"top_l": int9_channel',
            "--policy['top_l']: int9_channel is no precision of a module, and no scheme",
        ),
        (
            '"botl.*": int8_channel',
            "case dlrm_tiny: 1 to correct\n--policy['botl.*']: int8_channel covers no",
        ),
    ],
)
def test_a_policy_that_does_not_fit_names_the_option(tmp_path, line, message):
    path = tmp_path / "policy.yaml"
    path.write_text(f"{line}\n")
    assert refusal(arguments(cases="dlrm_tiny", policy=path).request).startswith(message)


def test_without_a_default_case_one_is_asked_for():
    assert refusal(arguments(cases=None).request) == (
        "--case: no name is given, and no case is a default one; name yours with --model"
    )


@pytest.mark.parametrize(
    ("text", "cases"),
    [(RATINGS, {"hstu_tiny"}), ("what no case reads\n", {"hstu_tiny", "dlrm_tiny"})],
)
def test_recorded_data_are_for_the_default_cases_that_read_them(tmp_path, text, cases):
    path = tmp_path / "data"
    path.write_text(text)
    listed = [Listed(name, "", name != "stu_tiny") for name in ("hstu_tiny", "dlrm_tiny", "stu_tiny")]
    asked = Arguments(registry=Registry(cases=lambda: listed, load=load_case), data=path).request()
    assert {case.name for case in asked.cases} == cases


def test_new_folders_lie_apart():
    apart({"--save": Path("a"), "--profile": Path("b"), "--tables": None})
    for save, profile in (("a", "a"), ("a", "a/b")):
        text = refusal(apart, {"--save": Path(save), "--profile": Path(profile)})
        assert text in {
            f"--profile: {profile} is or lies in the folder of --save; choose another folder",
            f"--save: {save} is or lies in the folder of --profile; choose another folder",
        }


def test_the_folders_of_a_request_lie_apart():
    text = refusal(arguments(save=Path("a"), profile=Path("a")).request)
    assert text in {
        "--profile: a is or lies in the folder of --save; choose another folder",
        "--save: a is or lies in the folder of --profile; choose another folder",
    }


@pytest.mark.parametrize(("option", "value", "least"), [("batch", 0, 1), ("seed", -1, 0)])
def test_a_number_below_its_least_is_refused(option, value, least):
    text = refusal(arguments(**{option: value}).request)
    assert text == f"--{option}: {value} is below {least}; give at least {least}"


def test_the_runners_of_a_request():
    asked = arguments(runners="torch_compile,torch").request()
    assert (asked.runners, asked.runners_asked) == (("torch_compile", "torch"), True)
    assert arguments().request().runners_asked is False
    assert refusal(arguments(runners="trch").request).startswith("--runners: trch is not known; did you mean")


def test_a_request_has_what_is_asked_for(tmp_path):
    folders = {name: tmp_path / name for name in ("save", "profile")}
    files = {name: tmp_path / name for name in ("data", "weights")}
    chosen = {"precision": "fp16,fp32", "batch": 3, "memory": 1.0, "time_limit": 9.0, "command": "run here"}
    asked = arguments(**chosen, **folders, **files).request()
    assert (asked.precisions, asked.timeout, asked.command) == (("fp16", "fp32"), 9.0, "run here")
    assert (asked.data, asked.checkpoint) == (files["data"], files["weights"])
    assert (asked.save, asked.profile) == (folders["save"], folders["profile"])
    assert asked.memory == 1e9
    # Recorded data have their own rows.
    assert asked.rows is None
    assert arguments(batch=3).request().rows == 3


def test_a_plain_request_has_the_defaults():
    asked = arguments(runners="tripy").request()
    assert asked.precisions == DEFAULT_PRECISIONS
    assert (asked.data, asked.checkpoint, asked.save, asked.profile, asked.memory) == (None,) * 5
    assert (asked.rows, asked.timeout) == (None, 600.0)


@pytest.mark.parametrize(
    ("chosen", "judged"),
    [
        ({"runners": "tripy"}, True),
        ({"runners": "torch"}, False),
        ({"runners": "tripy", "data": Path("x")}, False),
        ({"runners": "tripy", "weights": Path("x")}, False),
    ],
)
def test_streams_are_those_of_a_port_on_synthetic_items_and_initial_weights(chosen, judged):
    assert arguments(**chosen).request().streams is judged


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (",", "',' names nothing; give a name, or leave the option out"),
        ("torch,,tripy", "'torch,,tripy' has a comma without a name; leave that comma out"),
        ("torch,torch", "torch is named twice; name it once"),
    ],
)
def test_a_list_without_a_name_or_with_one_twice_is_refused_by_its_option(text, problem):
    assert refusal(arguments(runners=text).request) == f"--runners: {problem}"


def test_a_folder_of_a_request_that_cannot_be_made_is_refused_by_its_option(tmp_path):
    (tmp_path / "file").write_text("")
    text = refusal(arguments(profile=tmp_path / "file" / "profile").request)
    assert text.startswith("--profile: ")


def test_a_folder_is_tried_before_work_begins(tmp_path, monkeypatch):
    def touch(path, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "touch", touch)
    assert refusal(writable, "--save", tmp_path / "new") == (
        f"--save: {tmp_path / 'new'} cannot be written (Permission denied); choose another folder"
    )
    (tmp_path / "full" / "more").mkdir(parents=True)
    assert "is not empty; choose a new folder" in refusal(writable, "--save", tmp_path / "full")


def test_a_folder_with_an_impossible_name_is_refused_with_the_reason(tmp_path):
    text = refusal(writable, "--save", tmp_path / "a\0b")
    assert "null byte" in text.rpartition("cannot be written (")[2]


@pytest.fixture
def one_point(monkeypatch):
    """An installed package registers the case `tiny`."""
    points = [EntryPoint("tiny", "cases.shipped:from_values", "parity.cases")]
    monkeypatch.setattr(registered, "entry_points", lambda group: points)


@pytest.mark.usefixtures("one_point")
def test_a_registered_case_is_a_default_one_and_has_its_import_path(monkeypatch):
    assert registered.REGISTERED.cases() == [Listed("tiny", "cases.shipped:from_values", True)]
    loaded = []
    monkeypatch.setattr(registered, "load_case", lambda reference: loaded.append(reference.target) or "it")
    assert registered.REGISTERED.load("tiny") == "it"
    assert loaded == ["cases.shipped:from_values"]
    assert refusal(registered.REGISTERED.load, "tony").startswith("--case: tony is not known; did you mean")


def test_a_name_without_registered_cases_is_refused(monkeypatch):
    monkeypatch.setattr(registered, "entry_points", lambda group: [])
    assert refusal(registered.REGISTERED.load, "mine") == (
        "--case: mine is not known: no installed package registers a case; name yours with --model"
    )


@pytest.mark.parametrize(("models", "module"), [((), "cases.shipped"), (("--model", "m:case"), "")])
def test_the_server_of_processes_imports_the_shipped_cases_but_for_a_users_own(
    command, monkeypatch, tmp_path, models, module
):
    monkeypatch.chdir(tmp_path)
    started = []
    monkeypatch.setattr("parity.execution.fork_server.start", lambda cases="", **_: started.append(cases))
    monkeypatch.setattr("parity.pipeline.run", lambda *_: made_reports.passing())
    command("run", *TINY, *models)
    assert started == [module]


def test_a_report_of_a_run_has_its_command_line(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["/bin/parity", "run", "--seed", "3"])
    monkeypatch.setattr("parity.execution.fork_server.start", lambda cases="", **_: None)
    asked = []
    monkeypatch.setattr(
        "parity.pipeline.run", lambda *given: asked.append(given[0]) or made_reports.passing()
    )
    command("run", *TINY, "--seed", "3")
    assert [request.command for request in asked] == ["parity run --seed 3"]


def test_self_test_refuses_no_letters(refused, monkeypatch):
    monkeypatch.setattr("parity.studies.fault_injection.command.self_test", None)
    assert refused("self-test", "--faults", "") == (
        "--faults: '' names nothing; give letters, or leave the option out"
    )


def test_a_file_that_exists_is_not_written_over(refused, tmp_path):
    (tmp_path / "mine.py").write_text("x = 1")
    assert refused("new", "mine") == (
        "new: mine.py cannot be written (File exists); choose another name or folder"
    )


@pytest.mark.parametrize(
    ("words", "counts"),
    [
        ((), "0 of --case and 1 of --precision"),
        ((*TINY, "--precision", "fp32,bf16"), "1 of --case and 2 of --precision"),
    ],
)
def test_one_case_in_one_precision_is_served(refused, words, counts):
    assert refused("serve", *words) == (
        f"serve: {counts} are given, where one of each is taken; give one --case and one --precision"
    )


@pytest.mark.parametrize("accuracy_only", [False, True])
def test_options_of_serving_reach_it(command, monkeypatch, tmp_path, accuracy_only):
    pytest.importorskip("mlperf_loadgen", reason="the load is LoadGen's")
    from parity.studies.serving import command as study

    monkeypatch.chdir(tmp_path)
    orders = []
    served = SimpleNamespace(exit_code=1, lines=lambda: ["accuracy [b]PASS[/b]"])
    monkeypatch.setattr(study, "serve", lambda order, *_: orders.append(order) or served)
    flags = ("--accuracy-only",) if accuracy_only else ()
    ended = command("serve", *TINY, "--weights", "w.pt", "--save", "out", *flags)
    assert (ended.code, ended.out.splitlines()) == (1, ["accuracy [b]PASS[/b]", "logs: out"])
    assert [(order.checkpoint, order.measures) for order in orders] == [(Path("w.pt"), not accuracy_only)]

    def cannot(*_):
        raise Unavailable("no Tripy here")

    monkeypatch.setattr(study, "serve", cannot)
    ended = command("serve", *TINY, "--save", "other")
    assert ended.code == 2
    assert ended.err.endswith("error: runner: tripy is unavailable: no Tripy here; run where the port can\n")
