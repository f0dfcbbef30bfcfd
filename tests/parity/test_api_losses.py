"""`parity.compare` on a loss, one number of a whole batch: right ports pass, wrong ones fail."""

import numpy as np
import nvtripy as tp
import pytest
import torch
from torch import nn
from torch.nn import functional

import parity

WIDTH, CLASSES = 16, 20


class Net(nn.Module):
    """A classifier whose entry returns its loss, with the loss as a module or as a function."""

    def __init__(self, is_module):
        super().__init__()
        torch.manual_seed(0)
        self.hidden = nn.Linear(WIDTH, 32)
        self.head = nn.Linear(32, CLASSES)
        self.loss = nn.CrossEntropyLoss() if is_module else None

    def forward(self, x, labels):
        logits = self.head(torch.relu(self.hidden(x)))
        return functional.cross_entropy(logits, labels) if self.loss is None else self.loss(logits, labels)


class Loss(tp.Module):
    """The cross entropy, with a fault of this name."""

    def __init__(self, fault):
        super().__init__()
        self.fault = fault

    def forward(self, logits, labels):
        shifted = logits - tp.max(logits, dim=1, keepdim=True)
        # Without the shift, a term of the logarithm is missing.
        summed = tp.sum(tp.exp(logits if self.fault == "a missing term" else shifted), dim=1, keepdim=True)
        if self.fault == "a wrong label":
            labels = labels * 0
        classes_1C = tp.reshape(tp.cast(tp.arange(CLASSES), labels.dtype), (1, CLASSES))
        is_label_BC = tp.reshape(labels, (-1, 1)) == classes_1C
        chosen = tp.sum((shifted - tp.log(summed)) * tp.cast(is_label_BC, logits.dtype), dim=1)
        loss = -(tp.sum(chosen, dim=0) if self.fault == "a sum" else tp.mean(chosen, dim=0))
        return loss * {"a factor of 1.02": 1.02, "a factor of 1.03": 1.03}.get(self.fault, 1.0)


class Port(tp.Module):
    def __init__(self, is_module, fault, dtype):
        super().__init__()
        self.hidden = tp.Linear(WIDTH, 32, dtype=dtype)
        self.head = tp.Linear(32, CLASSES, dtype=dtype)
        if is_module:
            self.loss = Loss(fault)
        # In a list, it is no module of the port.
        self._function = [Loss(fault)]

    def forward(self, x, labels):
        loss = getattr(self, "loss", self._function[0])
        return loss(self.head(tp.relu(self.hidden(x))), labels)


def compared(fault, precision, is_module=True, rows=32):
    rng = np.random.default_rng(0)
    inputs = {
        "x": 2.0 * rng.standard_normal((rows, WIDTH)).astype(np.float32),
        "labels": rng.integers(0, CLASSES, rows),
    }
    return parity.compare(
        lambda: Net(is_module), lambda dtype: Port(is_module, fault, dtype), inputs, (precision,)
    )


@pytest.mark.parametrize("is_module", [True, False], ids=["a module", "a function"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_right_loss_passes(precision, is_module):
    result = compared("", precision, is_module)
    assert result.passed, str(result)
    # All but a loss in bf16 detects 1 %.
    assert ("no batch of a run detects every error of 1%" in str(result)) == (
        precision == "bf16" and is_module
    )


def test_a_loss_that_misses_1_percent_says_that_it_is_one_number():
    result = compared("", "bf16")
    assert "note: loss (CrossEntropyLoss): no batch of a run detects every error of 1%: one number" in str(
        result
    )
    (entry,) = (entry for _, _, entry in result.report.runner_reports() if entry.runner == "tripy")
    marks = {module.tap: (module.status, module.by_nature) for module in entry.modules}
    assert marks["loss"] == ("PASS", True)
    assert {marks["hidden"], marks["head"]} == {("PASS", False)}


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("fault", ["a factor of 1.03", "a sum", "a missing term", "a wrong label"])
def test_a_wrong_loss_fails(fault, precision):
    result = compared(fault, precision)
    assert "FAIL at loss" in str(result)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_factor_fails_where_the_type_shows_it(precision):
    assert "FAIL at loss" in str(compared("a factor of 1.02", precision))


@pytest.mark.parametrize("fault", ["a factor of 1.02", "a sum", "a missing term", "a wrong label"])
def test_a_wrong_loss_behind_the_modules_fails(fault):
    assert "FAIL at forward.output" in str(compared(fault, "fp16", is_module=False))
