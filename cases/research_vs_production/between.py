"""The model between research HSTU and the production STU.

The set of differences selects the research or the production model's form of each step. Both forms run on the
modules and parameters of two references with equal weights.

Legend: B users, N rows of a padded sequence, W the research model's width, X candidates, D embedding, H
heads, K attention dim, V linear dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F

from cases.research_vs_production.made_equal import TARGETS
from reference.hstu_dense import HSTUDenseModel
from reference.hstu_transducer import HSTUTransducer
from reference.positional_encoder import position_index, time_index
from reference.sequence_utils import get_current_embeddings, zero_padded_rows
from reference.stu import STULayer
from reference.transduction_dense import SequentialTransductionUnitDense


@dataclass(frozen=True)
class Rows:
    """Sequences for both models.

    ``lengths`` (B,) and ``num_targets`` (B,) are as in `reference.hstu_transducer`. ``ids`` (B, N) are 0 in
    the padding. ``timestamps`` (B, N) hold seconds, with the query's time for targets and at index
    ``length``.
    """

    lengths: torch.Tensor
    num_targets: torch.Tensor
    ids: torch.Tensor
    timestamps: torch.Tensor

    @property
    def history_lengths(self) -> torch.Tensor:
        return self.lengths - self.num_targets

    def with_targets(self, candidates: torch.Tensor) -> Rows:
        """The same histories with all candidates (T,) behind each."""
        offset = torch.arange(self.ids.size(1)) - self.lengths.unsqueeze(1)
        is_target = (offset >= 0) & (offset < candidates.numel())
        query = self.timestamps.gather(1, self.lengths.unsqueeze(1))
        return Rows(
            self.lengths + candidates.numel(),
            torch.full_like(self.num_targets, candidates.numel()),
            torch.where(is_target, candidates[offset.clamp(0, candidates.numel() - 1)], self.ids),
            # One more than the targets: research HSTU reads the time of the row behind the last.
            torch.where((offset >= 0) & (offset <= candidates.numel()), query, self.timestamps),
        )

    def trimmed(self) -> Rows:
        """No wider than the longest sequence."""
        n = int(self.lengths.max())
        return replace(self, ids=self.ids[:, :n], timestamps=self.timestamps[:, :n])


@dataclass(frozen=True)
class Answer:
    """States (B, N, D) of the history rows, and scores (B, X) of the candidates."""

    states: torch.Tensor
    scores: torch.Tensor


def rows_of(arrays: Mapping[str, np.ndarray]) -> Rows:
    """The histories of research HSTU's input."""
    tensors = {name: torch.tensor(array) for name, array in arrays.items()}
    lengths = tensors["past_lengths"]
    ids = zero_padded_rows(tensors["past_ids"].unsqueeze(2), lengths).squeeze(2)
    return Rows(lengths, torch.zeros_like(lengths), ids, tensors["timestamps"])


class Between:
    """Research HSTU with some differences of the production STU.

    Args:
        research, production: from `made_equal.build_pair`.
        differences: names of `differences`, options included. The options group_norm and window need a
            production model that was built with them.
    """

    def __init__(
        self, research: HSTUDenseModel, production: HSTUTransducer, differences: frozenset[str]
    ) -> None:
        self._research = research
        self._production = production
        self._on = differences

    def answer(self, histories: Rows, candidates: torch.Tensor) -> Answer:
        """Rank candidates (X,) for each user; X is a multiple of `made_equal.TARGETS` where targets are
        rows."""
        items_XD = self._research.get_item_embeddings(candidates)
        if "targets" not in self._on:
            states = self._encode(histories)
            current = get_current_embeddings(histories.lengths, states)
            return Answer(states, current @ items_XD.T)
        scores = []
        for start in range(0, candidates.numel(), TARGETS):
            requested = candidates[start : start + TARGETS]
            rows = histories.with_targets(requested)
            states = self._encode(rows)
            row_BT = histories.lengths.unsqueeze(1) + torch.arange(requested.numel())
            targets = states.gather(1, row_BT.unsqueeze(2).expand(-1, -1, states.size(2)))
            scores.append((targets * items_XD[start : start + TARGETS]).sum(dim=-1))
        return Answer(states, torch.cat(scores, dim=1))

    def _encode(self, rows: Rows) -> torch.Tensor:
        """(B, N, D), anything in the padded rows."""
        x = zero_padded_rows(self._embed(rows), rows.lengths)
        mask = self._mask(rows, x)
        scale = self._row_factors(rows, mask)
        layers = zip(
            self._research._hstu._attention_layers, self._production._stu_module._stu_layers, strict=True
        )
        for block, layer in layers:
            x = self._layer(block, layer, x, rows, mask, scale)
        if "postprocessor" in self._on:
            return self._production._output_postprocessor(x, rows.timestamps)
        return self._research._output_postproc(x)

    def _embed(self, rows: Rows) -> torch.Tensor:
        items = self._research.get_item_embeddings(rows.ids)
        table = self._research._input_features_preproc._pos_emb.weight
        index = torch.arange(items.size(1)).unsqueeze(0)
        if "position" in self._on:
            index = position_index(rows.lengths, rows.num_targets, items, 0, table.size(0))
        x = items * items.size(2) ** 0.5 + table[index]
        if "time" in self._on:
            times = self._production._positional_encoder._timestamp_embeddings_weight
            # The first target has the query's time at the index where a row without targets has it.
            query = rows.timestamps.gather(1, rows.history_lengths.unsqueeze(1))
            x = x + times[time_index(query - rows.timestamps, times.size(0) - 1)]
        return x

    def _mask(self, rows: Rows, x: torch.Tensor) -> torch.Tensor:
        """(B, N, N)."""
        if {"target_mask", "window"} & self._on:
            return self._production._stu_module._valid_attn_mask(rows.lengths, rows.num_targets, x)
        causal = self._research._valid_attn_mask(self._research._attn_mask, x)
        return causal.expand(x.size(0), -1, -1)

    def _row_factors(self, rows: Rows, mask: torch.Tensor) -> torch.Tensor:
        """(B, N), or one number in (1, 1): factors of each row's attention weights."""
        if "attn_scale" in self._on:
            return 1.0 / mask.sum(dim=-1)
        width = int(rows.lengths.max()) if "divisor" in self._on else self._research.sequence_width
        return torch.full((1, 1), 1.0 / width, dtype=mask.dtype)

    def _layer(
        self,
        block: SequentialTransductionUnitDense,
        layer: STULayer,
        x: torch.Tensor,
        rows: Rows,
        mask: torch.Tensor,
        scale: torch.Tensor,
    ) -> torch.Tensor:
        on = self._on
        normed = (
            layer._input_norm(x, layer._input_norm_weight, layer._input_norm_bias)
            if "input_norm" in on
            else block._norm_input(x)
        )
        projected = normed @ block._uvqk
        if "uvqk_bias" in on:
            projected = projected + layer._uvqk_beta
        u, v, q, k = projected.split(layer._split_sizes, dim=-1)
        u = F.silu(u)
        if "activation" not in on:
            v, q, k = (F.silu(part) for part in (v, q, k))
        bias = None if "bias" in on else block._rel_attn_bias(rows.timestamps).unsqueeze(1)
        a = self._attend(layer, q, k, v, bias, mask, scale)
        normed_a = (
            layer._output_norm(a, layer._output_norm_weight, layer._output_norm_bias)
            if {"output_norm", "group_norm"} & on
            else block._norm_attn_output(a)
        )
        parts = [u * normed_a]
        if "concatenation" in on:
            parts = [u, a if "raw_attention" in on else normed_a, *parts]
        y = torch.cat(parts, dim=-1)
        # The last rows of the production model's projection are the research model's.
        x = x + y @ layer._output_weight[-y.size(-1) :]
        return x if "output_bias" in on else x + block._o.bias

    def _attend(
        self,
        layer: STULayer,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        bias: torch.Tensor | None,
        mask: torch.Tensor,
        scale: torch.Tensor,
    ) -> torch.Tensor:
        """(B, N, H * K), the same, (B, N, H * V), (B, 1, N, N) or None, (B, N, N) and (B or 1, N or 1)."""
        heads = layer._attn._num_heads
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in (q, k, v))
        logits = q @ k.transpose(2, 3)
        if "alpha" in self._on:
            logits = logits * layer._attn._alpha
        if bias is not None:
            logits = logits + bias
        weights = F.silu(logits) * scale[:, None, :, None] * mask.unsqueeze(1)
        return (weights @ v).transpose(1, 2).flatten(2)
