"""The sample run of the public DLRM README: a tiny model, random data, plain SGD, every number printed.

``python -m reference.dlrm_sample_run --mini-batch-size 2 --data-size 6 [--debug]`` prints the README's
output, digit for digit. The README is older than the newest public code. This run follows the README in three
points. It draws the inputs of all mini-batches before any target. The MLPs start from U[0, 1), and bags print
as lists.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import indent

import numpy as np
import torch
from torch import nn

from reference.dlrm import DLRM_Net
from reference.dlrm_layers import interaction_width
from reference.embedding_bags import bags_from_lists
from reference.validation import require_positive

TABLE_SIZES = (4, 3, 2)
TABLE_DIM = 2
BOTTOM_SIZES = (4, 3, 2)
TOP_SIZES_AFTER_INTERACTION = (4, 2, 1)
MAX_INDICES_PER_BAG = 10
LEARNING_RATE = 0.01
NUMPY_SEED = 123


@dataclass(frozen=True)
class MiniBatch:
    """Inputs and targets of one training step.

    Attributes:
        dense: (B, number of dense features) float32.
        bags: for each table, for each row of the batch, the sorted different rows to look up.
        target: (B, 1) float32 in [0, 1).
    """

    dense: np.ndarray
    bags: list[list[list[int]]]
    target: np.ndarray


def draw_bag(table_size: int, rng: np.random.RandomState) -> list[int]:
    """Draw one bag: its length first, then that many rows, less duplicates."""
    length = int(np.round(max(1.0, rng.random_sample() * min(table_size, MAX_INDICES_PER_BAG))))
    rows = np.round(rng.random_sample(length) * (table_size - 1)).astype(np.int64)
    return np.unique(rows).tolist()


def draw_data(data_size: int, mini_batch_size: int, rng: np.random.RandomState) -> list[MiniBatch]:
    """Draw ``data_size`` rows in mini-batches; the last may be smaller."""
    sizes = [min(mini_batch_size, data_size - start) for start in range(0, data_size, mini_batch_size)]
    inputs = []
    for size in sizes:
        dense = rng.random_sample((size, BOTTOM_SIZES[0])).astype(np.float32)
        inputs.append((dense, [[draw_bag(rows, rng) for _ in range(size)] for rows in TABLE_SIZES]))
    targets = [rng.random_sample((size, 1)).astype(np.float32) for size in sizes]
    return [MiniBatch(dense, bags, target) for (dense, bags), target in zip(inputs, targets, strict=True)]


def create_model(rng: np.random.RandomState) -> DLRM_Net:
    """Make the README's model, initial values drawn from ``rng``."""
    width = interaction_width("dot", len(TABLE_SIZES) + 1, TABLE_DIM)
    top_sizes = (width, *TOP_SIZES_AFTER_INTERACTION)
    return DLRM_Net(
        TABLE_DIM,
        TABLE_SIZES,
        BOTTOM_SIZES,
        top_sizes,
        sigmoid_top=len(top_sizes) - 2,
        mlp_init="uniform",
        rng=rng,
    )


def train(model: DLRM_Net, data: Sequence[MiniBatch]) -> Iterator[tuple[float, float]]:
    """Do one epoch of SGD on the mean squared error; yield each step's loss and accuracy, before its update.

    Accuracy is the share of rows whose rounded prediction equals the target: zero for targets that are no
    classes.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for batch in data:
        indices, offsets = zip(*(bags_from_lists(bags) for bags in batch.bags), strict=True)
        target = torch.from_numpy(batch.target)
        click = model(torch.from_numpy(batch.dense), offsets, indices)
        loss = nn.functional.mse_loss(click, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item(), (click.detach().round() == target).float().mean().item()


def _show(array: np.ndarray | Sequence[int]) -> str:
    return np.array2string(np.asarray(array), precision=5)


def _architecture_lines(model: DLRM_Net) -> Iterator[str]:
    top_sizes = [layer.in_features for layer in model.top_l if isinstance(layer, nn.Linear)] + [1]
    yield "model arch:"
    yield f"mlp top arch {len(top_sizes) - 1} layers, with input to output dimensions:"
    yield _show(top_sizes)
    yield f"# of interactions\n{top_sizes[0]}"
    yield f"mlp bot arch {len(BOTTOM_SIZES) - 1} layers, with input to output dimensions:"
    yield _show(BOTTOM_SIZES)
    yield f"# of features (sparse and dense)\n{len(TABLE_SIZES) + 1}"
    yield f"dense feature size\n{BOTTOM_SIZES[0]}"
    yield f"sparse feature size\n{TABLE_DIM}"
    yield f"# of embeddings (= # of sparse features) {len(TABLE_SIZES)}, with dimensions {TABLE_DIM}x:"
    yield _show(TABLE_SIZES)


def _data_lines(data: Sequence[MiniBatch]) -> Iterator[str]:
    yield "data (inputs and targets):"
    for number, batch in enumerate(data):
        yield f"mini-batch: {number}"
        yield f"{_show(batch.dense)}\n{batch.bags}\n{_show(batch.target)}"


def _parameter_lines(model: DLRM_Net) -> Iterator[str]:
    for parameter in model.parameters():
        yield _show(parameter.detach().numpy())


def _model_lines(model: DLRM_Net) -> Iterator[str]:
    # The public model has no module for the interaction; the README lists only modules with parameters.
    yield "DLRM_Net("
    for name in ("emb_l", "bot_l", "top_l"):
        yield indent(f"({name}): {getattr(model, name)!r}", "  ")
    yield ")"


def sample_run(data_size: int, mini_batch_size: int, debug: bool = False) -> Iterator[str]:
    """Yield the run's output, a line at a time.

    Args:
        data_size: rows to train on.
        mini_batch_size: rows of a step.
        debug: add the architecture, the data, and the parameters before and after.
    """
    require_positive(data_size=data_size, mini_batch_size=mini_batch_size)
    rng = np.random.RandomState(NUMPY_SEED)
    data = draw_data(data_size, mini_batch_size, rng)
    model = create_model(rng)
    if debug:
        yield from _architecture_lines(model)
        yield from _data_lines(data)
        yield "initial parameters (weights and bias):"
        yield from _parameter_lines(model)
        yield from _model_lines(model)
    yield "time/loss/accuracy (if enabled):"
    for step, (loss, accuracy) in enumerate(train(model, data), start=1):
        # The README's run does not measure time, which it shows as -1.
        progress = f"Finished training it {step}/{len(data)} of epoch 0, -1.00 ms/it"
        yield f"{progress}, loss {loss:.6f}, accuracy {accuracy * 100:.3f}%"
    if debug:
        yield "updated parameters (weights and bias):"
        yield from _parameter_lines(model)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and write the run to standard output."""
    parser = argparse.ArgumentParser(
        prog="python -m reference.dlrm_sample_run", description="The DLRM README's sample run."
    )
    parser.add_argument("--mini-batch-size", type=int, default=1, help="rows of a training step")
    parser.add_argument("--data-size", type=int, default=1, help="rows to train on")
    debug_help = "print the architecture, the data, and the parameters before and after"
    parser.add_argument("--debug", "--debug-mode", action="store_true", help=debug_help)
    options = parser.parse_args(arguments)
    try:
        for line in sample_run(options.data_size, options.mini_batch_size, options.debug):
            sys.stdout.write(line + "\n")
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
