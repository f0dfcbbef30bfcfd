"""The DLRM of the Fused Kernels lecture: its interaction, its two hashes, and a batch of one row."""

import torch
from checkout import public_module

packages = ("click", "loguru", "pandas")
public = public_module("model", "https://github.com/kapilsh/cuda-mode-lecture", ".", *packages)
FEATURES, WIDTH = 26, 16


def model(use_modulus_hash: bool) -> torch.nn.Module:
    """The lecture's model with the same weights for both values of its switch."""
    torch.manual_seed(0)
    names = [f"SPARSE_{i}" for i in range(FEATURES)]
    tables = {name: {"cardinality": 11, "tokenizer_values": list(range(100, 111))} for name in names}
    dense = {"hidden_layer_sizes": [32], "output_size": WIDTH}
    widths = dict.fromkeys(names, WIDTH)
    return public.DLRM(tables, public.Parameters(13, widths, dense, [8], use_modulus_hash))


if __name__ == "__main__":
    dense, sparse = torch.randn(3, 13), torch.randint(100, 111, (3, FEATURES))
    plain, switched = model(False), model(True)
    products, count = plain.prediction_layer.mlp.fc_layers[0].in_features, FEATURES + 1
    print(f"interaction of {count} vectors: {products} products; pairs: {count * (count - 1) // 2}")
    difference = (plain(dense, sparse) - switched(dense, sparse)).abs().max()
    print(f"largest difference between the two hashes: {difference}")
    rows = public.SparseArch.index_hash(torch.tensor([100, 105, 999]), torch.arange(100, 111))
    print(f"rows of the tokens 100, 105 and an unknown one: {rows.tolist()}")
    shapes = [tuple(plain(dense[:count], sparse[:count]).shape) for count in (3, 1)]
    print(f"shapes of the result for 3 rows and 1 row: {shapes}")
