"""Settings of the process."""

import subprocess
import sys

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
