"""DLRMv3 behind its embedding tables: FLOPs and fewest bytes of each module of `reference.dlrm_hstu`.

The attention's products count all pairs of rows, as the dense layout computes them.

Legend: B batch, H rows of a padded history, T candidates, M = H + T, C contextual rows, N = C + M, E columns
of the embedding tables, D embedding, K tasks.
"""

from __future__ import annotations

from configs import DLRMv3Config
from parity.base.work import Work
from perf_model.work.parts import INDEX, Shapes, around, elementwise, linear
from perf_model.work.stu import layer, postprocessor

_TRANSDUCER = "_hstu_transducer"
_PREPROCESSOR = f"{_TRANSDUCER}._input_preprocessor"


def dlrmv3_work(config: DLRMv3Config, shapes: Shapes, item: int) -> dict[str, Work]:
    """By tap: module paths, `@1` for a second call, and "" for the whole model."""
    b, h = shapes["uih_timestamps"]
    t, d, e = config.max_num_candidates, config.embedding_dim, config.embedding_table_dim
    m, lengths = h + t, INDEX * b
    works: dict[str, Work] = {}
    for call, width in enumerate((item * e, item * e, INDEX)):
        rows = b * m * width
        works["_merge" + (f"@{call}" if call else "")] = Work(0, 0, rows + lengths, rows)
    item_mlp = mlp([2 * e, config.item_hidden_dim, d], b * t, item, "_item_embedding_mlp")
    works |= item_mlp
    works |= _transducer(config, b, h, item)
    head = "_multitask_module._prediction_module"
    works |= mlp([d, config.prediction_hidden_dim, config.num_tasks], b * t, item, head, norms=False)
    works["_multitask_module._activation"] = elementwise(b * t * config.num_tasks, item)
    predictions = item * b * t * config.num_tasks
    states = 2 * item * b * t * d
    works["_multitask_module"] = around(works[head], inputs=states, outputs=predictions)
    inputs = 2 * lengths + b * m * (2 * item * e + INDEX)
    inputs += INDEX * b * h if config.action_weights is not None else 0
    inputs += item * b * config.contextual_seq_len * e
    parts = (works[name] for name in ("_item_embedding_mlp", _TRANSDUCER, "_multitask_module"))
    works[""] = around(*parts, inputs=inputs, outputs=predictions)
    return works


def mlp(widths: list[int], rows: int, item: int, path: str, norms: bool = True) -> dict[str, Work]:
    """Two linear layers with a gating norm between them, and a layer norm behind if `norms`."""
    fan_in, hidden, fan_out = widths
    parts = {
        f"{path}.0": linear(rows, fan_in, hidden, item),
        f"{path}.1": _norm(rows, hidden, item),
        f"{path}.2": linear(rows, hidden, fan_out, item),
    }
    if norms:
        parts[f"{path}.3"] = _norm(rows, fan_out, item)
    return {
        **parts,
        path: around(*parts.values(), inputs=item * rows * fan_in, outputs=item * rows * fan_out),
    }


def _norm(rows: int, width: int, item: int) -> Work:
    return Work(0, item * 2 * width, item * rows * width, item * rows * width)


def _transducer(config: DLRMv3Config, b: int, h: int, item: int) -> dict[str, Work]:
    t, d, lengths = config.max_num_candidates, config.embedding_dim, INDEX * b
    n = config.contextual_seq_len + h + t
    rows = item * b * n * d
    works = _preprocessor(config, b, h, item)
    positions = min(b * n, config.num_position_buckets) + min(b * n, config.num_time_buckets + 1)
    encoder, stack = f"{_TRANSDUCER}._positional_encoder", f"{_TRANSDUCER}._stu_module"
    works[encoder] = Work(0, item * positions * d, 2 * lengths + INDEX * b * n + rows, rows)
    works[f"{stack}._valid_attn_mask"] = Work(0, 0, 2 * lengths, item * b * n * n)
    paths = [f"{stack}._stu_layers.{number}" for number in range(config.num_layers)]
    for path in paths:
        works |= layer(config, b, n, n, 0, item, path)
    works[stack] = around(*(works[path] for path in paths), inputs=rows + 2 * lengths, outputs=rows)
    for call, width in (("", item * d), ("@1", INDEX)):
        targets = b * t * width
        works[f"{_TRANSDUCER}._split_targets{call}"] = Work(0, 0, targets + 2 * lengths, targets)
    works |= postprocessor(config, b * t, item, f"{_TRANSDUCER}._output_postprocessor")
    parts = (works[name] for name in (_PREPROCESSOR, encoder, stack, f"{_TRANSDUCER}._output_postprocessor"))
    works[_TRANSDUCER] = around(*parts, inputs=_sequence_bytes(config, b, h, item), outputs=item * b * t * d)
    return works


def _sequence_bytes(config: DLRMv3Config, b: int, h: int, item: int) -> int:
    """Bytes that enter the preprocessor, and the transducer around it."""
    e, m = config.embedding_table_dim, h + config.max_num_candidates
    actions = INDEX * b * h if config.action_weights is not None else 0
    return 2 * INDEX * b + b * m * (INDEX + 2 * item * e) + actions + item * b * config.contextual_seq_len * e


def _preprocessor(config: DLRMv3Config, b: int, h: int, item: int) -> dict[str, Work]:
    from reference.preprocessors import ACTION_EMBEDDING_DIM

    e, d, c, hidden = (
        config.embedding_table_dim,
        config.embedding_dim,
        config.contextual_seq_len,
        config.preprocessor_hidden_dim,
    )
    m, lengths = h + config.max_num_candidates, INDEX * b
    content, additional = (
        f"{_PREPROCESSOR}._content_embedding_mlp",
        f"{_PREPROCESSOR}._additional_embedding_mlp",
    )
    works = mlp([e, hidden, d], b * m, item, content) | mlp([e, hidden, d], b * m, item, additional)
    parts = [works[content], works[additional]]
    if config.action_weights is not None:
        actions = len(config.action_weights)
        width = actions * ACTION_EMBEDDING_DIM
        encoder, action = f"{_PREPROCESSOR}._action_encoder", f"{_PREPROCESSOR}._action_embedding_mlp"
        rows = item * b * m * width
        works[f"{encoder}._merge"] = Work(0, 0, rows + lengths, rows)
        works[encoder] = Work(0, item * 2 * width + INDEX * actions, INDEX * b * h + lengths, rows)
        works |= mlp([width, hidden, d], b * m, item, action)
        parts += [works[encoder], works[action]]
    matrices = 0
    if c > 0:
        context = item * b * c * e
        works[f"{_PREPROCESSOR}._contextual_features"] = Work(0, 0, context + lengths, context)
        matrices = item * c * d * (e + 1)
    works[_PREPROCESSOR] = around(
        *parts,
        inputs=_sequence_bytes(config, b, h, item),
        outputs=lengths + b * (c + m) * (INDEX + item * d),
        flops=2 * b * c * e * d,
        weights=matrices,
    )
    return works
