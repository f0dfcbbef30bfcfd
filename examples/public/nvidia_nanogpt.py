"""NVIDIA's nanogpt against the model that its weights come from: GELU by erf, and GELU by tanh."""

import torch
from checkout import public_module

import parity
from parity import From

source = "https://github.com/NVIDIA/TensorRT-Incubator"
public = public_module("model", source, "tripy/examples/nanogpt", "transformers")
from transformers import GPT2Config, GPT2LMHeadModel  # noqa: E402

port_sizes = {"block_size": 32, "vocab_size": 97, "num_layers": 2, "num_heads": 4, "embedding_size": 48}
sizes = {"n_positions": 32, "vocab_size": 97, "n_layer": 2, "n_head": 4, "n_embd": 48}
tokens = {"bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
weights: dict = {"**.c_*.weight": From("**.c_*.weight", transpose=True), "**.attn.bias": None}
for activation in ("gelu_new", "gelu"):
    result = parity.compare(
        GPT2LMHeadModel(GPT2Config(**sizes, **tokens, activation_function=activation)),
        lambda dtype: public.GPT(public.GPTConfig(**port_sizes, seq_len=16, batch_size=8, dtype=dtype)),
        inputs={"input_ids": torch.randint(0, 97, (8, 16), generator=torch.Generator().manual_seed(0))},
        weights=weights,
        precisions=("fp32",),
    )
    print(f"the weights' model with {activation}: {result}\n")
