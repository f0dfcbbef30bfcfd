"""NVIDIA's Tripy HSTU against its dense PyTorch HSTU: tensors that its own check never copies."""

import torch
from checkout import public_module

import parity

source = "-b dev-akhilg-dlrmv3 https://github.com/NVIDIA/TensorRT-Incubator"
public = public_module("tripy_hstu_example", source, "tripy/examples/dlrmv3", "fbgemm_gpu")
sizes = {"max_seq_len": 24, "embedding_dim": 50, "num_items": 100, "gr_output_length": 10}
lengths, draw = torch.tensor([24, 7, 1, 15]), torch.Generator().manual_seed(0)
inputs = {
    "past_lengths": lengths,
    "past_ids": torch.randint(1, 100, (4, 24), generator=draw) * (torch.arange(24) < lengths[:, None]),
    "past_embeddings": torch.randn(4, 24, 50, generator=draw),
    "past_payloads": {"timestamps": torch.randint(0, 100_000, (4, 35), generator=draw).sort(1).values},
}
models = public.create_pytorch_model(**sizes), public.create_tripy_model(**sizes)
try:
    parity.compare(*models, inputs=inputs)
except parity.UserError as error:
    print(f"without a mapping: {error}\n")
weights = {"**._o_weight": parity.From("**._o.weight", transpose=True), "**._o_bias": "**._o.bias"}
print(parity.compare(*models, inputs=inputs, weights=weights))
