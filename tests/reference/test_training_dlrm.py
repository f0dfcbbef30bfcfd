"""DLRM's loss, its split and its optimizers."""

from __future__ import annotations

import math

import pytest
import torch

from reference.training import TRAIN, VALIDATION
from tests.reference.rounding import max_difference, unit_roundoff
from tests.reference.training_setup import dlrm_task, make_log


@pytest.mark.parametrize(
    ("optimizer", "rate", "kind"),
    [("sgd", 0.1, torch.optim.SGD), ("adagrad", 0.01, torch.optim.Adagrad)],
)
def test_the_settings_are_the_public_ones(optimizer, rate, kind):
    task = dlrm_task(optimizer)
    (only,) = task.optimizers
    (group,) = only.param_groups
    assert type(only) is kind
    assert group["lr"] == rate
    assert group["weight_decay"] == 0
    assert group.get("momentum", 0) == group.get("lr_decay", 0) == 0
    assert len(group["params"]) == len(list(task.model.parameters()))
    assert dlrm_task(optimizer, 0.5).optimizers[0].param_groups[0]["lr"] == 0.5


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(ValueError, match="optimizer='adam': choose one of 'sgd', 'adagrad'"):
        dlrm_task("adam")


@pytest.mark.parametrize(("rows", "validation"), [(2, 1), (6, 1), (7, 1), (14, 2), (40, 5), (200, 28)])
def test_the_last_seventh_validates(rows, validation):
    log = make_log(rows)
    parts = log.split()
    assert (len(parts[TRAIN]), len(parts[VALIDATION])) == (rows - validation, validation)
    for name, axis in (("counts_NC", 0), ("rows_TN", 1), ("labels_N", 0)):
        both = torch.cat([getattr(parts[part], name) for part in (TRAIN, VALIDATION)], dim=axis)
        assert torch.equal(both, getattr(log, name))


def test_a_log_of_one_row_is_refused():
    with pytest.raises(ValueError, match="rows=1: give at least two"):
        make_log(1).split()


def test_the_loss_is_the_binary_cross_entropy_of_the_click_probability():
    task, log = dlrm_task(), make_log()
    rows = torch.tensor([3, 0, 11])
    loss, count = task.loss(TRAIN, rows, torch.default_generator)
    expected = 0.0
    for row in rows.tolist():
        bags = [log.rows_TN[table, row][None] for table in range(2)]
        click = task.model.predict(log.counts_NC[row][None], [torch.zeros(1, dtype=torch.int64)] * 2, bags)
        probability = click.item() if log.labels_N[row] else 1 - click.item()
        expected -= math.log(probability) / 3
    assert (loss.item(), count) == (pytest.approx(expected, rel=1e-5), 3)


def test_validation_rows_are_those_behind_the_training_rows():
    task, log = dlrm_task(), make_log()
    first = task.num_rows(TRAIN)
    whole = dlrm_task(log=make_log(80))  # its training part covers all of the smaller log
    rows = torch.arange(task.num_rows(VALIDATION))
    whole._parts[TRAIN] = log
    assert torch.equal(
        task.loss(VALIDATION, rows, torch.default_generator)[0],
        whole.loss(TRAIN, rows + first, torch.default_generator)[0],
    )


def test_gradients_reach_every_parameter_and_only_rows_that_occur():
    task = dlrm_task()
    rows = torch.arange(8)
    task.loss(TRAIN, rows, torch.default_generator)[0].backward()
    gradients = {name: entry.grad.to_dense() for name, entry in task.model.named_parameters()}
    assert not [name for name, gradient in gradients.items() if not gradient.abs().sum() > 0]
    for table in range(2):
        used = gradients[f"emb_l.{table}.weight"].abs().sum(dim=1).nonzero().flatten()
        assert set(used.tolist()) <= set(make_log().rows_TN[table, rows].tolist())


def test_one_step_of_sgd_is_the_gradient_times_the_rate():
    task = dlrm_task()
    before = {name: entry.detach().clone() for name, entry in task.model.named_parameters()}
    task.loss(TRAIN, torch.arange(8), torch.default_generator)[0].backward()
    gradients = {name: entry.grad.to_dense() for name, entry in task.model.named_parameters()}
    task.optimizers[0].step()
    for name, entry in task.model.named_parameters():
        # The step's two roundings on either side, and one for each of the 8 rows, which may all add to one
        # row of a table.
        parts = entry.grad._values() if entry.grad.is_sparse else entry.grad
        step = 0.1 * 8 * parts.abs().max()
        limit = (4 + 8) * unit_roundoff(torch.float32) * (before[name].abs().max() + step)
        assert max_difference(entry, before[name] - 0.1 * gradients[name]) <= limit
