"""Shared set-up: single-threaded torch, and the benchmark's model as a test model."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

torch.set_num_threads(1)
