"""MovieLens ratings as HSTU takes them: histories, candidates and targets, in batches of users.

Legend: B users of a batch, N items in a padded row, X candidates.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from cases.data_errors import as_user_errors
from cases.hstu.inputs import HSTUInputs, validate
from configs import CaseConfig, HSTUConfig
from datasets import movielens
from datasets.movielens import Histories, Ratings
from parity.base.errors import UserError
from parity.case import Batches
from parity.inputs.arrays import CaseInputs


@as_user_errors()
def read(path: Path) -> Ratings:
    """Reads a rating file.

    Raises:
        UserError: see `datasets.movielens.read_ratings`.
    """
    return movielens.read_ratings(path)


def recorded(case: CaseConfig, data: Ratings) -> Batches:
    """All users with a history, in batches of the case's size; the targets are the labels.

    Raises:
        UserError: see `user_batches`.
    """
    wanted = case.input
    batches = list(user_batches(data, case.model, wanted.batch_size, wanted.num_candidates, wanted.seed))
    histories = [users for users, _ in batches]
    counts = {
        "users": sum(users.user_ids.size for users in histories),
        "users_in_file": data.num_users,
        "users_without_history": data.num_users - data.with_history.size,
        "history": sum(int(users.past_lengths.sum()) for users in histories),
        "targets": sum(users.targets.size for users in histories),
        "truncated": sum(int(users.truncated.sum()) for users in histories),
        "ratings_in_file": data.num_ratings,
    }
    labels = [CaseInputs({"targets": users.targets}) for users in histories]
    return Batches([inputs for _, inputs in batches], f"{data.path.name} ({data.format})", counts, labels)


def user_batches(
    data: Ratings, model: HSTUConfig, batch_size: int, num_candidates: int, seed: int
) -> Iterator[tuple[Histories, HSTUInputs]]:
    """Every user with a history exactly once, in ascending order; the last batch may be smaller.

    The candidates of a user, (B, X), are the target and then items that are drawn from the file's items.

    Raises:
        UserError: at the call, before the first batch. The model has no embedding for an item or a rating,
            ``num_candidates`` is below 1, or no user has a history.
    """
    if num_candidates < 1:
        raise UserError("num_candidates", num_candidates, "is below 1", "give at least 1")
    with as_user_errors():
        movielens.check_fits(data, model.num_items, model.num_ratings)
    catalogue = np.unique(data.item_ids)
    rng = np.random.default_rng([seed, 0x317])
    with_history = data.with_history

    def generate() -> Iterator[tuple[Histories, HSTUInputs]]:
        for start in range(0, with_history.size, batch_size):
            users = movielens.histories(
                data, with_history[start : start + batch_size], model.max_sequence_len, model.padded_length
            )
            candidates_BX = rng.choice(catalogue, (users.user_ids.size, num_candidates))
            candidates_BX[:, 0] = users.targets
            inputs = HSTUInputs(
                {
                    "past_lengths": users.past_lengths,
                    "past_ids": users.past_ids,
                    "ratings": users.ratings,
                    "timestamps": np.repeat(users.timestamps, model.positions_per_item, axis=1),
                    "item_ids": candidates_BX,
                }
            )
            validate(inputs, model)
            yield users, inputs

    return generate()
