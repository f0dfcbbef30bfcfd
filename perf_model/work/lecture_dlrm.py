"""The lecture's DLRM: FLOPs and fewest bytes of each module of `reference.lecture_dlrm`.

Legend: B batch, T sparse features, C concatenated features.
"""

from __future__ import annotations

from configs import LectureDLRMConfig
from parity.base.work import Work
from perf_model.work.parts import INDEX, Shapes, around, chain, elementwise, lookup


def lecture_dlrm_work(config: LectureDLRMConfig, shapes: Shapes, item: int) -> dict[str, Work]:
    """By module path, and "" for the whole model."""
    b, dense = shapes["dense_features"]
    output, size, tables = config.dense_output_size, config.sparse_embedding_size, len(config.cardinalities)
    bottom = _mlp([dense, *config.dense_hidden_sizes, output], b, item, "dense_layer.mlp")
    works = {**bottom, "dense_layer": bottom["dense_layer.mlp"]}
    lookups = []
    for feature, rows in enumerate(config.cardinalities):
        path = f"sparse_layer.sparse_layers.{feature}"
        table = lookup(b, rows, size, item)
        works |= {f"{path}.embedding": table, path: table}
        lookups.append(table)
    # The hash reads raw values, and either a modulus a table or a table of tokens.
    hashed_by = tables if config.token_hash == "modulus" else sum(config.cardinalities)
    raw = INDEX * b * tables
    works["sparse_layer"] = around(
        *lookups, weights=INDEX * hashed_by, inputs=raw, outputs=item * b * tables * size
    )
    concatenated = output + tables * size
    squares = item * b * concatenated**2
    works["interaction_layer"] = Work(0, 0, item * b * concatenated, squares)
    top = _mlp([concatenated**2, *config.prediction_hidden_sizes, 1], b, item, "prediction_layer.mlp")
    works |= top
    works["prediction_layer.sigmoid"] = elementwise(b, item)
    works["prediction_layer"] = around(top["prediction_layer.mlp"], inputs=squares, outputs=item * b)
    parts = [works[name] for name in ("dense_layer", "sparse_layer", "prediction_layer")]
    works[""] = around(*parts, inputs=item * b * dense + raw, outputs=item * b)
    return works


def _mlp(widths: list[int], rows: int, item: int, path: str) -> dict[str, Work]:
    works = chain(widths, rows, item, f"{path}.fc_layers", step=0)
    return {**works, path: works[f"{path}.fc_layers"]}
