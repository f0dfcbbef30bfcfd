"""Synthetic input: histories that look like recorded ones and reach every part of a model.

Legend: B users, N items in a padded row, X candidates.
"""

from __future__ import annotations

import numpy as np

from cases.hstu.inputs import HSTUInputs, validate
from configs import CaseConfig, HSTUConfig

#: Longest pause of a synthetic user, two years; the shortest is none. Longer spans are sums of pauses.
MAX_GAP_SECONDS = 2 * 365 * 24 * 3600
#: The first synthetic events: the autumn of 1997, when MovieLens began.
_FIRST_SECOND = 875_000_000
#: Share of events with an item that is already in the history.
_REPEAT_RATE = 0.1


def synthetic(case: CaseConfig, per_user_candidates: bool = False) -> HSTUInputs:
    """Histories that look like recorded ones and reach every part of the model.

    Lengths are long-tailed, from 1 to the maximum, and one user alone has the longest. Items are popular by
    Zipf's law and come back. The pauses between events go from seconds to years. They cover as many time
    buckets of `reachable_buckets` as the batch has room for. Ratings are 1..num_ratings-1.

    Args:
        per_user_candidates: Draw candidates for each user, (B, X), in place of one list for all, (1, X).
    """
    model, batch_size = case.model, case.input.batch_size
    # One stream a quantity: drawing more of one of them does not change the others.
    streams = np.random.default_rng([case.input.seed, 0x1279]).spawn(5)
    lengths = case.input.lengths
    lengths_B = (
        _lengths(streams[0], model.max_sequence_len, batch_size) if lengths is None else np.array(lengths)
    )
    valid_BN = np.arange(model.padded_length) < lengths_B[:, None]
    rank = streams[1].permutation(np.arange(1, model.num_items + 1))
    past_ids_BN = np.where(valid_BN, _histories(streams[1], rank, valid_BN.shape), 0)
    ratings_BN = np.where(valid_BN, streams[2].integers(1, model.num_ratings, valid_BN.shape), 0)
    timestamps_BN = _timestamps(streams[3], lengths_B, model)
    rows = batch_size if per_user_candidates else 1
    inputs = HSTUInputs(
        {
            "past_lengths": lengths_B.astype(np.int64),
            "past_ids": past_ids_BN.astype(np.int64),
            "ratings": ratings_BN.astype(np.int64),
            "timestamps": np.repeat(timestamps_BN, model.positions_per_item, axis=1),
            "item_ids": _candidates(streams[4], model.num_items, rows, case.input.num_candidates),
        }
    )
    validate(inputs, model)
    return inputs


def reachable_buckets(model: HSTUConfig) -> np.ndarray:
    """Time buckets of pauses of 0..MAX_GAP_SECONDS whole seconds, ascending.

    Some buckets are out of reach. At the public width of 0.301 a bucket lies between 1 and 2 seconds.
    """
    return np.unique(_bucket(_bucket_gaps(model), model))


def _bucket(seconds: np.ndarray, model: HSTUConfig) -> np.ndarray:
    # In float64, and only to choose pauses: which side of an edge a delta falls on decides no value.
    bucket = np.log(np.maximum(seconds, 1)) // model.bucket_divisor
    return np.minimum(bucket, model.num_buckets).astype(np.int64)


def _bucket_gaps(model: HSTUConfig) -> np.ndarray:
    """One pause in whole seconds for each bucket that has one, near the geometric middle of the bucket."""
    last = int(np.log(MAX_GAP_SECONDS) // model.bucket_divisor)
    edges = np.exp(np.arange(last + 2) * model.bucket_divisor)
    low, high = np.ceil(edges[:-1]), np.minimum(np.ceil(edges[1:]) - 1, MAX_GAP_SECONDS)
    middle = np.clip(np.round(np.sqrt(edges[:-1] * edges[1:])), low, np.maximum(low, high))
    return middle[low <= high].astype(np.int64)


def _lengths(rng: np.random.Generator, longest: int, batch_size: int) -> np.ndarray:
    lengths = np.exp(rng.uniform(0.0, np.log(longest + 1), batch_size)).astype(np.int64).clip(1, longest)
    ends = [longest, 1][:batch_size]
    lengths[: len(ends)] = ends
    lengths = rng.permutation(lengths)
    # The first row is not the longest one, where there is another.
    return np.roll(lengths, 1) if lengths[0] == longest else lengths


def _histories(rng: np.random.Generator, rank: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Ids (B, N). ``rank`` lists the ids from the most popular one down."""
    popularity = 1.0 / np.arange(1, rank.size + 1)
    ids_BN = rank[np.searchsorted(np.cumsum(popularity / popularity.sum())[:-1], rng.random(shape))]
    comes_back = rng.random(shape) < _REPEAT_RATE
    comes_back[:, 1] = True  # the shortest history that can repeat an item does
    for position in range(1, shape[1]):
        earlier = rng.integers(0, position, shape[0])
        again = comes_back[:, position]
        ids_BN[again, position] = ids_BN[again, earlier[again]]
    return ids_BN


def _timestamps(rng: np.random.Generator, lengths_B: np.ndarray, model: HSTUConfig) -> np.ndarray:
    """Seconds (B, N): ascending over the history and the query behind it, 0 in the padding."""
    gaps_BN = np.exp(rng.uniform(0.0, np.log(MAX_GAP_SECONDS), (lengths_B.size, model.padded_length)))
    gaps_BN = gaps_BN.astype(np.int64)
    gaps_BN[:, 0] = rng.integers(0, MAX_GAP_SECONDS, lengths_B.size)
    unseen = set(reachable_buckets(model).tolist())
    for row in np.argsort(-lengths_B, kind="stable"):
        chosen = _covering_gaps(rng, int(lengths_B[row]), unseen, model)
        gaps_BN[row, 1 : 1 + chosen.size] = chosen
    seconds_BN = _FIRST_SECOND + np.cumsum(gaps_BN, axis=1)
    return np.where(np.arange(model.padded_length) <= lengths_B[:, None], seconds_BN, 0)


def _covering_gaps(rng: np.random.Generator, limit: int, unseen: set[int], model: HSTUConfig) -> np.ndarray:
    """The first pauses of a history. Each pause opens the most unseen buckets, which leave `unseen`.

    A pause opens a bucket for its sum with every run of pauses right before it. A history of n items
    therefore has room for far more than n buckets.
    """
    options = rng.permutation(_bucket_gaps(model))
    chosen: list[int] = []
    runs = np.zeros(1, dtype=np.int64)  # time since each earlier event, the latest one first
    while unseen and len(chosen) < limit:
        opened = [unseen.intersection(row) for row in _bucket(options[:, None] + runs, model).tolist()]
        best = max(range(options.size), key=lambda option: len(opened[option]))
        unseen -= opened[best]
        chosen.append(int(options[best]))
        runs = np.concatenate([[0], runs + options[best]])
    return np.array(chosen, dtype=np.int64)


def _candidates(rng: np.random.Generator, num_items: int, rows: int, count: int) -> np.ndarray:
    """Distinct ids in each row (rows, X); the ends of the table are among them where there is room."""
    candidates = np.stack([rng.choice(num_items, count, replace=False) + 1 for _ in range(rows)])
    for column, item in enumerate([1, num_items][: count - 1]):
        for row in candidates:
            if item not in row:
                row[column] = item
    return rng.permuted(candidates, axis=1).astype(np.int64)
