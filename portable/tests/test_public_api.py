"""Every public name of nvtripy has a test."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from list_public_api import counts


def test_no_public_name_is_without_a_test():
    assert [name for name, number in counts().items() if number == 0] == []
