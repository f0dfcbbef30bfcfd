"""DLRM: FLOPs and fewest bytes of each module of `reference.dlrm`.

Legend: B batch, C dense features, T tables, L indices of a table, D embedding, F = T + 1 interacting vectors.
"""

from __future__ import annotations

from configs import DLRMConfig
from parity.base.work import Work
from perf_model.work.parts import INDEX, Shapes, around, chain, linear
from perf_model.work.quantised import row_bytes


def dlrm_work(
    config: DLRMConfig, shapes: Shapes, item: int, table_dims: tuple[int, ...] = ()
) -> dict[str, Work]:
    """By module path, and "" for the whole model.

    Args:
        table_dims: columns of each table, with mixed dimensions.

    Raises:
        ValueError: tables of mixed dimensions without `table_dims`.
    """
    if config.md_flag and len(table_dims) != len(config.table_rows):
        raise ValueError(
            f"table_dims: {len(table_dims)} for {len(config.table_rows)} tables of mixed dimensions; give all"
        )
    b, c = shapes["counts"]
    d = config.bottom_widths[-1]
    works = {"log_counts": Work(0, 0, INDEX * b * c, item * b * c)}
    works |= chain(list(config.bottom_widths), b, item, "bot_l")
    tables = []
    for table in range(len(config.table_rows)):
        dim = table_dims[table] if config.md_flag else config.arch_sparse_feature_size
        works |= _table(config, shapes, table, dim, item)
        tables.append(works[f"emb_l.{table}"])
    entering = sum(table.input_bytes for table in tables)
    works["emb_l"] = around(*tables, inputs=entering, outputs=item * b * len(tables) * d)
    vectors = len(tables) + 1
    interaction = _interaction(config, b, vectors, d, item)
    works["interaction"] = interaction
    width = interaction.output_bytes // (item * b)
    works |= chain([width, *config.top_widths], b, item, "top_l")
    parts = [works[name] for name in ("bot_l", "emb_l", "interaction", "top_l")]
    clicks = item * b * config.top_widths[-1]
    learned = item * sum(min(_indices(shapes, table), rows) for table, rows in enumerate(config.table_rows))
    weights = learned if config.weighted_pooling == "learned" else 0
    works[""] = around(*parts, weights=weights, inputs=INDEX * b * c + _given(shapes, item), outputs=clicks)
    return works


def _indices(shapes: Shapes, table: int) -> int:
    return shapes[f"lS_i_{table}"][0]


def _given(shapes: Shapes, item: int) -> int:
    """Bytes of the batch's offsets, indices and weights."""
    tables, b = shapes["lS_o"]
    looked_up = sum(_indices(shapes, table) for table in range(tables))
    return INDEX * (tables * b + looked_up) + (item * looked_up if "lS_w_0" in shapes else 0)


def _table(config: DLRMConfig, shapes: Shapes, table: int, dim: int, item: int) -> dict[str, Work]:
    """A table, with the lookup and the projection inside a table of mixed dimension."""
    path, rows, b = f"emb_l.{table}", config.table_rows[table], shapes["counts"][0]
    looked_up = _indices(shapes, table)
    weighted = "lS_w_0" in shapes or config.weighted_pooling == "learned"
    entering = INDEX * (looked_up + b) + (item * looked_up if weighted else 0)
    if config.qr_flag and rows > config.qr_threshold:
        quotients = -(-rows // config.qr_collisions)
        read = min(looked_up, quotients) + min(looked_up, config.qr_collisions)
        wide = dim * (2 if config.qr_operation == "concat" else 1)
        return {path: Work(0, item * read * dim, entering, item * b * wide)}
    base = config.arch_sparse_feature_size
    plain = not (config.md_flag and rows > config.md_threshold)
    columns = base if plain else dim
    row = row_bytes(columns, item, config.schemes.get(path))
    bags = Work(0, min(looked_up, rows) * row, entering, item * b * columns)
    if plain:
        return {path: bags}
    if columns == base:
        return {f"{path}.embs": bags, path: bags}
    projection = linear(b, columns, base, item, bias=False)
    whole = around(bags, projection, inputs=entering, outputs=projection.output_bytes)
    return {f"{path}.embs": bags, f"{path}.proj": projection, path: whole}


def _interaction(config: DLRMConfig, b: int, vectors: int, d: int, item: int) -> Work:
    """The interaction, which multiplies all pairs and returns the lower triangle."""
    entering = item * b * vectors * d
    if config.arch_interaction_op == "cat":
        return Work(0, 0, entering, entering)
    if config.arch_interaction_op == "sum":
        return Work(0, 0, entering, item * b * d)
    pairs = vectors * (vectors + (1 if config.arch_interaction_itself else -1)) // 2
    return Work(2 * b * vectors * vectors * d, 0, entering, item * b * (d + pairs))
