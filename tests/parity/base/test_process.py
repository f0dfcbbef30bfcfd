"""Settings of the process."""

import gc
import subprocess
import sys

from parity.base.process import no_collections

_PROGRAM = """
import gc
from parity.base.process import YOUNG_COLLECTIONS, leave_out_of_collections

before = gc.get_freeze_count()
leave_out_of_collections()
assert gc.get_freeze_count() > before
assert gc.get_threshold()[1] == YOUNG_COLLECTIONS
"""


def test_imported_modules_are_left_out_of_collections_of_garbage():
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True)


def test_collections_of_garbage_go_on_after_work_without_them():
    with no_collections():
        assert not gc.isenabled()
        with no_collections():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
