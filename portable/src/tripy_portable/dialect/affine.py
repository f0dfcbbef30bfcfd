"""The one affine map that nvtripy makes: a permutation of dimensions."""

from __future__ import annotations

from collections.abc import Sequence


class AffineMap:
    """A permutation: result dimension i is source dimension `permutation[i]`."""

    def __init__(self, permutation: Sequence[int]):
        self.permutation = tuple(int(dim) for dim in permutation)

    @staticmethod
    def get_permutation(permutation: Sequence[int], context: object | None = None) -> AffineMap:
        return AffineMap(permutation)
