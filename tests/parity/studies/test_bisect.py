"""The search for the commit that made a command fail, in histories with a known one."""

import itertools
import os
import signal
import subprocess
import sys
import time

import pytest

from parity.base.errors import UserError
from parity.studies.bisect import command as study
from parity.studies.bisect.judging import divergences
from parity.studies.bisect.repository import Repository
from parity.studies.bisect.search import Commit, Outcome, suspects_of
from tests.locations import ROOT
from tests.parity import made_reports

SHOW = ("--", "sh", "-c", "exit $(cat state)")
"""A command whose exit code is the content of the commit's file `state`."""


def chain(length):
    """The commits 1 to `length`, each the parent of the next; 1 is a child of the good one."""
    return [Commit(str(n), (str(n - 1),), f"t{n}", "a", "s") for n in range(1, length + 1)]


def searched(commits, culprits, unknown=()):
    """The suspects' names in the end, and the judged names; descendants of a culprit fail."""
    failing = set(culprits)
    for commit in commits:
        if failing & set(commit.parents):
            failing.add(commit.name)
    judged = []

    def judge(commit):
        judged.append(commit.name)
        if commit.name in unknown:
            return Outcome.UNKNOWN
        return Outcome.FAILS if commit.name in failing else Outcome.PASSES

    return [one.name for one in suspects_of(commits, judge)], judged


@pytest.mark.parametrize("length", [1, 2, 3, 7, 30, 64])
def test_every_culprit_of_a_line_is_named_after_log2_calls(length):
    commits = chain(length)
    for culprit in commits:
        suspects, judged = searched(commits, [culprit.name])
        assert suspects == [culprit.name]
        assert len(judged) == len(set(judged)) <= (length - 1).bit_length()


@pytest.mark.parametrize("unknown", [{"5"}, {"15"}, {"14", "15", "16"}, {str(n) for n in range(8, 24)}])
def test_commits_that_cannot_be_judged_are_passed_by(unknown):
    """The culprit and the unknown ones right before it remain, and it alone where they lie elsewhere."""
    commits = chain(30)
    for number in range(1, 31):
        if str(number) in unknown:
            continue
        suspects, _ = searched(commits, [str(number)], unknown)
        before = itertools.takewhile(unknown.__contains__, (str(n) for n in range(number - 1, 0, -1)))
        assert suspects == [*reversed(list(before)), str(number)]


def test_a_culprit_that_cannot_be_judged_is_one_of_the_range():
    suspects, judged = searched(chain(30), ["15"], {"14", "15", "16"})
    assert suspects == ["14", "15", "16", "17"]
    assert len(judged) < 15


def test_a_broken_range_costs_few_calls():
    """Half of a long history cannot be judged: the aim moves away from it."""
    unknown = {str(n) for n in range(300, 800)}
    suspects, judged = searched(chain(1000), ["900"], unknown)
    assert suspects == ["900"]
    assert len(judged) < 20


def test_a_history_of_which_nothing_can_be_judged_is_all_suspects():
    commits = chain(6)
    names = [commit.name for commit in commits]
    assert searched(commits, ["3"], set(names[:-1]))[0] == names


MERGED = (
    *(("a1", "0"), ("a2", "a1"), ("b1", "0"), ("b2", "b1"), ("b3", "b2"), ("m", "a2 b3")),
    *(("c1", "m"), ("d1", "m"), ("d2", "d1"), ("n", "c1 d2"), ("o", "n")),
)
"""Two merges, one behind the other."""


@pytest.mark.parametrize("culprit", [name for name, _ in MERGED])
def test_a_culprit_is_named_in_branches_and_merges(culprit):
    commits = [Commit(name, tuple(parents.split()), name, "a", "s") for name, parents in MERGED]
    suspects, judged = searched(commits, [culprit])
    assert suspects == [culprit]
    assert len(judged) <= 5


@pytest.fixture
def history(tmp_path, monkeypatch):
    """`history(states)` makes a repository with a commit and a tag for each content of the file `state`.

    A content may be a mapping of files. The present folder is the repository.
    """
    for name, value in {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        **{
            f"GIT_{who}_{what}": what.lower() for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
        },
    }.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.chdir(folder)
    git("init", "--quiet", "--initial-branch=main")

    def commit(states):
        for number, content in enumerate(states):
            files = content if isinstance(content, dict) else {"state": content}
            for name, text in files.items():
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_text(text)
            git("add", "--all")
            git("commit", "--quiet", "--allow-empty", f"--message=change {number}")
            git("tag", f"v{number}")
        return folder

    return commit


def git(*words):
    done = subprocess.run(["git", *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def state_of(folder):
    """Everything of the repository that a search must leave as it is."""
    files = {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}
    asked = ("status --porcelain", "for-each-ref", "worktree list", "stash list", "symbolic-ref HEAD")
    return files, [git(*words.split()) for words in asked]


def test_the_first_bad_commit_is_printed_and_the_user_s_files_stay(history, command):
    folder = history(["0"] * 17 + ["1"] * 13)
    (folder / "state").write_text("uncommitted")
    (folder / "new").write_text("untracked")
    before = state_of(folder)
    ended = command("bisect", "v0", "main", *SHOW)
    assert (ended.code, ended.err) == (0, ""), ended
    assert ended.out.splitlines() == [
        f"first bad commit: {git('rev-parse', 'v17')}",
        "  subject: change 17",
        "  author:  name <email>",
        # Of 29 commits, all others are equal in all files to one of these two.
        "2 runs for 29 commits behind GOOD; 5 equal to a judged one",
    ]
    assert state_of(folder) == before


def test_the_command_runs_about_log2_times_where_commits_differ(history, command):
    history([{"state": "0" if n < 21 else "1", "other": str(n)} for n in range(30)])
    ended = command("bisect", "v0", "v29", *SHOW)
    assert ended.code == 0
    assert ended.out.splitlines()[0].endswith(git("rev-parse", "v21"))
    runs = int(ended.out.splitlines()[-1].split()[0])
    assert 2 + 4 <= runs <= 2 + 5


def test_paths_of_the_code_decide_which_commits_are_equal(history, command):
    history([{"state": "0" if n < 21 else "1", "other": str(n)} for n in range(30)])
    ended = command("bisect", "v0", "v29", "--code", "state", *SHOW)
    assert ended.out.splitlines()[0].endswith(git("rev-parse", "v21"))
    assert ended.out.splitlines()[-1].startswith("2 runs for 29 commits")


def test_a_range_is_the_answer_where_the_culprit_may_be_one_that_cannot_be_judged(history, command):
    history(["0", "0", "0", "2", "7", "1", "1"])
    ended = command("bisect", "v0", "v6", *SHOW)
    assert ended.code == 1
    assert ended.out.splitlines()[:-1] == [
        "the first bad commit is one of 3; the others cannot be judged",
        *(f"  {git('rev-parse', f'v{n}')[:12]} change {n} (name <email>)" for n in (3, 4, 5)),
    ]
    assert ended.out.splitlines()[-1].endswith("; 2 cannot be judged")


def test_a_commit_that_cannot_be_judged_elsewhere_is_left_out(history, command):
    history([{"state": {15: "2"}.get(n, str(int(n > 17))), "other": str(n)} for n in range(30)])
    ended = command("bisect", "v0", "v29", *SHOW)
    assert ended.code == 0
    assert ended.out.splitlines()[0].endswith(git("rev-parse", "v18"))


@pytest.mark.parametrize(
    ("states", "arguments", "message"),
    [
        ("01", ("v0", "v1"), "COMMAND: '' is empty; give it behind --, as in: bisect GOOD BAD -- python"),
        ("01", ("v0", "v1", "--", "no-such-program"), "COMMAND: no-such-program is no program on PATH"),
        ("01", ("v0", "v1", "--", "./absent.sh"), "cannot be judged (exit code 127: ./absent.sh does not"),
        ("01", ("nope", "v1", *SHOW), "GOOD: 'nope' is no commit; see git log"),
        ("01", ("v0", "", *SHOW), "BAD: '' is no commit"),
        ("01", ("v0", "v0^{tree}", *SHOW), "BAD: 'v0^{tree}' is no commit"),
        ("01", ("v1", "v0", *SHOW), "is no ancestor of "),
        ("01", ("v0", "v0", *SHOW), "is equal to GOOD in all files; give commits that differ there"),
        ("11", ("v0", "v1", "--", "sh", "-c", "echo why; exit 1"), "is equal to GOOD in all files"),
        ("12", ("v0", "v1", *SHOW), "fails (exit code 1); give a commit where the command ends with 0"),
        ("03", ("v0", "v1", *SHOW), "cannot be judged (exit code 3); give a commit where the command ends"),
        (
            "01",
            ("v0", "v1", "--", "sh", "-c", "echo yes; exit 0"),
            "passes (exit code 0: yes); give a commit",
        ),
        ("01", ("v0", "v1", "--code", "lost", *SHOW), "--code: lost is in neither GOOD nor BAD"),
        ("01", ("v0", "v1", "--code", " ", *SHOW), "--code: ' ' names nothing"),
    ],
)
def test_bad_input_is_one_message(history, command, states, arguments, message):
    folder = history(list(states))
    before = state_of(folder)
    ended = command("bisect", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
    assert len(ended.err.splitlines()) == 1
    assert state_of(folder) == before


def test_a_folder_without_a_repository_is_refused(refused):
    message = refused("bisect", "a", "b", "--", "true")
    assert "is in no git repository (fatal: not a git repository" in message


def test_the_command_runs_in_the_folder_where_the_user_is(history, command, monkeypatch):
    folder = history([{"inner/state": "0"}, {"inner/state": "1"}, {"inner/more": "1"}])
    monkeypatch.chdir(folder / "inner")
    ended = command("bisect", "v0", "v2", "--code", "state", *SHOW)
    assert ended.out.splitlines()[0].endswith(git("rev-parse", "v1"))


def test_nothing_of_one_commit_s_run_reaches_the_next(history, command):
    """Neither new nor ignored files, nor changes of the commit's own."""
    script = "test ! -e left && touch left && code=$(cat state) && echo 9 > state && exit $code"
    history([{"state": "0" if n < 6 else "1", "other": str(n), ".gitignore": "left"} for n in range(9)])
    ended = command("bisect", "v0", "v8", "--", "sh", "-c", script)
    assert ended.out.splitlines()[0].endswith(git("rev-parse", "v6"))


def test_hooks_and_variables_of_git_do_not_matter(history, command, monkeypatch):
    folder = history(["0", "1"])
    hook = folder / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {folder}/hooked\n")
    hook.chmod(0o755)
    monkeypatch.setenv("GIT_INDEX_FILE", str(folder / ".git" / "index"))
    monkeypatch.setenv("GIT_DIR", str(folder / "elsewhere"))
    ended = command("bisect", "v0", "v1", *SHOW)
    assert ended.code == 0, ended
    assert not (folder / "hooked").exists()


def test_a_work_tree_whose_folder_is_gone_is_forgotten(history, tmp_path):
    folder = history(["0", "1"])
    lost = tmp_path / "killed" / "parity_bisect"
    git("worktree", "add", "--quiet", "--detach", str(lost), "v0")
    mine = tmp_path / "mine"
    git("worktree", "add", "--quiet", "--detach", str(mine), "v0")
    for path in (lost, mine):
        path.rename(path.with_name("moved"))
    repository = Repository(folder)
    with repository.checkout(repository.commit("GOOD", "v0")) as checkout:
        assert (checkout.inner / "state").read_text() == "0"
    listed = git("worktree", "list", "--porcelain")
    assert str(lost) not in listed
    # The user may have it on a disk that is not there.
    assert str(mine) in listed


def test_a_git_that_fails_is_one_message(history):
    folder = history(["0", "1"])
    repository = Repository(folder)
    good, bad = (repository.commit("GOOD", name) for name in ("v0", "v1"))
    (folder / ".git" / "objects" / bad.name[:2] / bad.name[2:]).unlink()
    with pytest.raises(UserError, match="git: merge-base fails: "):
        repository.between(good, bad)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_the_repository_as_it_was(history, tmp_path, number):
    folder = history(["0", "1"])
    before = state_of(folder)
    began, script = tmp_path / "began", "touch $0; sleep 100"
    words = ("bisect", "v0", "v1", "--", "sh", "-c", script, str(began))
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "run_parity.py"), *words],
        stderr=subprocess.PIPE,
        # A shell ignores SIGINT for programs in the background, and so do their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not began.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    said = process.communicate()[1].decode()
    assert process.returncode == 128 + number
    assert f"interrupted by {number.name}" in said
    assert state_of(folder) == before


CHECKED = ("run", "--model", "model:case", "--precision", "fp32", "--runners", "tripy", "--save", "{report}")


@pytest.mark.full
def test_a_regression_of_a_port_is_found_among_30_commits(history, command):
    """The port gets it in commit 17; commit 15 does not import."""
    original = (ROOT / "parity" / "cli" / "new_case.py").read_text()
    broken = original.replace("self.second(tp.relu(", "self.second(2.0 * tp.relu(")
    assert broken != original
    texts = [f"{original if n < 17 else broken}\n# Version {n}\n" for n in range(30)]
    texts[15] = "import parity\n\ncase = parity.Case(\n"
    folder = history([{"model.py": text, "notes.md": str(n)} for n, text in enumerate(texts)])
    before = state_of(folder)
    words = (sys.executable, str(ROOT / "run_parity.py"), *CHECKED)
    ended = command("bisect", "v0", "main", "--", *words)
    assert ended.code == 0, ended
    lines = ended.out.splitlines()
    assert lines[:3] == [
        f"first bad commit: {git('rev-parse', 'v17')}",
        "  subject: change 17",
        "  author:  name <email>",
    ]
    assert lines[3] == "  before: nothing diverges"
    assert lines[4].startswith("  after: new_case, fp32, tripy: ")
    assert int(lines[-1].split()[0]) <= 9
    assert state_of(folder) == before


def test_the_places_of_a_report_are_its_diagnoses():
    places = divergences(made_reports.failing())
    assert places == tuple(
        f"hstu_tiny, {precision}, tripy: _hstu._attention_layers.0._attn (Attention) diverges on its own: why"
        for precision in ("fp32", "fp16", "bf16")
    )
    assert divergences(made_reports.passing()) == ()


def test_places_of_many_runners_are_cut():
    places = tuple(f"place {n}" for n in range(25))
    judgement = study.Judgement(Outcome.FAILS, "exit code 1", places)
    lines = study._diverging("after", judgement)
    assert lines == [*(f"  after: place {n}" for n in range(10)), "  and 15 more"]
