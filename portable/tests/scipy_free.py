"""Functions that NumPy lacks, from the standard library."""

import math

import numpy as np


def erf(x: np.ndarray) -> np.ndarray:
    """The error function, element by element in float64."""
    return np.vectorize(math.erf, otypes=[np.float64])(x)
