"""DLRM in Tripy: the deep learning recommendation model of arXiv:1906.00091. Counterpart of
reference/dlrm.py.

A bottom MLP maps dense features; sum-pooled embedding tables over jagged bags map sparse features. The
resulting vectors, all of one width, interact. A top MLP maps the interactions to a click probability.
State-dict keys equal the public ``DLRM_Net``'s.

The caller of an executable checks its arguments first, with `DLRM_Net.check_inputs`: a traced graph has no
values to check. Tables are weights of the graph. `load_state_dict` takes the caller's tensors without a copy.
On the portable runtime, compilation holds a table twice: the caller's tensor and the executable's.

Legend: B batch, T tables, L total number of indices of a table, D embedding, F = T + 1 interacting vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import nvtripy as tp

from tripy_port.dlrm_layers import FeatureInteraction, LogCounts, create_mlp, interaction_width
from tripy_port.embedding_bags import BagInputError, EmbeddingBag, check_bags
from tripy_port.int4_embedding_bags import Int4EmbeddingBag
from tripy_port.int8_embedding_bags import Int8EmbeddingBag
from tripy_port.md_embedding_bag import PrEmbeddingBag
from tripy_port.parameters import parameter
from tripy_port.qr_embedding_bag import QREmbeddingBag
from tripy_port.quantisers import NO_SCHEMES, schemes_inside
from tripy_port.validation import require, require_choice, require_positive

if TYPE_CHECKING:
    from configs import Scheme

_QUANTISED_TABLES = {"int8": Int8EmbeddingBag, "int4": Int4EmbeddingBag}

IndexTensors = tp.Tensor | Sequence[tp.Tensor]


def _check_mlp(name: str, sizes: Sequence[int], sigmoid_name: str, sigmoid_layer: int) -> None:
    require(len(sizes) >= 2, name, list(sizes), "give an input and at least one output width")
    require_positive(**{f"{name}[{layer}]": size for layer, size in enumerate(sizes)})
    last = len(sizes) - 2
    require(-1 <= sigmoid_layer <= last, sigmoid_name, sigmoid_layer, f"choose -1 for none, or 0 to {last}")


class EmbeddingTables(tp.Sequential):
    """The tables, in order. Keys: a table's number, then the table's own key."""

    def forward(
        self,
        lS_o: Sequence[tp.Tensor],
        lS_i: Sequence[tp.Tensor],
        lS_w: Sequence[tp.Tensor] | None = None,
    ) -> list[tp.Tensor]:
        """Offsets, indices and weights of T tables, see `DLRM_Net.forward` -> T tensors of (B, D)."""
        return [
            bag(lS_i[table], lS_o[table], None if lS_w is None else lS_w[table])
            for table, (_, bag) in enumerate(self.named_children())
        ]


def create_emb(
    m_spa: int | Sequence[int],
    ln_emb: Sequence[int],
    qr_flag: bool,
    qr_operation: str,
    qr_collisions: int,
    qr_threshold: int,
    md_flag: bool,
    md_threshold: int,
    max_bag_size: int | None,
    schemes: Mapping[str, Scheme] = NO_SCHEMES,
    dtype: tp.dtype = tp.float32,
) -> EmbeddingTables:
    """Make one table for each entry of ``ln_emb``; arguments as for `DLRM_Net`."""
    require(len(ln_emb) > 0, "ln_emb", list(ln_emb), "give at least one table")
    require(not (qr_flag and md_flag), "qr_flag", qr_flag, "cannot be combined with md_flag")
    require(md_flag or isinstance(m_spa, int), "m_spa", m_spa, "must be an integer unless md_flag is set")
    dims = [m_spa] * len(ln_emb) if isinstance(m_spa, int) else list(m_spa)
    require(len(dims) == len(ln_emb), "m_spa", dims, f"give one dimension for each of {len(ln_emb)} tables")
    tables: list[tp.Module] = []
    for table, (rows, dim) in enumerate(zip(ln_emb, dims, strict=True)):
        if qr_flag and rows > qr_threshold:
            tables.append(QREmbeddingBag(rows, dim, qr_collisions, qr_operation, max_bag_size, dtype))
        elif md_flag and rows > md_threshold:
            tables.append(PrEmbeddingBag(rows, dim, max(dims), max_bag_size, dtype))
        else:
            scheme = schemes.get(str(table))
            kind = EmbeddingBag if scheme is None else _QUANTISED_TABLES[scheme.numbers]
            tables.append(kind(rows, max(dims), max_bag_size, dtype))
    return EmbeddingTables(*tables)


class DLRM_Net(tp.Module):
    """The model. Constructor arguments have the public names; sizes are plain sequences of integers.

    Args:
        m_spa: columns D of the tables; with ``md_flag`` one number for each table (see `mixed_dimensions`).
            The largest is the common width.
        ln_emb: rows of each of the T tables.
        ln_bot: widths of the bottom MLP, the number of dense features first, the common width last.
        ln_top: widths of the top MLP; the first must be `interaction_width`.
        arch_interaction_op: "dot", "cat" or "sum", see `FeatureInteraction`.
        arch_interaction_itself: whether "dot" pairs each vector with itself too.
        sigmoid_bot: index of the bottom MLP's linear layer that a sigmoid follows instead of a ReLU; -1 for
            none.
        sigmoid_top: the same for the top MLP; the public programs use the last layer, ``len(ln_top) - 2``.
        loss_threshold: between 0 and 1, clamp the output to [threshold, 1 - threshold]; 0 does not clamp.
        qr_flag: quotient-remainder tables where a table has more than ``qr_threshold`` rows.
        qr_operation: "mult", "add" or "concat"; with "concat" a table's output has 2 ``m_spa`` columns.
        qr_collisions: categories that share a quotient row.
        qr_threshold: see ``qr_flag``.
        md_flag: mixed-dimension tables where a table has more than ``md_threshold`` rows.
        md_threshold: see ``md_flag``.
        weighted_pooling: None, "learned" or "fixed". "learned" has a weight for each row of each table
            (``v_W_l``). "fixed" has weights of one and no key.
        max_bag_size: the longest bag that a graph of this model takes; None for any. See
            `tripy_port.embedding_bags`.
        schemes: of the quantised linear layers and plain tables by path, see `reference.quantisers`,
            `reference.int8_embedding_bags` and `reference.int4_embedding_bags`.

    Raises:
        ValueError: naming the argument and its valid values.
    """

    def __init__(
        self,
        m_spa: int | Sequence[int],
        ln_emb: Sequence[int],
        ln_bot: Sequence[int],
        ln_top: Sequence[int],
        arch_interaction_op: str = "dot",
        arch_interaction_itself: bool = False,
        sigmoid_bot: int = -1,
        sigmoid_top: int = -1,
        loss_threshold: float = 0.0,
        qr_flag: bool = False,
        qr_operation: str = "mult",
        qr_collisions: int = 4,
        qr_threshold: int = 200,
        md_flag: bool = False,
        md_threshold: int = 200,
        weighted_pooling: str | None = None,
        max_bag_size: int | None = None,
        schemes: Mapping[str, Scheme] = NO_SCHEMES,
        dtype: tp.dtype = tp.float32,
    ) -> None:
        super().__init__()
        _check_mlp("ln_bot", ln_bot, "sigmoid_bot", sigmoid_bot)
        _check_mlp("ln_top", ln_top, "sigmoid_top", sigmoid_top)
        require(0.0 <= loss_threshold < 0.5, "loss_threshold", loss_threshold, "choose from [0, 0.5)")
        if max_bag_size is not None:
            require_positive(max_bag_size=max_bag_size)
        if weighted_pooling is not None:
            require_choice("weighted_pooling", weighted_pooling, ("learned", "fixed"))
            require(not (qr_flag or md_flag), "weighted_pooling", weighted_pooling, "needs plain tables")

        self.arch_interaction_op = arch_interaction_op
        self.arch_interaction_itself = arch_interaction_itself
        self.loss_threshold = loss_threshold
        self.max_bag_size = max_bag_size
        self.num_dense_features = ln_bot[0]
        self.dim = ln_bot[-1]
        self.emb_l = create_emb(
            m_spa,
            ln_emb,
            qr_flag,
            qr_operation,
            qr_collisions,
            qr_threshold,
            md_flag,
            md_threshold,
            max_bag_size,
            schemes_inside("emb_l", schemes),
            dtype,
        )
        learned = weighted_pooling == "learned"
        self.v_W_l = [parameter((rows,), dtype) for rows in ln_emb] if learned else None
        self.log_counts = LogCounts()
        self.bot_l = create_mlp(ln_bot, sigmoid_bot, schemes_inside("bot_l", schemes), dtype)
        self.interaction = FeatureInteraction(arch_interaction_op, len(ln_emb) + 1, arch_interaction_itself)
        self.top_l = create_mlp(ln_top, sigmoid_top, schemes_inside("top_l", schemes), dtype)

        for table, (_, bag) in enumerate(self.emb_l.named_children()):
            fix = f"must be {bag.output_dim}, the columns that table {table} ({ln_emb[table]} rows) gives"
            require(bag.output_dim == ln_bot[-1], "ln_bot[-1]", ln_bot[-1], fix)
        width = interaction_width(arch_interaction_op, len(ln_emb) + 1, ln_bot[-1], arch_interaction_itself)
        require(ln_top[0] == width, "ln_top[0]", ln_top[0], f"must be {width}, the width of the interaction")

    def check_inputs(
        self,
        dense_x: tp.Tensor,
        lS_o: IndexTensors,
        lS_i: IndexTensors,
        lS_w: Sequence[tp.Tensor] | None = None,
    ) -> None:
        """Raise `BagInputError` unless `forward` can take these inputs. Reads values: not for use in a graph.

        ``dense_x`` may be the counts that `predict` takes.
        """
        width = self.num_dense_features
        if dense_x.rank != 2 or int(dense_x.shape[1]) != width:
            shape = tuple(int(size) for size in dense_x.shape)
            raise BagInputError(f"dense_x has shape {shape}: give (batch, {width})")
        bags = [bag for _, bag in self.emb_l.named_children()]
        for name, values in (("lS_o", lS_o), ("lS_i", lS_i), ("lS_w", lS_w)):
            if values is not None and len(values) != len(bags):
                raise BagInputError(
                    f"{name} has {len(values)} entries: give one for each of {len(bags)} tables"
                )
        for table, bag in enumerate(bags):
            weights_L = None if lS_w is None else lS_w[table]
            check_bags(table, bag.num_embeddings, lS_i[table], lS_o[table], weights_L, self.max_bag_size)
            if int(lS_o[table].shape[0]) != int(dense_x.shape[0]):
                raise BagInputError(
                    f"table {table}: {int(lS_o[table].shape[0])} bags for {int(dense_x.shape[0])} rows of "
                    "dense_x: give one offset for each row"
                )

    def apply_emb(
        self, lS_o: IndexTensors, lS_i: IndexTensors, lS_w: Sequence[tp.Tensor] | None = None
    ) -> list[tp.Tensor]:
        """Return each table's pooled output, T tensors of (B, D)."""
        if self.v_W_l is not None:
            learned = [tp.gather(v_W, 0, lS_i[table]) for table, v_W in enumerate(self.v_W_l)]
            lS_w = learned if lS_w is None else [w * v_W for w, v_W in zip(lS_w, learned, strict=True)]
        return self.emb_l(lS_o, lS_i, lS_w)

    def forward(
        self,
        dense_x: tp.Tensor,
        lS_o: IndexTensors,
        lS_i: IndexTensors,
        lS_w: Sequence[tp.Tensor] | None = None,
    ) -> tp.Tensor:
        """Return click probabilities, (B, 1) for the usual ``ln_top`` that ends in 1.

        Args:
            dense_x: (B, number of dense features), in the model's dtype.
            lS_o: offsets of each table's bags, T vectors of (B,), or one (T, B) tensor.
            lS_i: indices of each table's bags, T vectors of any lengths, or one (T, L) tensor.
            lS_w: one weight for each index, multiplied with learned pooling weights where there are both.
        """
        dense_BD = self.bot_l(dense_x)
        features = [dense_BD, *self.apply_emb(lS_o, lS_i, lS_w)]
        # `stack` would record seven operations for each of them.
        features_BFD = tp.reshape(tp.concatenate(features, dim=1), (-1, len(features), self.dim))
        click_B1 = self.top_l(self.interaction(features_BFD))
        if self.loss_threshold > 0.0:
            click_B1 = tp.minimum(tp.maximum(click_B1, self.loss_threshold), 1.0 - self.loss_threshold)
        return click_B1

    def predict(
        self,
        counts: tp.Tensor,
        lS_o: IndexTensors,
        lS_i: IndexTensors,
        lS_w: Sequence[tp.Tensor] | None = None,
    ) -> tp.Tensor:
        """Click probabilities from counts as dense features: `LogCounts`, then `forward`.

        Args:
            counts: (B, number of dense features) integers; 0 for a missing value. Negative values count as 0.
            lS_o: see `forward`, as for ``lS_i`` and ``lS_w``.
        """
        return self(self.log_counts(counts, self.bot_l[0].weight), lS_o, lS_i, lS_w)
