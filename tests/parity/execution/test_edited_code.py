"""Code that is edited while its run goes on: the run has no result."""

import subprocess
import sys

import pytest

from tests.locations import ROOT
from tests.selection import first_in_test

SOURCE = (ROOT / "parity/cli/new_case.py").read_text()
PORT = "return Port(dtype)"
FORWARD = "return self.second(tp."
EDIT = "open(__file__, 'a').write('# edited\\n'); "
"""A port that edits its own file when it runs, after all imports."""
OF_LATE = "from late import Port; return Port(dtype)"


@pytest.fixture
def ended(tmp_path):
    """The end of a run of a case from its source, and of the source of a module that its port imports."""

    def run(case, late="", *options):
        assert FORWARD in SOURCE
        assert PORT in SOURCE
        (tmp_path / "mine.py").write_text(case)
        (tmp_path / "late.py").write_text(late)
        model = ("--model", "mine:case", "--precision", "fp32", "--runners", "torch,tripy")
        return subprocess.run(
            [sys.executable, str(ROOT / "run_parity.py"), "run", *model, *options],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )

    return run


@pytest.mark.parametrize("options", first_in_test([(), ("--save", "saved")]))
def test_an_edited_case_ends_the_run_without_a_result(ended, tmp_path, options):
    own = ended(SOURCE.replace(FORWARD, EDIT + FORWARD, 1), "", *options)
    assert own.returncode == 2, own
    assert "code: mine changed during the run; run again" in own.stderr
    assert "PASS" not in own.stdout
    assert not (tmp_path / "saved/manifest.json").exists()


@pytest.mark.full
def test_a_module_that_the_port_imports_when_it_is_built_counts(ended):
    case = SOURCE.replace(PORT, OF_LATE, 1)
    edited = ended(case, SOURCE.replace(FORWARD, EDIT + FORWARD, 1))
    assert edited.returncode == 2, edited
    assert "code: late changed during the run" in edited.stderr
    assert ended(case, SOURCE).returncode == 0
