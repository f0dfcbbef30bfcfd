"""The served case, made once a process, and a right accuracy run."""

import pytest

from parity.studies.serving import judging
from tests.parity.served_case import Setup


@pytest.fixture(scope="package")
def setup(tmp_path_factory):
    runs, clean_run = {}, judging.CleanRun

    def once(case, precision, arrays, weights, **options):
        key = precision.name, b"".join(array.tobytes() for array in arrays.values())
        if key not in runs:
            runs[key] = clean_run(case, precision, arrays, weights, **options)
        return runs[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judging, "CleanRun", once)
        yield Setup(tmp_path_factory.mktemp("served") / "tables")


@pytest.fixture(scope="package")
def right(setup, tmp_path_factory):
    """A right accuracy run, offline."""
    return setup.judged(tmp_path_factory.mktemp("right"))
