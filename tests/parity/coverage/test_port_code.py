"""Only the port's code is asked, wherever it is written."""

import nvtripy as tp
import torch

from parity.coverage.source import named_by, port_code
from tests.parity.coverage import mixed_models

MODULE = mixed_models.__name__
OF_THE_PORT = {"Port", "Base", "by_name", "in_a_table", "bound", "received"}


def test_a_port_is_its_classes_and_all_that_they_name():
    code = port_code(mixed_models.case)
    assert (code.modules, code.names) == ((MODULE,), {MODULE: OF_THE_PORT})
    assert code.has(MODULE, "Port.never")
    for other in ("Reference.forward", "Mixed.make_inputs", "OtherPort.forward", "of_the_reference"):
        assert not code.has(MODULE, other)
    assert not code.has(MODULE, "Portable.forward")


def test_a_case_may_list_modules_that_count_as_they_are(monkeypatch):
    monkeypatch.setattr(mixed_models.Mixed, "port_modules", lambda self: ("a", "b"))
    code = port_code(mixed_models.case)
    assert code.modules == ("a", "b")
    assert code.has("a", "anything")


def test_classes_inside_functions_count_without_the_function():
    def helper(x):
        return x

    class Local(tp.Module):
        def forward(self, x):
            return helper(torch.Tensor and x)

    here = "test_classes_inside_functions_count_without_the_function"
    assert named_by([Local], {__name__}) == {__name__: {f"{here}.Local", f"{here}.helper"}}
