"""A failed assertion of the checks that plugins share shows its values, as a test's own does."""

import pytest

pytest.register_assert_rewrite("tests.kernels.plugin_checks", "tests.kernels.compiling")
