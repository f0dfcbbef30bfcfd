"""The incremental forward of a model with a cache: a prefill, then one step after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from parity.case.plan import Arrays

if TYPE_CHECKING:
    from parity.base.work import Work


class Incremental:
    """The incremental forward of a case. By default it has none."""

    name: str
    incremental_outputs: Mapping[str, str] = {}
    """Tap names of the results of `extend`, in order, each with the tap of the entry that it must equal."""

    def incremental_arguments(self, arrays: Arrays) -> Sequence[dict[str, Any]] | None:
        """Keyword arguments of `prefill`, then of each `extend` less its cache; None where there are none."""
        return None

    def prefill(self, model: Any, **arguments: Any) -> Any:
        """Run a model of either side on all but the last steps. Returns its cache, a nest of tensors."""
        raise NotImplementedError(f"{self.name} has no incremental forward")

    def extend(self, model: Any, cache: Any, **arguments: Any) -> tuple[tuple[Any, ...], Any]:
        """Append one step. Returns tensors in the order of `incremental_outputs`, and the next step's cache.

        The last step's tensors are judged. Its cache may be None.
        """
        raise NotImplementedError(f"{self.name} has no incremental forward")

    def unflatten_cache(self, tensors: Mapping[str, Any]) -> Any:
        """The cache from its tensors, in the order of `prefill`'s result."""
        return list(tensors.values())

    def resumed_cache(self, tensors: Mapping[str, Any], arrays: Arrays) -> Mapping[str, Any]:
        """The cache of `prefill` as the first `extend` receives it, by the names of its tensors."""
        return tensors

    def appending_work(self, arrays: Arrays, item: int) -> Mapping[str, Work]:
        """`work` of `prefill` (no suffix) and of `extend` (`@1`); nothing where there is no cache."""
        return {}
