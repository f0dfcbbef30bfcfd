"""Functions of one number in exported graphs on ONNX Runtime's CPU provider, beside PyTorch and float64.

Each function runs on windows of 5 % around 150 positive and 150 negative numbers. A window's error is the
relative L2 error of its results. The script prints the worst window of every function whose error exceeds
four units in the last place and four times PyTorch's own.
"""

import contextlib
import io
import logging
from collections.abc import Callable

import numpy as np
import onnxruntime
import torch
from torch.nn import functional as F

Function = Callable[[torch.Tensor], torch.Tensor]
UNIT = float(np.finfo(np.float32).eps)
FUNCTIONS = {
    **{
        name: (getattr(torch, name), -80.0, 80.0)
        for name in "sigmoid tanh exp erf erfc sin cos tan atan sinh cosh asinh expm1 reciprocal exp2".split()
    },
    **{name: (getattr(torch, name), 1e-10, 1e30) for name in "log log2 log10 sqrt rsqrt".split()},
    **{name: (getattr(torch, name), -0.99, 0.99) for name in "asin acos atanh".split()},
    **{
        name: (getattr(F, name), -80.0, 80.0)
        for name in "silu gelu softplus elu celu selu mish hardsigmoid hardswish logsigmoid softsign".split()
    },
    "gelu, tanh": (lambda x: F.gelu(x, approximate="tanh"), -80.0, 80.0),
    "log1p": (torch.log1p, -0.99, 1e10),
    "acosh": (torch.acosh, 1.01, 1e10),
    "x ** 1.7": (lambda x: x**1.7, 1e-10, 1e10),
    "10000 ** x": (lambda x: torch.pow(10000.0, x), -8.0, 8.0),
    "logaddexp(x, 0)": (lambda x: torch.logaddexp(x, torch.zeros_like(x)), -80.0, 80.0),
}
"""Functions with the range of their numbers."""


def exported(function: Function, x: torch.Tensor) -> torch.Tensor:
    """The function's results in ONNX Runtime, of a graph by torch.onnx."""

    class Exported(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    with contextlib.redirect_stdout(io.StringIO()):
        program = torch.onnx.export(Exported(), (x,), dynamo=True, verbose=False)
    model = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])


def windows(low: float, high: float) -> torch.Tensor:
    """(W, 256) Numbers, a window a row."""
    sizes = np.geomspace(1e-10, max(-low, high), 150)
    centers_W = np.concatenate([-sizes[::-1], sizes])
    x_WN = centers_W[:, None] * np.linspace(0.95, 1.05, 256)
    return torch.from_numpy(x_WN[((x_WN >= low) & (x_WN <= high)).all(axis=1)]).float()


def errors(result_WN: torch.Tensor, truth_WN: torch.Tensor) -> torch.Tensor:
    """(W) Relative L2 errors."""
    errors_W = (result_WN.double() - truth_WN).norm(dim=1) / truth_WN.norm(dim=1)
    return errors_W.nan_to_num(nan=torch.inf, posinf=torch.inf)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    print(f"ONNX Runtime {onnxruntime.__version__}, PyTorch {torch.__version__}")
    for name, (function, low, high) in FUNCTIONS.items():
        x_WN = windows(low, high)
        truth_WN = function(x_WN.double())
        own_W, torch_W = errors(exported(function, x_WN), truth_WN), errors(function(x_WN), truth_WN)
        # Results near the smallest number have no digits to lose.
        is_wrong_W = (own_W > 4 * UNIT) & (own_W > 4 * torch_W) & (truth_WN.abs().amin(1) > 1e-36)
        if is_wrong_W.any():
            worst = int(torch.where(is_wrong_W, own_W, 0.0).argmax())
            first, last = x_WN[is_wrong_W][:, 128].aminmax()
            print(
                f"{name}: error {own_W[worst]:.2g} around {x_WN[worst, 128]:.3g}, "
                f"PyTorch's {torch_W[worst]:.2g}; {int(is_wrong_W.sum())} of {len(x_WN)} windows "
                f"from {first:.3g} to {last:.3g}"
            )
