"""Time buckets as a table: equal to the logarithm's at every difference, the ambiguous ones included."""

from __future__ import annotations

import pytest
import torch

from kernels.hstu_attention.buckets import bucket_table, time_bucket
from reference.relative_attention_bias import time_bucket as reference_bucket

PUBLIC = (128, 0.301)
ONE = 0x3F800000


def by_table(delta: torch.Tensor, num_buckets: int, bucket_divisor: float) -> torch.Tensor:
    """The kernel's computation, in torch."""
    table = bucket_table(num_buckets, bucket_divisor)
    pattern = (delta.abs().to(torch.float32).view(torch.int32).long() - ONE).clamp(min=0)
    entry = table.entries[pattern >> table.shift]
    return (entry >> 32) + (pattern >= (entry & 0xFFFFFFFF)).long()


def test_every_difference_up_to_three_million_has_its_bucket():
    delta = torch.arange(-10, 3_000_000)
    assert torch.equal(by_table(delta, *PUBLIC), reference_bucket(delta, *PUBLIC))


def test_a_logarithm_off_by_one_ulp_gives_other_buckets_among_them():
    delta = torch.arange(1, 3_000_000)
    exact = torch.log(delta.float())
    off = (torch.nextafter(exact, torch.tensor(torch.inf)) / PUBLIC[1]).long() != (exact / PUBLIC[1]).long()
    below = (torch.nextafter(exact, torch.tensor(-torch.inf)) / PUBLIC[1]).long() != (
        exact / PUBLIC[1]
    ).long()
    assert int((off | below).sum()) == 22
    assert int(delta[off | below].min()) == 37609


@pytest.mark.parametrize("num_buckets", [1, 20, 128, 1000])
@pytest.mark.parametrize("bucket_divisor", [0.02, 0.1, 0.301, 0.7, 1.0, 5.0])
def test_edges_and_random_differences(num_buckets, bucket_divisor):
    edge = torch.exp(torch.arange(1, 2000) * torch.tensor(bucket_divisor, dtype=torch.float64))
    edge = edge[edge < 9e18].long()
    near = (edge.unsqueeze(1) + torch.arange(-3, 4)).reshape(-1)
    random = torch.randint(0, 2**63 - 1, (100_000,), generator=torch.Generator().manual_seed(0))
    spread = random >> torch.randint(0, 63, random.shape, generator=torch.Generator().manual_seed(1))
    delta = torch.cat([near, -near, random, spread])
    expected = time_bucket(delta, num_buckets, bucket_divisor)
    assert torch.equal(by_table(delta, num_buckets, bucket_divisor), expected)
    assert torch.equal(reference_bucket(delta, num_buckets, bucket_divisor), expected)


def test_the_bucket_never_falls_around_an_edge():
    """The basis of the table: as a function of the float32 difference the bucket is a staircase."""
    table = bucket_table(*PUBLIC)
    edges = (table.entries & 0xFFFFFFFF).unique() + ONE
    pattern = (edges.unsqueeze(1) + torch.arange(-2000, 2000)).clamp(ONE, 0x5F000000)
    bucket = (torch.log(pattern.int().view(torch.float32)) / PUBLIC[1]).long()
    assert bool((bucket.diff(dim=1) >= 0).all())


def test_an_edge_moved_by_one_float_is_seen():
    table = bucket_table(*PUBLIC)
    moved = table.entries + 1
    # Above 2^24 a float32 is an integer: a difference can lie on the edge.
    delta = ((table.entries & 0xFFFFFFFF) + ONE).clamp(max=0x5F000000).int().view(torch.float32).long()
    delta = delta[delta > 1 << 24]
    assert torch.equal(by_table(delta, *PUBLIC), reference_bucket(delta, *PUBLIC))
    pattern = delta.float().view(torch.int32).long() - ONE
    entry = moved[pattern >> table.shift]
    wrong = (entry >> 32) + (pattern >= (entry & 0xFFFFFFFF)).long()
    assert not torch.equal(wrong, reference_bucket(delta, *PUBLIC))


@pytest.mark.parametrize(
    ("num_buckets", "bucket_divisor", "message"),
    [
        (0, 0.3, "num_buckets=0"),
        (128, 0.0, "bucket_divisor=0.0"),
        (128, 0.001, "use a divisor of at least 0.01"),
    ],
)
def test_what_no_table_serves_is_refused(num_buckets, bucket_divisor, message):
    with pytest.raises(ValueError, match=message):
        bucket_table(num_buckets, bucket_divisor)
