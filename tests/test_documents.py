"""The pages for users: links resolve, commands parse, and each page has only allowed content."""

from __future__ import annotations

import importlib.util
import re
import shlex
import textwrap
from pathlib import Path

import click
import pytest

import parity
import run_parity
from parity.base.precision import PRECISIONS
from parity.cli.program import VERBS
from parity.execution.worker import Status
from parity.in_process import CleanRun
from parity.runners import RUNNERS
from tests.locations import ROOT
from tests.test_contracts import SETTINGS

PAGES = (
    "quickstart",
    "concepts",
    "report",
    "add_a_model",
    "command_line",
    "environments",
    "kernels",
    "performance",
    "quantisation",
    "public_code",
    "findings",
    "decisions",
    "dlrmv3",
    "troubleshooting",
)
USER = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NOTES = sorted((ROOT / "benchmarks" / "results").rglob("*.md"))
PORTABLE = sorted(path for path in (ROOT / "portable").rglob("*.md") if "build" not in path.parts)
ALL = [*USER, *NOTES, *PORTABLE]

LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
SPAN = re.compile(r"`([^`\n]+)`")
COMMIT = re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}\b")
MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
DATE = re.compile(rf"\b20\d\d-\d\d-\d\d\b|\b\d{{1,2}} (?:{MONTHS}) 20\d\d\b")
BANNED = re.compile(r"(?<![\w-])(luck|lucky|draws|gain|gains|sees|BLIND|turns|lanes?|pictures|why)\b")
"""The words that section "Words of the field" of the design replaces."""
OPTION = re.compile(r"""(?:add_argument|option)\([^)]*?["'](--[a-z-]+)["']""", re.DOTALL)
END = re.compile(r"\s(?:#|&&|\|\||;)(?:\s|$)")
PROGRAM = re.compile(
    r"python examples/[\w/]+\.py|run_parity\.py(?= [-a-z])|^ *parity(?= [-a-z])|"
    r"python -m [a-z][\w.]*|make parity ARGS="
)
STOPS = "<[{…"


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text))
    return {heading.strip().replace(" ", "-") for heading in plain}


def broken_links(path: Path) -> list[str]:
    """Links of a page that lead to no file, or to no heading of it."""
    broken = []
    for target in LINK.findall(path.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        there = path.parent / file if file else path
        if not there.exists() or (anchor and anchor not in anchors(there.read_text())):
            broken.append(target)
    return broken


def commands(text: str) -> list[list[str]]:
    """The commands of a page that call a program of this project, split into words.

    Commands stand in indented blocks, where a backslash continues a line, and between backquotes.
    """
    block = "\n".join(line for line in text.splitlines() if line.startswith("    "))
    lines = [*block.replace("\\\n", " ").splitlines(), *SPAN.findall(text)]
    calls = []
    for line in lines:
        for program in PROGRAM.finditer(line):
            call = END.split(line[program.start() :], maxsplit=1)[0]
            if not any(character in call for character in STOPS):
                words = shlex.split(call)
                calls.append(words[1:] if words[0] == "python" else words)
    return calls


def problem(words: list[str]) -> str:
    """The reason why a command does not parse; empty for one that does."""
    if words[0] == "make":
        words = ["run_parity.py", *shlex.split(words[2].removeprefix("ARGS="))]
    if words[0] in ("run_parity.py", "parity"):
        try:
            root = run_parity.main.make_context("parity", words[1:])
            verb, *arguments = words[1:] if not words[1].startswith("-") else ["run", *words[1:]]
            if verb not in run_parity.main.commands:
                return f"no verb {verb}"
            run_parity.main.commands[verb].make_context(verb, arguments, parent=root)
        except click.ClickException as error:
            return error.format_message()
        except click.exceptions.Exit:
            pass
        return ""
    if words[0] != "-m":
        return _unknown_options(words[0], ROOT / words[0], words[1:])
    program, *arguments = words[1:]
    if program in ("pip", "pytest", "mutmut"):
        return ""
    try:
        spec = importlib.util.find_spec(program)
    except ModuleNotFoundError:
        spec = None
    if spec is not None and spec.submodule_search_locations:
        spec = importlib.util.find_spec(f"{program}.__main__")
    if spec is None or spec.origin is None:
        return f"no module {program}"
    return _unknown_options(program, Path(spec.origin), arguments)


def _unknown_options(program: str, source: Path, arguments: list[str]) -> str:
    """The options that a program does not have, by its source; tools without a parser pass all on."""
    if not source.exists():
        return f"no program {program}"
    text = source.read_text()
    if "add_argument" not in text and "click.option" not in text:
        return ""
    known = {"--help", *OPTION.findall(text)}
    unknown = [word for word in arguments if word.startswith("--") and word.split("=")[0] not in known]
    return f"{program} has no {', '.join(unknown)}" if unknown else ""


def test_docs_are_the_named_pages():
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} == set(PAGES)
    shown = "".join(path.read_text() for path in USER)
    others = [path.name for path in (ROOT / "docs").iterdir() if path.suffix != ".md"]
    assert all(f"({other})" in shown or f"(docs/{other})" in shown for other in others)


def test_the_readme_and_the_notes_index_name_every_page():
    readme, index = (ROOT / "README.md").read_text(), (ROOT / "benchmarks/results/README.md").read_text()
    assert all(f"(docs/{page}.md)" in readme for page in PAGES)
    notes = {note.name for note in NOTES if note.parent.name == "results"} - {"README.md"}
    assert {note for note in notes if f"({note})" not in index} == set()


@pytest.mark.parametrize("path", ALL, ids=name)
def test_links_resolve(path):
    assert broken_links(path) == []


@pytest.mark.parametrize("path", ALL, ids=name)
def test_commands_parse(path):
    assert [(words, said) for words in commands(path.read_text()) if (said := problem(words))] == []


@pytest.mark.parametrize("path", USER, ids=name)
def test_pages_for_users_name_no_commit_no_date_and_no_replaced_word(path):
    text = path.read_text()
    # A finding belongs to the commit of a public repository.
    assert path.stem == "findings" or COMMIT.findall(text) == []
    assert DATE.findall(text) == []
    assert BANNED.findall(text) == []


def test_the_command_line_page_has_every_verb_option_and_runner():
    text = (ROOT / "docs" / "command_line.md").read_text()
    parameters = [parameter for verb in VERBS for parameter in verb.params]
    options = {option for parameter in parameters for option in parameter.opts if option.startswith("--")}
    assert {option for option in options if f"`{option}" not in text} == set()
    assert {verb.name for verb in VERBS if f"## `{verb.name}`" not in text} == {"resume"}
    assert {runner for runner in RUNNERS if f"`{runner}`" not in text} == set()


def test_the_report_page_has_every_status():
    text = (ROOT / "docs" / "report.md").read_text()
    statuses = {status.value for status in Status} - {Status.OK.value, Status.UNWRITABLE.value}
    assert {status for status in statuses if f"`{status}`" not in text} == set()


def test_the_example_of_a_case_passes(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "add_a_model.md").read_text()
    block = text.partition("its case:\n")[2].partition("\nRun it")[0]
    (tmp_path / "small.py").write_text(textwrap.dedent(block))
    monkeypatch.syspath_prepend(tmp_path)
    comparison = CleanRun(
        parity.load_case(parity.CaseReference(target="small:Small")), PRECISIONS["fp32"]
    ).judge("tripy")
    assert comparison.passed, comparison.diagnosis
    assert {tap.tap for tap in comparison.taps} == {"table", "first", "second", "forward.output"}


def test_the_example_of_two_models_passes(tmp_path, monkeypatch, capsys):
    text = (ROOT / "docs" / "add_a_model.md").read_text()
    models = text.partition("its case:\n")[2].partition("\nRun it")[0]
    (tmp_path / "small_pair.py").write_text(textwrap.dedent(models))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    example = text.partition("runs in this process:\n")[2].partition("\nThe result has")[0]
    exec(textwrap.dedent(example).replace("from small ", "from small_pair "), {})
    assert (tmp_path / "out" / "report.html").exists()
    *results, asked = capsys.readouterr().out.splitlines()
    lines = [line.strip().partition(":")[0] for line in text.splitlines() if " PASS: 4 modules" in line]
    assert [line.partition(":")[0] for line in results] == lines
    assert f"    {asked}\n" in text


def test_the_arrows_of_the_readme_are_the_import_contracts():
    chain = re.search(r"flowchart LR\n +(.*)\n", (ROOT / "README.md").read_text())
    assert chain is not None
    (layers,) = (rule["layers"] for rule in SETTINGS["contracts"] if rule["id"] == "parity_layers")
    order = [name for layer in reversed(layers) for name in layer.split(" | ")]
    arrows = chain[1].split(" --> ")
    assert arrows == [name for name in order if name in arrows]


def rows(text: str, columns: int = 80) -> int:
    """The rows of a text on a terminal, which breaks longer lines."""
    return sum(max(1, -(-len(line) // columns)) for line in text.splitlines())


def test_the_readme_fits_two_screens():
    text = (ROOT / "README.md").read_text()
    # A screen has 48 lines.
    assert rows(text) <= 2 * 48
    assert max(map(len, text.splitlines())) <= 120
    assert rows(f"# a page\n\n{'-' * 80}\n{'-' * 81}\n") == 5


MY_MODELS = """
import nvtripy as tp
import torch


class Reference(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = (torch.nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        return x + self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))


class Port(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.gate, self.up, self.down = (tp.Linear(16, 16, dtype=dtype) for _ in range(3))

    def forward(self, x):
        return x + self.down(tp.silu(self.gate(x)) * self.up(x))
"""


def test_the_ten_lines_of_the_readme_run(tmp_path, monkeypatch, capsys):
    text = (ROOT / "README.md").read_text()
    begin, end = "    import torch\n", "    result.raise_if_failed()\n"
    lines = textwrap.dedent(begin + text.partition(begin)[2].partition(end)[0] + end)
    assert len([line for line in lines.splitlines() if line]) <= 10
    (tmp_path / "my_models.py").write_text(MY_MODELS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    exec(lines, {})
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in printed[:2]] == ["Reference fp32 PASS", "Reference fp16 PASS"]
    assert (tmp_path / "out" / "report.html").exists()


def test_a_false_page_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n[here](#a-page) [gone](gone.md) [part](#gone)\n    python run_parity.py --gone 1\n"
    )
    assert broken_links(page) == ["gone.md", "#gone"]
    (words,) = commands(page.read_text())
    assert "--gone" in problem(words)
    assert problem(["make", "parity", "ARGS=--case hstu_tiny --seed x"])
    (words,) = commands("    parity gone --case hstu_tiny\n")
    assert problem(words) == "no verb gone"
    assert "--batch is no option" in problem(["run_parity.py", "stream", "--batch", "1"])
    assert problem(["-m", "perf_model", "--gone"]) == "perf_model has no --gone"
    assert problem(["-m", "perf_model.gone"]) == "no module perf_model.gone"
    assert problem(["-m", "perf_model", "benchmarks/results/h200"]) == ""
    assert problem(["benchmarks/gpu/hstu.py", "--gone"]) == "benchmarks/gpu/hstu.py has no --gone"
    assert problem(["benchmarks/gone.py"]) == "no program benchmarks/gone.py"
    assert COMMIT.findall("at 5fb9925, in 4.3e-07 s") == ["5fb9925"]
    assert DATE.findall("2026-11-22 and 22 November 2026") == ["2026-11-22", "22 November 2026"]
    assert BANNED.findall("the gain that it sees, again") == ["gain", "sees"]
