"""Rows of `quantised.py` with the bags of MLPerf's 26 tables."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import nvtripy as tp
import torch
from torch.nn import functional

from benchmarks.gpu.quantised_peers import coded_bags, float_bags
from benchmarks.gpu.quantised_sides import (
    HALF,
    ITEM,
    Calls,
    Row,
    Side,
    Truth,
    executable_of,
    number_of_sets,
    plan_of,
    portable_calls,
)
from configs import load_case
from kernels.dlrm import Bags, CodedTableGroup, TableGroup, embedding_bags, packed_rows
from parity.base.quantisation import SCHEMES
from parity.base.work import Work
from perf_model.work.parts import INDEX
from perf_model.work.quantised import row_bytes
from reference.int4_embedding_bags import Int4EmbeddingBag
from reference.int8_embedding_bags import Int8EmbeddingBag
from tripy_port.int4_embedding_bags import Int4EmbeddingBag as PortInt4EmbeddingBag
from tripy_port.int8_embedding_bags import Int8EmbeddingBag as PortInt8EmbeddingBag

MOST_ROWS = 100_000
"""Rows of a table: 26 tables then exceed the cache in every type but 4 bits of width 64."""


class PortTables(tp.Module):
    """The port's tables of one model: (T, L) indices and (T, B) offsets -> (B, T, D)."""

    def __init__(self, bags: list[tp.Module]) -> None:
        super().__init__()
        self.bags = bags

    def forward(self, indices_TL: tp.Tensor, offsets_TB: tp.Tensor) -> tp.Tensor:
        pooled = [bag(indices_TL[table], offsets_TB[table]) for table, bag in enumerate(self.bags)]
        return tp.concatenate([tp.unsqueeze(vectors, 1) for vectors in pooled], dim=1)


_BAGS = {
    "int8_rows": (Int8EmbeddingBag, PortInt8EmbeddingBag),
    "int4_rows": (Int4EmbeddingBag, PortInt4EmbeddingBag),
}


class Tables:
    """26 tables of MLPerf's DLRM, cut to `MOST_ROWS` rows, in each form that a side reads.

    Args:
        columns: D.
        rows: Rows by table; None for those of MLPerf's model.
        device: Where they lie.
    """

    def __init__(self, columns: int, rows: Sequence[int] | None = None, device: str = "cuda") -> None:
        model = load_case("dlrm_mlperf").model
        self.rows = rows or model.model_copy(update={"max_rows_per_table": MOST_ROWS}).table_rows
        self.columns = columns
        self.device = device
        self.halves = [(torch.randn(count, columns, device=device) * 0.3).to(HALF) for count in self.rows]
        self.modules: dict[str, list[torch.nn.Module]] = {}
        self.groups: dict[str, TableGroup] = {
            "float32": TableGroup([table.float() for table in self.halves]),
            "float16": TableGroup([table.half() for table in self.halves]),
        }
        self.whole: dict[str, tuple[torch.Tensor, ...]] = {
            name: (torch.cat(group.tables),) for name, group in self.groups.items()
        }
        for name, (reference, _) in _BAGS.items():
            bits = SCHEMES[name].bits
            bags = []
            for table in self.halves:
                bag = reference(1, columns).to(device, HALF).requires_grad_(False)
                bag.weight.data = table
                bags.append(bag)
            self.modules[name] = bags
            coded = [bag.quantise(bag.weight) for bag in bags]
            self.groups[name] = CodedTableGroup([packed_rows(*parts, bits) for parts in coded], bits)
            codes, scales, biases = (torch.cat(parts) for parts in zip(*coded, strict=True))
            self.whole[name] = ((codes.short() + 128).to(torch.uint8), scales, biases)

    def port(self, name: str, longest: int) -> PortTables:
        """The port's tables with bags of up to `longest` indices."""
        bags = []
        for table in self.halves:
            bag = _BAGS[name][1](*table.shape, max_bag_size=longest, dtype=tp.bfloat16)
            bag.weight = tp.Tensor(table.cpu())
            bags.append(bag)
        return PortTables(bags)


@dataclass(frozen=True)
class Lookups:
    """One set of bags of all tables, in each side's form.

    Attributes:
        bags: as the kernels take them.
        indices_TL, offsets_TB: as the port takes them.
        places_BTP, valid_BTP: rows of all tables in one, and which places of a bag there are.
    """

    bags: Bags
    indices_TL: torch.Tensor
    offsets_TB: torch.Tensor
    places_BTP: torch.Tensor
    valid_BTP: torch.Tensor


def lookups(rows: Sequence[int], batch: int, longest: int, device: str) -> Lookups:
    """Bags of 1 to `longest` indices, uniform in each table; each length is as frequent in every table."""
    cycle = torch.arange(batch, device=device) % longest + 1
    lengths_TB = torch.stack([cycle[torch.randperm(batch, device=device)] for _ in rows])
    ends_TB = lengths_TB.cumsum(1)
    offsets_TB = ends_TB - lengths_TB
    total = int(cycle.sum())
    indices_TL = torch.stack([torch.randint(count, (total,), device=device) for count in rows])
    bases_T = total * torch.arange(len(rows), device=device)
    offsets = torch.cat(((offsets_TB + bases_T[:, None]).flatten(), ends_TB.new_tensor([indices_TL.numel()])))
    place_TBP = offsets_TB[:, :, None] + torch.arange(longest, device=device)
    valid_TBP = place_TBP < ends_TB[:, :, None]
    firsts_T = torch.tensor([0, *rows[:-1]], device=device).cumsum(0)
    at_TBP = place_TBP.clamp(max=total - 1).flatten(1)
    places_TBP = (indices_TL.gather(1, at_TBP) + firsts_T[:, None]).view(valid_TBP.shape)
    return Lookups(
        Bags(indices_TL.flatten(), offsets),
        indices_TL,
        offsets_TB,
        places_TBP.transpose(0, 1).contiguous(),
        valid_TBP.transpose(0, 1).contiguous(),
    )


def table_rows(
    widths: Sequence[int] = (128, 64),
    batches: Sequence[int] = (2048, 16384),
    longest_bags: Sequence[int] = (1, 5),
    compiled: Callable[[Callable], Callable] = torch.compile,
    has_port: bool = False,
    **tables: Any,
) -> Iterator[Row]:
    """Bags of all tables.

    Args:
        widths, batches, longest_bags: sizes.
        compiled: compiler of the peers.
        has_port: whether the port is a side.
        tables: arguments of `Tables`.
    """
    for width in widths:
        own = Tables(width, **tables)
        for longest in longest_bags:
            smallest, largest = min(batches), max(batches)
            bounds = [(smallest, largest, largest), (smallest, largest * longest, largest * longest)]
            infos = [tp.InputInfo((len(own.rows), bound), tp.int64) for bound in reversed(bounds)]
            names = _BAGS if has_port else ()
            ports = {name: executable_of(own.port(name, longest), infos) for name in names}
            for batch in batches:
                yield _bags_row(own, ports, batch, longest, compiled)


def _bags_row(own: Tables, ports: dict[str, Any], batch: int, longest: int, compiled: Any) -> Row:
    first = lookups(own.rows, batch, longest, own.device)
    unique = sum(indices.unique().numel() for indices in first.indices_TL)
    written = batch * len(own.rows) * own.columns * ITEM
    moved = unique * row_bytes(own.columns, ITEM, SCHEMES["int8_rows"]) + written
    count = number_of_sets(moved)
    sets = [first, *(lookups(own.rows, batch, longest, own.device) for _ in range(count - 1))]
    entering = INDEX * (first.indices_TL.numel() + first.offsets_TB.numel())
    items = {"float32": 4, "float16": 2}
    sides = {}
    for name, group in own.groups.items():
        scheme = SCHEMES.get(name)
        row = row_bytes(own.columns, items.get(name, ITEM), scheme)
        work = Work(0, unique * row, entering, written)
        truth = _truth_of_bags(own, name, first, longest)

        def add(label: str, calls: Calls, key: str = name, truth: Truth = truth, work: Work = work) -> None:
            sides[f"{key}, {label}"] = Side(calls, truth, work, "bf16")

        add("Triton", [_kernel_call(group, s.bags) for s in sets])
        function = compiled(float_bags)
        if scheme is not None:
            function = functools.partial(compiled(coded_bags), scheme.bits)
        if name != "float16":
            add("torch.compile, one table", [_peer_call(function, own.whole[name], s) for s in sets])
        if name not in ports:
            continue
        inputs = [[s.indices_TL, s.offsets_TB] for s in sets]
        plan = plan_of(ports[name], inputs[0])
        add("portable", portable_calls(plan, inputs, fused=False))
    return Row(f"bags, B {batch}, 26 tables x {own.columns}, bags up to {longest}", sides)


def _kernel_call(group: TableGroup, bags: Bags) -> Callable[[], torch.Tensor]:
    return lambda: embedding_bags(group, bags, dtype=HALF, validate=False)


def _peer_call(function: Callable, whole: tuple[torch.Tensor, ...], s: Lookups) -> Callable[[], torch.Tensor]:
    return lambda: function(*whole, s.places_BTP, s.valid_BTP)


def _truth_of_bags(own: Tables, name: str, first: Lookups, longest: int) -> Truth:
    """Float64 and bfloat16 sums of the first set, by the reference's modules or PyTorch's bags."""
    results = []
    for dtype in (torch.float64, HALF):
        pooled = []
        for table, indices in enumerate(first.indices_TL):
            offsets = first.offsets_TB[table]
            if name in own.modules:
                pooled.append(own.modules[name][table].to(dtype)(indices, offsets))
                continue
            own_dtype = dtype if dtype == torch.float64 else own.groups[name].dtype
            table_ND = own.groups[name].tables[table].to(own_dtype)
            pooled.append(functional.embedding_bag(indices, table_ND, offsets, mode="sum").to(dtype))
        results.append(torch.stack(pooled, dim=1))
    return Truth(*results, longest_sum=max(longest, 2), modules=2)
