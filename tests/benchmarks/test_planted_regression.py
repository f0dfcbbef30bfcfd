"""The repository with a planted regression."""

import subprocess

from benchmarks.planted_regression import PLANTED, make


def test_it_has_30_commits_and_the_regression_among_them(tmp_path):
    folder = tmp_path / "repository"
    make(folder)

    def git(*words):
        return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout

    assert len(git("log", "--format=%s", "last").splitlines()) == 30
    assert git("log", "-1", "--format=%s", "planted").strip() == PLANTED
    assert git("diff", "--name-only", "planted~1", "planted").split() == ["model/settings.py"]
    assert not git("status", "--porcelain")
