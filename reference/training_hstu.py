"""Training HSTU: at every position the next item against sampled ones, as the public experiments do.

Source of the settings: meta-recsys/generative-recommenders,
``configs/ml-1m/hstu-sampled-softmax-n128-final.gin``, and in ``research/``: ``trainer/train.py`` (AdamW's
betas, the shift by one item), ``modeling/sequential/losses/sampled_softmax.py`` (collisions, the mean over
positions) and ``modeling/sequential/autoregressive_losses.py`` (uniform negatives, normalised embeddings).

Legend: B users of a batch, U users, N positions, P predictions, R negatives, D embedding, I different items.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from datasets import movielens
from reference.hstu_dense import HSTUDenseModel
from reference.training import TRAIN, VALIDATION

LEARNING_RATE, BETAS, WEIGHT_DECAY = 1e-3, (0.9, 0.98), 0.0
BATCH_SIZE = 128
NUM_NEGATIVES, TEMPERATURE, NORM_EPS = 128, 0.05, 1e-6
EPOCHS, PATIENCE = 30, 3


@dataclass(frozen=True)
class Histories:
    """Users' histories and the items that follow them: int64, left-aligned, any values in the padding.

    Attributes:
        past_lengths: (U,) items of each history, at least 1 and less than N.
        past_ids: (U, N).
        ratings: (U, N).
        timestamps: (U, N) in seconds; the target's at index ``past_lengths``.
        targets: (U,) ids of the items that follow.
    """

    past_lengths: torch.Tensor
    past_ids: torch.Tensor
    ratings: torch.Tensor
    timestamps: torch.Tensor
    targets: torch.Tensor

    @classmethod
    def of(cls, recorded: movielens.Histories) -> Histories:
        """Recorded histories as tensors, copied."""
        return cls(*(torch.tensor(getattr(recorded, name)) for name in cls.__dataclass_fields__))

    def __len__(self) -> int:
        return self.past_lengths.shape[0]

    def users(self, rows_B: torch.Tensor) -> Histories:
        """Some users, in rows just long enough for their longest history and the query."""
        width = int(self.past_lengths[rows_B].max()) + 1
        return Histories(
            self.past_lengths[rows_B],
            self.past_ids[rows_B, :width],
            self.ratings[rows_B, :width],
            self.timestamps[rows_B, :width],
            self.targets[rows_B],
        )

    def next_ids(self) -> torch.Tensor:
        """(U, N): the item that follows each position; any values in the padding."""
        shifted = torch.roll(self.past_ids, -1, dims=1)
        return shifted.scatter(1, (self.past_lengths - 1)[:, None], self.targets[:, None])


def sampled_softmax(
    states_PD: torch.Tensor,
    positive_ids_P: torch.Tensor,
    negative_ids_PR: torch.Tensor,
    embed: Callable[[torch.Tensor], torch.Tensor],
    temperature: float = TEMPERATURE,
) -> torch.Tensor:
    """(P,): the negative log probability of the positive among itself and its negatives.

    A logit is the product of a state and the item's embedding, scaled to length 1, over the temperature. The
    sum leaves out a negative that equals the positive.

    Args:
        embed: (I,) item ids -> (I, D).
    """
    ids_PS = torch.cat([positive_ids_P[:, None], negative_ids_PR], dim=1)
    # Each item is looked up and scaled once: many positions draw the same ones.
    items_I, item_PS = torch.unique(ids_PS, return_inverse=True)
    items_ID = F.normalize(embed(items_I), dim=-1, eps=NORM_EPS)
    logits_PS = (states_PD @ items_ID.t()).gather(1, item_PS) / temperature
    collides_PR = negative_ids_PR == positive_ids_P[:, None]
    logits_PS = logits_PS.masked_fill(F.pad(collides_PR, (1, 0)), -torch.inf)
    return -torch.log_softmax(logits_PS, dim=1)[:, 0]


class HSTUTask:
    """See `reference.training.Task`. Training uses all positions, validation the last one of a history.

    Args:
        model: a model without positions for ratings.
        train, validation: histories with items of the model.
        catalogue: the item ids of the negatives, all with the same probability.
        learning_rate: the learning rate of AdamW.
    """

    def __init__(
        self,
        model: HSTUDenseModel,
        train: Histories,
        validation: Histories,
        catalogue: torch.Tensor,
        learning_rate: float = LEARNING_RATE,
    ) -> None:
        self.model = model
        self._parts = {TRAIN: train, VALIDATION: validation}
        self._catalogue = catalogue
        self.lengths = None
        self.optimizers: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=BETAS, weight_decay=WEIGHT_DECAY),
        )

    def num_rows(self, part: str) -> int:
        return len(self._parts[part])

    def loss(self, part: str, rows_B: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, int]:
        """Mean of the sampled softmax over the part's positions, and their number."""
        batch = self._parts[part].users(rows_B)
        encoded_BND = self.model(
            past_lengths=batch.past_lengths,
            past_ids=batch.past_ids,
            past_embeddings=self.model.get_item_embeddings(batch.past_ids),
            past_payloads={"timestamps": batch.timestamps, "ratings": batch.ratings},
        )
        position_N = torch.arange(batch.past_ids.shape[1])
        counts_BN = position_N < batch.past_lengths[:, None]
        if part == VALIDATION:
            counts_BN &= position_N == batch.past_lengths[:, None] - 1
        positives_P = batch.next_ids()[counts_BN]
        drawn_PR = torch.randint(len(self._catalogue), (len(positives_P), NUM_NEGATIVES), generator=generator)
        losses_P = sampled_softmax(
            encoded_BND[counts_BN], positives_P, self._catalogue[drawn_PR], self.model.get_item_embeddings
        )
        return losses_P.mean(), len(positives_P)
