"""Set-up of the kernels' tests.

A failed assertion of the plugins' shared checks shows its values, like a test's own assertion. Without a GPU,
Triton interprets its kernels; the choice must precede their import.
"""

import importlib.util
import os

import pytest
import torch

pytest.register_assert_rewrite("tests.kernels.plugins.plugin_checks", "tests.kernels.compiling")
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True, scope="session")
def changed_interpreter():
    """Triton's interpreter with the changes of `tests.kernels.interpreting`."""
    if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton"):
        from tests.kernels.interpreting import multiply_without_places, patch_once_a_launch

        patch_once_a_launch()
        multiply_without_places()


@pytest.fixture(autouse=True)
def plans_of_its_own(monkeypatch):
    """The attention's launch plans last as long as the process. Some tests replace schedules or kernels."""
    from kernels.hstu_attention import layout

    monkeypatch.setattr(layout, "_LAYOUTS", {})


@pytest.fixture(autouse=True)
def new_memory_is_nan():
    """On a CPU: new memory may hold an earlier result, so that a kernel that leaves rows out seems right.

    On a GPU the mode would choose other algorithms of PyTorch for the references.
    """
    torch.use_deterministic_algorithms(not torch.cuda.is_available(), warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def lasting_folder(tmp_path_factory):
    """A folder for libraries that a test loads. It stays until the session ends: the loader takes a file with
    the inode of a deleted library, which is still loaded, for that library.
    """
    return tmp_path_factory.mktemp("lasting")
