"""Scales of quantised products, from the weights and from inputs that the model without quantisation sees.

The typical batch of a case runs through the float32 reference. Its quantisers pass their tensors on and keep
them. A scale follows from the kept numbers that share it, with the largest code c:

* largest: the largest absolute number over c;
* percentile: the 99.9th percentile of the absolute numbers over c;
* squared_error: of 81 fractions of the largest, 0.2 to 1, the scale of the least squared error.

Padded rows do not count. A scale of zeros alone is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from parity.base.precision import PRECISIONS
from parity.case import Arrays, Case, Matrix
from parity.runners.torch.eager import TorchRunner

if TYPE_CHECKING:
    from reference.quantisers import InputQuantiser, WeightQuantiser

PERCENTILE = 0.999
"""Share of the absolute numbers within the range of a scale."""
FRACTIONS = torch.linspace(0.2, 1.0, 81)
"""Tried scales of the least squared error, as fractions of the largest number's."""
SCALE = "scale"
"""The last part of a scale's name."""
_OF_WEIGHT, _OF_INPUT = ".quantise_weight.", ".quantise_input."


def is_scale(name: str) -> bool:
    """Whether a tensor of a state dict is a quantiser's scale."""
    return f".{name}".endswith((_OF_WEIGHT + SCALE, _OF_INPUT + SCALE))


def calibrated(
    case: Case,
    weights: Mapping[str, torch.Tensor],
    calibration: str,
    batches: Iterable[Arrays] | None = None,
) -> dict[str, torch.Tensor]:
    """The weights with all scales, see `parity.Case.calibrated`; `calibration` is one of `RULES`."""
    from reference.quantisers import observing

    plain = {name: tensor for name, tensor in weights.items() if not is_scale(name)}
    scales = {name: tensor for name, tensor in case.build_reference().state_dict().items() if is_scale(name)}
    if not scales:
        return plain
    runner = TorchRunner(torch.device("cpu"))
    runner.load(case, PRECISIONS["fp32"], plain | scales)
    seen: dict[str, list[torch.Tensor]] = {}
    with observing(runner.model) as quantisers:
        for arrays in case.make_inputs().inputs if batches is None else batches:
            runner.run(arrays)
            masks = case.valid_rows(arrays)
            for path, quantiser in quantisers.items():
                if f".{path}.".endswith(_OF_INPUT):
                    seen.setdefault(path, []).extend(counted(tensor, masks) for tensor in quantiser.observed)
                else:
                    seen[path] = quantiser.observed[:1]
                quantiser.observed.clear()
        for path, tensors in seen.items():
            if tensors:
                scales[f"{path}.{SCALE}"] = scales_of(quantisers[path], tensors, calibration)
    return {**plain, **scales}


def products(case: Case, paths: Sequence[str], arrays: Arrays) -> dict[str, Matrix]:
    """The products of a model by path, in the order of its modules, from one run of the reference."""
    from reference.quantisers import observing

    case = case.quantised(dict.fromkeys(paths, "int8_tensor"))
    runner = TorchRunner(torch.device("cpu"))
    runner.load(case, PRECISIONS["fp32"], case.build_reference().state_dict())
    with observing(runner.model) as quantisers:
        runner.run(arrays)
        seen = {path: quantiser.observed for path, quantiser in quantisers.items()}
    inputs = [tensors for path, tensors in seen.items() if f".{path}.".endswith(_OF_INPUT)]
    weights = [tensors for path, tensors in seen.items() if f".{path}.".endswith(_OF_WEIGHT)]
    return {
        path: Matrix(sum(x.numel() // x.shape[-1] for x in xs), *ws[0].shape)
        for path, xs, ws in zip(paths, inputs, weights, strict=True)
    }


def counted(tensor: torch.Tensor, masks: Mapping[int, np.ndarray]) -> torch.Tensor:
    """The rows of a tensor (B, N, ...) that count, or all of any other tensor."""
    mask = masks.get(tensor.shape[1]) if tensor.ndim > 2 else None
    if mask is None or mask.shape[0] != tensor.shape[0]:
        return tensor
    return tensor[torch.from_numpy(np.asarray(mask))]


def scales_of(
    quantiser: InputQuantiser | WeightQuantiser, kept: list[torch.Tensor], calibration: str
) -> torch.Tensor:
    """The scales of one quantiser from the tensors that it saw, in the order of its parameter.

    Args:
        quantiser: Of the reference.
        kept: Tensors; one of weights, (K, N).
        calibration: The rule, one of `RULES`.
    """
    from reference.quantisers import LARGEST, round_to_codes

    span = getattr(quantiser, "span", "tensor")
    if span == "tensor":
        groups = torch.cat([tensor.reshape(-1) for tensor in kept]).unsqueeze(0)
    elif span == "channel":
        groups = kept[0].t()
    else:
        (weight_KN,) = kept
        size = quantiser.block_size
        spare = -weight_KN.shape[0] % size
        padded = torch.nn.functional.pad(weight_KN, (0, 0, 0, spare))
        groups = padded.unflatten(0, (-1, size)).transpose(1, 2).flatten(0, 1)
    groups = groups.double()
    largest = groups.abs().amax(1) / LARGEST[quantiser.numbers]
    scale = RULES[calibration](groups, largest, lambda steps: round_to_codes(steps, quantiser.numbers)[0])
    return torch.where(scale > 0.0, scale, 1.0).float().reshape(quantiser.scale.shape)


Rounding = Callable[[torch.Tensor], torch.Tensor]


def _largest(groups: torch.Tensor, largest: torch.Tensor, rounding: Rounding) -> torch.Tensor:
    return largest


def _percentile(groups: torch.Tensor, largest: torch.Tensor, rounding: Rounding) -> torch.Tensor:
    # `torch.quantile` takes few elements.
    share = np.quantile(groups.abs().numpy(), PERCENTILE, axis=1)
    whole = groups.abs().amax(1)
    return largest * torch.from_numpy(share) / torch.where(whole > 0.0, whole, 1.0)


def _squared_error(groups: torch.Tensor, largest: torch.Tensor, rounding: Rounding) -> torch.Tensor:
    best, least = largest, torch.full_like(largest, torch.inf)
    for fraction in FRACTIONS.tolist():
        scale = torch.where(largest > 0.0, largest * fraction, 1.0).unsqueeze(1)
        error = (rounding(groups / scale) * scale - groups).square().sum(1)
        nearer = error < least
        best, least = torch.where(nearer, scale[:, 0], best), torch.where(nearer, error, least)
    return best


RULES: dict[str, Callable[[torch.Tensor, torch.Tensor, Rounding], torch.Tensor]] = {
    "largest": _largest,
    "percentile": _percentile,
    "squared_error": _squared_error,
}
