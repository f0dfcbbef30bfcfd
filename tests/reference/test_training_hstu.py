"""HSTU's loss: the sampled softmax against its definition, what is predicted, and what must not matter."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch

from reference import training_hstu
from reference.training import TRAIN, VALIDATION
from reference.training_hstu import NUM_NEGATIVES, TEMPERATURE, sampled_softmax
from tests.reference.hstu_setup import longest_sum
from tests.reference.rounding import max_difference, rounding_bound, unit_roundoff
from tests.reference.training_setup import hstu_config, hstu_task, make_histories

CHANGES = (
    {},
    {"preprocessor": "rated"},
    {"embedding": "categorical", "num_categories": 9},
    {"output_postprocessor": "layer_norm", "concat_ua": True},
)


def test_the_settings_are_the_public_ones():
    task = hstu_task(learning_rate=training_hstu.LEARNING_RATE)
    (optimizer,) = task.optimizers
    (group,) = optimizer.param_groups
    assert type(optimizer) is torch.optim.AdamW
    assert (group["lr"], group["betas"], group["weight_decay"]) == (1e-3, (0.9, 0.98), 0.0)
    assert (training_hstu.BATCH_SIZE, NUM_NEGATIVES, TEMPERATURE) == (128, 128, 0.05)


def by_definition(states, positives, negatives, table, temperature):
    """The same, one prediction and one negative at a time, in Python's floats."""

    def logit(state, item):
        length = max(math.sqrt(sum(x * x for x in table[item])), 1e-6)
        return sum(s * x / length for s, x in zip(state, table[item], strict=True)) / temperature

    losses = []
    for state, positive, drawn in zip(states, positives, negatives, strict=True):
        others = [logit(state, item) for item in drawn if item != positive]
        own = logit(state, positive)
        losses.append(math.log(sum(math.exp(entry - own) for entry in [own, *others])))
    return losses


@pytest.mark.parametrize("temperature", [TEMPERATURE, 1.0])
def test_the_sampled_softmax_is_its_definition(temperature):
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(9, 5, generator=generator, dtype=torch.float64)
    table[4] = 1e-9  # shorter than the smallest length to divide by
    states = torch.nn.functional.normalize(
        torch.randn(7, 5, generator=generator, dtype=torch.float64), dim=-1
    )
    positives = torch.tensor([1, 2, 3, 4, 5, 6, 6])
    negatives = torch.randint(1, 9, (7, 6), generator=generator)
    negatives[6] = 6  # every negative is the positive: nothing is left to compare with
    actual = sampled_softmax(states, positives, negatives, lambda ids: table[ids], temperature)
    expected = by_definition(
        states.tolist(), positives.tolist(), negatives.tolist(), table.tolist(), temperature
    )
    assert (negatives[:6] == positives[:6, None]).any()
    assert actual.tolist() == pytest.approx(expected, rel=1e-12)
    assert actual[6] == 0


def test_a_negative_that_is_the_positive_has_no_gradient():
    table = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    states, positives = torch.randn(1, 3, dtype=torch.float64), torch.tensor([2])
    gradients = []
    for negatives in ([[1, 3]], [[1, 2, 2, 3, 2]]):
        losses = sampled_softmax(states, positives, torch.tensor(negatives), lambda ids: table[ids])
        gradients.append(torch.autograd.grad(losses.sum(), table)[0])
    assert torch.isfinite(gradients[1]).all()
    # Six weights in the softmax's sum and three elements in a product, added in another order where zeros are
    # in between; of the whole gradient, since the normed rows' projection cancels.
    longest = gradients[0].abs().max().item()
    assert max_difference(*gradients) <= 2 * (6 + 3) * unit_roundoff(torch.float64) * longest


def test_every_position_is_asked_for_the_item_that_follows():
    histories = make_histories()
    ids, lengths = histories.past_ids.tolist(), histories.past_lengths.tolist()
    for row, (items, length) in enumerate(zip(ids, lengths, strict=True)):
        expected = [*items[1:length], int(histories.targets[row])]
        assert histories.next_ids()[row, :length].tolist() == expected


def test_users_keep_what_their_longest_history_and_the_query_need():
    histories = make_histories()
    longest = int(histories.past_lengths.max())
    rows = torch.tensor([int(histories.past_lengths.argmax()), 0])
    users = histories.users(rows)
    assert users.past_ids.shape == users.timestamps.shape == users.ratings.shape == (2, longest + 1)
    assert torch.equal(users.timestamps[0, : longest + 1], histories.timestamps[rows[0], : longest + 1])
    assert users.timestamps[0, longest] > 0


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_the_loss_is_the_mean_over_what_is_predicted(changes, monkeypatch):
    """By hand, user by user and without padding, from the states of the trimmed batch."""
    task = hstu_task(**changes)
    model, histories, config = task.model.eval(), make_histories(), hstu_config(**changes)
    wide = copy.deepcopy(model).double()
    asked = {}
    real = sampled_softmax

    def record(states, positives, negatives, embed):
        asked.update(states=states, positives=positives, negatives=negatives)
        return real(states, positives, negatives, embed)

    monkeypatch.setattr(training_hstu, "sampled_softmax", record)
    rows = torch.tensor([3, 0, 7])
    for part, parts_histories in ((TRAIN, histories), (VALIDATION, make_histories(seed=1))):
        loss, count = task.loss(part, rows, torch.Generator().manual_seed(0))
        states, exact, positives = [], [], []
        for row in rows:
            user = parts_histories.users(row[None])
            payloads = {"timestamps": user.timestamps, "ratings": user.ratings}
            embeddings = model.get_item_embeddings(user.past_ids)
            encoded = model(user.past_lengths, user.past_ids, embeddings, payloads)[0]
            in_float64 = wide(
                user.past_lengths, user.past_ids, wide.get_item_embeddings(user.past_ids), payloads
            )
            length = int(user.past_lengths)
            first = 0 if part == TRAIN else length - 1
            states.append(encoded[first:length])
            exact.append(in_float64[0, first:length])
            positives += [*user.past_ids[0, 1:length].tolist(), int(user.targets)][first:]
        actual, expected = asked["states"], torch.cat(states)
        limit = rounding_bound(longest_sum(config), expected, torch.cat(exact), torch.float32)
        assert max_difference(actual, expected) <= limit
        assert asked["positives"].tolist() == positives
        assert asked["negatives"].shape == (len(positives), NUM_NEGATIVES)
        assert set(asked["negatives"].flatten().tolist()) == set(range(1, 41))
        losses = real(asked["states"], asked["positives"], asked["negatives"], model.get_item_embeddings)
        assert (loss.item(), count) == (pytest.approx(losses.mean().item()), len(positives))


def poisoned(histories):
    """Garbage wherever nothing is: other ids, ratings and timestamps."""
    position = torch.arange(histories.past_ids.shape[1])
    padding = position >= histories.past_lengths[:, None]
    behind_query = position > histories.past_lengths[:, None]
    return replace(
        histories,
        past_ids=torch.where(padding, 40 - histories.past_ids[:, :1], histories.past_ids).clamp(1),
        ratings=torch.where(padding, 5, histories.ratings),
        timestamps=torch.where(behind_query, -(10**9), histories.timestamps),
    )


@pytest.mark.parametrize("part", [TRAIN, VALIDATION])
@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_padding_changes_neither_the_loss_nor_a_gradient(changes, part):
    results = []
    for poison in (False, True):
        task = hstu_task(**changes)
        if poison:
            task._parts = {name: poisoned(histories) for name, histories in task._parts.items()}
        task.model.train()
        loss, _ = task.loss(part, torch.arange(12), torch.default_generator)
        loss.backward()
        results.append([loss.detach(), *(entry.grad for entry in task.model.parameters())])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def test_poison_in_the_history_is_seen():
    task = hstu_task()
    clean = task.loss(TRAIN, torch.arange(12), torch.Generator().manual_seed(0))[0]
    task._parts[TRAIN].past_ids[0, 0] = 40 - task._parts[TRAIN].past_ids[0, 0]
    assert task.loss(TRAIN, torch.arange(12), torch.Generator().manual_seed(0))[0] != clean


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_gradients_reach_every_parameter(changes):
    task = hstu_task(**changes)
    task.model.train()
    task.loss(TRAIN, torch.arange(12), torch.default_generator)[0].backward()
    without = [name for name, entry in task.model.named_parameters() if not entry.grad.abs().sum() > 0]
    assert not without


def test_negatives_come_from_the_catalogue_alone(monkeypatch):
    task = hstu_task()
    task._catalogue = torch.tensor([5, 17])
    seen = []
    monkeypatch.setattr(
        training_hstu,
        "sampled_softmax",
        lambda states, positives, negatives, embed: (seen.append(negatives), states.sum(dim=1))[1],
    )
    task.loss(TRAIN, torch.arange(12), torch.default_generator)
    assert set(seen[0].flatten().tolist()) == {5, 17}
    assert abs((seen[0] == 5).float().mean() - 0.5) < 0.05
