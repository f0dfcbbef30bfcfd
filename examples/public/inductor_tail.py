"""PyTorch's compiler on a CPU: rows of a result that no loop writes."""

import torch

WIDTH, BLOCK, ROWS = 54, 32, 22


def divided(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Weights (22, 54) by a scale (2, 22) for each 32 columns, as of a quantised layer -> (54, 22)."""
    scales = scale.repeat_interleave(BLOCK, 0)[:WIDTH]
    return (weight.t().float() / scales.float()).round().to(torch.bfloat16)


def wrong_rows(runs: int = 3) -> list[int]:
    """The rows of the compiled function's result that are not those of the function, in any run."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(ROWS, WIDTH, generator=generator).bfloat16()
    scale = torch.rand(-(-WIDTH // BLOCK), ROWS, generator=generator).bfloat16() + 0.1
    wrong = torch.zeros(WIDTH, dtype=torch.bool)
    for _ in range(runs):
        torch._dynamo.reset()
        wrong |= (torch.compile(divided)(weight, scale) != divided(weight, scale)).any(1)
    return wrong.nonzero().flatten().tolist()


if __name__ == "__main__":
    rows = wrong_rows()
    print(f"PyTorch {torch.__version__}: {len(rows)} of {WIDTH} rows are wrong: {rows}")
