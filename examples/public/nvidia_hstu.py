"""NVIDIA's Tripy HSTU against its dense PyTorch HSTU: tensors that its own check never copies."""

import torch
from checkout import add_to_path

import parity
from parity import From

add_to_path(
    "-b dev-akhilg-dlrmv3 https://github.com/NVIDIA/TensorRT-Incubator", "tripy/examples/dlrmv3", "fbgemm_gpu"
)
import tripy_hstu_example as public  # noqa: E402

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
o = "_hstu._attention_layers.*._o"
weights = {f"{o}_weight": From(f"{o}.weight", transpose=True), f"{o}_bias": f"{o}.bias"}
print(parity.compare(*models, inputs=inputs, weights=weights))
