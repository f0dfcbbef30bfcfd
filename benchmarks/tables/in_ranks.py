"""The part of the benchmark that runs in each rank: our calls, and torchrec's in the same process group."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

import torch
import torch.distributed as dist

from tables.exchange import RankTables

Pooled = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def measure(
    tables: RankTables, kind: str, count: int, bag: int, rounds: int, with_peer: bool
) -> dict[str, list[float]]:
    """Seconds of each call by name.

    Args:
        tables: The tables of this rank.
        kind: Division of the store, `rows` or `tables`.
        count: Ids of this rank.
        bag: Ids of a bag.
        rounds: Number of rounds; one more warms up.
        with_peer: Whether torchrec takes part.
    """
    (table,) = tables.tables.values()
    torch.manual_seed(tables.rank)
    peer = _peer(tables, kind) if with_peer else None
    seconds: dict[str, list[float]] = defaultdict(list)
    bags, single = torch.arange(0, count, bag), torch.arange(count)
    for turn in range(rounds + 1):
        ids = torch.randint(0, table.rows, (count,))
        calls = {
            "lookup": lambda ids=ids: tables.lookup(table.name, ids),
            "pooled": lambda ids=ids: tables.pooled(table.name, ids, bags),
        }
        if peer is not None:
            calls["torchrec's lookup"] = lambda ids=ids: peer(ids, single)
            calls["torchrec's pooled"] = lambda ids=ids: peer(ids, bags)
        results = {}
        for name, call in calls.items():
            dist.barrier()
            begin = time.perf_counter()
            results[name] = call()
            if turn:
                seconds[name].append(time.perf_counter() - begin)
        if peer is not None:
            _compare(results, bag)
    return dict(seconds)


def _compare(results: dict[str, torch.Tensor], bag: int) -> None:
    """Rows are equal; sums differ by at most the error of both orders of a sum in float32."""
    rows = results["lookup"]
    if not torch.equal(rows, results["torchrec's lookup"]):
        raise AssertionError("torchrec's rows are not ours")
    limit = 2 * (bag - 1) * 2.0**-24 * rows.double().abs().view(-1, bag, rows.shape[1]).sum(1)
    difference = results["pooled"].double() - results["torchrec's pooled"].double()
    if (difference.abs() > limit).any():
        raise AssertionError("torchrec's sums are not ours")


def _peer(tables: RankTables, kind: str) -> Pooled:
    """torchrec's collection of bags with the same rows, sharded in the same way."""
    import fbgemm_gpu  # noqa: F401, registers operators
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.sharding_plan import (
        construct_module_sharding_plan,
        row_wise,
        table_wise,
    )
    from torchrec.distributed.types import ShardingEnv

    (table,) = tables.tables.values()
    config = EmbeddingBagConfig(
        name=table.name,
        embedding_dim=table.columns,
        num_embeddings=table.rows,
        feature_names=[table.name],
    )
    collection = EmbeddingBagCollection(tables=[config], device=torch.device("cpu"))
    sharder = EmbeddingBagCollectionSharder()
    plan = construct_module_sharding_plan(
        collection,
        {table.name: row_wise() if kind == "rows" else table_wise(rank=0)},
        sharder=sharder,
        local_size=tables.ranks,
        world_size=tables.ranks,
        device_type="cpu",
    )
    sharded = sharder.shard(collection, plan, ShardingEnv.from_process_group(dist.group.WORLD))
    # The sharded collection begins with random rows.
    rows = tables.lookup(table.name, torch.arange(table.rows))
    for shard in sharded.state_dict()[f"embedding_bags.{table.name}.weight"].local_shards():
        first, count = shard.metadata.shard_offsets[0], shard.metadata.shard_sizes[0]
        shard.tensor.detach().copy_(rows[first : first + count])

    def pooled(ids_L: torch.Tensor, offsets_B: torch.Tensor) -> torch.Tensor:
        ends = torch.cat([offsets_B, torch.tensor([len(ids_L)])])
        features = KeyedJaggedTensor(keys=[table.name], values=ids_L, offsets=ends)
        with torch.no_grad():
            return sharded(features).wait().values()

    return pooled
