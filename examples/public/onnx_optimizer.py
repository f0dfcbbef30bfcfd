"""torch.onnx with its default optimizer: sums and products with constants near 0 and 1."""

import logging

import onnxscript
import torch


class Small(torch.nn.Module):
    """An epsilon and a factor that change float32 numbers."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return 1.0 / (x + 1e-8), x * 1.000008


def operators(optimize: bool) -> list[str]:
    """The operators of the exported graph, without its constants."""
    x = torch.rand(3)
    program = torch.onnx.export(Small(), (x,), dynamo=True, optimize=optimize, verbose=False)
    return [node.op_type for node in program.model.graph if node.op_type != "Constant"]


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    print(f"PyTorch {torch.__version__}, onnxscript {onnxscript.__version__}")
    for optimize in (False, True):
        print(f"{'with' if optimize else 'without'} the optimizer: {', '.join(operators(optimize))}")
