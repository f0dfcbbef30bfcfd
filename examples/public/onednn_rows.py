"""PyTorch's products of bfloat16 on a CPU with tiles (AMX): NaN changes the row in front of it."""

import os

ISA = "ONEDNN_MAX_CPU_ISA"

if __name__ == "__main__":
    import torch

    print(f"PyTorch {torch.__version__}, {ISA}={os.environ.get(ISA, '')}")
    for inputs in (14, 15, 16, 17, 31, 32, 33):
        linear = torch.nn.Linear(inputs, 16, dtype=torch.bfloat16)
        x = torch.randn(35, inputs, dtype=torch.bfloat16)
        other = x.clone()
        other[4] = torch.nan
        changed = (linear(x) != linear(other)).any(1).nonzero()[:, 0].tolist()
        print(f"{inputs} inputs, row 4 is NaN: rows {', '.join(map(str, changed))} change")
