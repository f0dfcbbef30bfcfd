"""A dense HSTU encoder (relative position and time bias, SiLU attention), in PyTorch and in Tripy.

Self-contained, so that the package's tests and benchmark need nothing else. Axes: B batch, N sequence,
D embedding, H heads, K attention dim, V linear dim. Structure after the public ICML'24 research model.
"""

from __future__ import annotations

from dataclasses import dataclass

import nvtripy as tp
import torch
import torch.nn.functional as F

NUM_BUCKETS = 128
EPS = 1e-6


@dataclass(frozen=True)
class Shape:
    """Sizes of the model."""

    num_items: int = 100
    max_len: int = 211
    dim: int = 50
    heads: int = 2
    head_dim: int = 25
    blocks: int = 8


class TorchBlock(torch.nn.Module):
    """One HSTU block."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        width = shape.heads * shape.head_dim
        self.uvqk = torch.nn.Parameter(torch.randn(shape.dim, 4 * width) * shape.dim**-0.5)
        self.ts_w = torch.nn.Parameter(torch.randn(NUM_BUCKETS + 1))
        self.pos_w = torch.nn.Parameter(torch.randn(2 * shape.max_len - 1))
        self.o = torch.nn.Linear(width, shape.dim)

    def forward(self, x_BND: torch.Tensor, ts_BN: torch.Tensor, mask_NN: torch.Tensor) -> torch.Tensor:
        B, N, _ = x_BND.shape
        H, K = self.shape.heads, self.shape.head_dim
        mixed = F.silu(F.layer_norm(x_BND, [self.shape.dim], eps=EPS) @ self.uvqk)
        u, v, q, k = mixed.split([H * K] * 4, dim=-1)
        qk = torch.einsum("bnhk,bmhk->bhnm", q.reshape(B, N, H, K), k.reshape(B, N, H, K))
        qk = qk + self.bias(ts_BN).unsqueeze(1)
        attention = F.silu(qk) / self.shape.max_len * mask_NN
        out = torch.einsum("bhnm,bmhk->bnhk", attention, v.reshape(B, N, H, K)).reshape(B, N, H * K)
        return self.o(u * F.layer_norm(out, [H * K], eps=EPS)) + x_BND

    def bias(self, ts_BN: torch.Tensor) -> torch.Tensor:
        N = ts_BN.shape[1]
        start = self.shape.max_len - N
        t = F.pad(self.pos_w[start : start + 2 * N - 1], [0, N]).repeat(N)
        t = t[:-N].reshape(1, N, 3 * N - 2)[:, :, N - 1 : 2 * N - 1]
        ext = torch.cat([ts_BN, ts_BN[:, -1:]], dim=1)
        delta = ext[:, 1:].unsqueeze(2) - ext[:, :-1].unsqueeze(1)
        bucket = torch.clamp((torch.log(delta.abs().clamp(min=1)) / 0.301).long(), 0, NUM_BUCKETS)
        time_bias = self.ts_w.index_select(0, bucket.reshape(-1)).reshape(bucket.shape)
        return t + time_bias


class TorchHSTU(torch.nn.Module):
    """Embedding lookup, blocks, L2 normalisation."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.item_emb = torch.nn.Embedding(shape.num_items + 1, shape.dim)
        self.pos_emb = torch.nn.Embedding(shape.max_len, shape.dim)
        self.blocks = torch.nn.ModuleList(TorchBlock(shape) for _ in range(shape.blocks))

    def forward(self, ids_BN: torch.Tensor, ts_BN: torch.Tensor) -> torch.Tensor:
        N, device = ids_BN.shape[1], ids_BN.device
        positions = torch.arange(N, device=device)
        x = self.item_emb(ids_BN) * self.shape.dim**0.5 + self.pos_emb(positions).unsqueeze(0)
        mask = torch.tril(torch.ones((self.shape.max_len,) * 2, dtype=x.dtype, device=device))[:N, :N]
        x = x * (ids_BN != 0).unsqueeze(-1).to(x.dtype)
        for block in self.blocks:
            x = block(x, ts_BN, mask)
        return x / torch.clamp(torch.linalg.norm(x, dim=-1, keepdim=True), min=EPS)


class TripyBlock(tp.Module):
    """One HSTU block."""

    def __init__(self, shape: Shape, dtype: tp.dtype):
        super().__init__()
        self.shape, self.dtype = shape, dtype
        width = shape.heads * shape.head_dim
        self.uvqk = tp.zeros((shape.dim, 4 * width), dtype=dtype)
        self.ts_w = tp.zeros((NUM_BUCKETS + 1,), dtype=dtype)
        self.pos_w = tp.zeros((2 * shape.max_len - 1,), dtype=dtype)
        self.o = tp.Linear(width, shape.dim, dtype=dtype)

    def norm(self, x: tp.Tensor, dim: int) -> tp.Tensor:
        # Built here and not in the constructor: non-affine, so it has no place in the state dict.
        layer_norm = tp.LayerNorm(dim, dtype=self.dtype, eps=EPS)
        layer_norm.weight = tp.ones((dim,), dtype=self.dtype)
        layer_norm.bias = tp.zeros((dim,), dtype=self.dtype)
        return layer_norm(x)

    def forward(self, x_BND: tp.Tensor, ts_BN: tp.Tensor, mask_NN: tp.Tensor) -> tp.Tensor:
        B, N, _ = x_BND.shape
        H, K = self.shape.heads, self.shape.head_dim
        mixed = tp.silu(self.norm(x_BND, self.shape.dim) @ self.uvqk)
        u, v, q, k = tp.split(mixed, 4, dim=-1)

        def heads(t: tp.Tensor) -> tp.Tensor:
            return tp.transpose(tp.reshape(t, (B, N, H, K)), 1, 2)

        qk = heads(q) @ tp.transpose(heads(k), 2, 3)
        qk = qk + tp.unsqueeze(self.bias(ts_BN), 1)
        attention = tp.silu(qk) / float(self.shape.max_len) * mask_NN
        out = tp.reshape(tp.transpose(attention @ heads(v), 1, 2), (B, N, H * K))
        return self.o(u * self.norm(out, H * K)) + x_BND

    def bias(self, ts_BN: tp.Tensor) -> tp.Tensor:
        N = ts_BN.shape[1]
        # Toeplitz: element (n, m) is weight max_len - 1 + m - n.
        positions = tp.iota((N,), dtype=tp.int32)
        offsets = tp.unsqueeze(positions, 0) - tp.unsqueeze(positions, 1) + (self.shape.max_len - 1)
        position_bias = tp.unsqueeze(tp.gather(self.pos_w, 0, offsets), 0)
        ext = tp.concatenate([ts_BN, ts_BN[:, -1:]], dim=1)
        delta = tp.unsqueeze(ext[:, 1:], 2) - tp.unsqueeze(ext[:, :-1], 1)
        distance = tp.cast(tp.maximum(abs(delta), tp.cast(tp.Tensor(1), tp.int64)), tp.float32)
        bucket = tp.cast(tp.log(distance) / 0.301, tp.int64)
        bucket = tp.minimum(bucket, tp.cast(tp.Tensor(NUM_BUCKETS), tp.int64))
        return position_bias + tp.gather(self.ts_w, 0, bucket)


class TripyHSTU(tp.Module):
    """Embedding lookup, blocks, L2 normalisation."""

    def __init__(self, shape: Shape, dtype: tp.dtype = tp.float32):
        super().__init__()
        self.shape, self.dtype = shape, dtype
        self.item_emb = tp.Embedding(shape.num_items + 1, shape.dim, dtype=dtype)
        self.pos_emb = tp.Embedding(shape.max_len, shape.dim, dtype=dtype)
        self.blocks = [TripyBlock(shape, dtype) for _ in range(shape.blocks)]

    def forward(self, ids_BN: tp.Tensor, ts_BN: tp.Tensor) -> tp.Tensor:
        N = ids_BN.shape[1]
        positions = tp.iota((N,), dtype=tp.int32)
        x = self.item_emb(ids_BN) * self.shape.dim**0.5 + tp.unsqueeze(self.pos_emb(positions), 0)
        mask = tp.tril(tp.ones((self.shape.max_len,) * 2, dtype=self.dtype))[:N, :N]
        x = x * tp.unsqueeze(tp.cast(ids_BN != 0, self.dtype), -1)
        for block in self.blocks:
            x = block(x, ts_BN, mask)
        norm = tp.sqrt(tp.sum(x * x, dim=-1, keepdim=True))
        return x / tp.maximum(norm, tp.cast(tp.Tensor(EPS), self.dtype))


def tripy_from_torch(model: TorchHSTU, dtype: tp.dtype = tp.float32) -> TripyHSTU:
    """The Tripy model with the PyTorch model's weights."""
    port = TripyHSTU(model.shape, dtype)
    torch_dtype = {tp.float32: torch.float32, tp.float16: torch.float16, tp.bfloat16: torch.bfloat16}[dtype]
    # nvtripy takes constants from host memory only.
    weights = {name: t.detach().to("cpu", torch_dtype).contiguous() for name, t in model.state_dict().items()}
    port.load_state_dict({name: tp.Tensor(weight) for name, weight in weights.items()})
    return port


def sample(shape: Shape, batch: int, length: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Item ids (B, N) int32 and sorted timestamps (B, N) int64."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, shape.num_items + 1, (batch, length), dtype=torch.int32, generator=generator)
    gaps = torch.randint(1, 10**6, (batch, length), dtype=torch.int64, generator=generator)
    return ids, gaps.cumsum(1)
