"""Common parts of the shipped cases: a file of `configs/` for each, and builders of both sides by name."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch

from cases.calibration import calibrated, is_scale, products
from cases.options import cannot_be_asked, options_of
from cases.randomised import randomised
from cases.sizes import drawing_bytes, input_bytes, weight_bytes
from configs import CaseConfig, ConfigError, with_fields, with_input
from configs.quantisation import Quantisable
from parity.base.errors import UserError, bounded
from parity.base.quantisation import SCHEMES
from parity.base.work import Work
from parity.case import Arrays, Case, CaseReference, Matrix, Option
from perf_model.work.model import appending_work, case_work
from perf_model.work.quantised import product

TARGET = "cases.shipped:from_values"
_NO_SIZES = ("seed",)
"""Numbers of a configuration that are no sizes."""
_COMPUTE_NOTHING = ("gaps", "validation")
"""Modules of the port that compute no result."""

_Configured = TypeVar("_Configured", bound="ConfiguredCase")


class BadConfig(UserError):
    """A configuration that cannot be used; the message has one line a problem."""

    def __init__(self, message: str) -> None:
        ValueError.__init__(self, bounded(message))
        self.field, self.value, self.problem, self.fix = "case", "", message, ""

    def __reduce__(self) -> tuple[type[BadConfig], tuple[str]]:
        return type(self), (self.problem,)


@contextmanager
def config_errors() -> Iterator[None]:
    """Inside, a `ConfigError` becomes the engine's `UserError` with the same message."""
    try:
        yield
    except ConfigError as error:
        raise BadConfig(str(error)) from error


class ConfiguredCase(Case):
    """A case of a configuration.

    Attributes:
        config: The whole configuration.
        model: The model's part of it.
        input: The input's part of it.
    """

    builder: ClassVar[str]
    """The function of `reference.build` and of `tripy_port.build`."""
    outputs: ClassVar[tuple[str, ...]]
    """Names of the entry's results, in order."""
    packages = ("cases", "configs", "datasets", "kernels", "perf_model", "reference", "tables", "tripy_port")
    fault_catalogues = tuple(sorted(Path(__file__).with_name("faults").glob("*.yaml")))

    def __init__(self, config: CaseConfig) -> None:
        self.config = config
        self.model: Any = config.model
        self.input: Any = config.input
        self.name = config.name
        self.description = config.description
        self.family = config.family
        self.seed = self.input.seed
        self.batch_size = self.input.batch_size

    @property
    def reference(self) -> CaseReference:
        values = self.config.model_dump(mode="json")
        return CaseReference(target=TARGET, values=values, name=self.name, description=self.description)

    def with_overrides(
        self: _Configured, seed: int | None = None, batch_size: int | None = None
    ) -> _Configured:
        changes = {"seed": seed, "batch_size": batch_size}
        return self.with_input(**{name: value for name, value in changes.items() if value is not None})

    def with_input(self: _Configured, **changes: Any) -> _Configured:
        """The same case with some fields of its input changed. Raises `UserError` as for a file of these."""
        with config_errors():
            return type(self)(with_input(self.config, **changes))

    def with_sizes(self: _Configured, sizes: Mapping[str, Any]) -> _Configured:
        """The same case with some fields changed, named as `model.num_blocks`."""
        with config_errors():
            return type(self)(with_fields(self.config, sizes))

    def sizes(self) -> dict[str, int | Sequence[int]]:
        values = self.config.model_dump()
        return {
            f"{part}.{name}": value
            for part in ("input", "model")
            for name, value in values[part].items()
            if isinstance(value, (int, list, tuple)) and not isinstance(value, bool) and name not in _NO_SIZES
        }

    def quantised(self: _Configured, schemes: Mapping[str, str]) -> _Configured:
        if not isinstance(self.model, Quantisable):
            return super().quantised(schemes)
        try:
            return type(self)(with_fields(self.config, {"model.quantised": dict(schemes)}))
        except ConfigError as error:
            # The schemes are those of the option, and not of the case's file.
            raise BadConfig(str(error).replace("model.quantised[", "--policy[")) from error

    def is_scale(self, name: str) -> bool:
        return is_scale(name)

    def calibrated(
        self, weights: Mapping[str, torch.Tensor], batches: Iterable[Arrays] | None = None
    ) -> dict[str, torch.Tensor]:
        rule = self.model.calibration if isinstance(self.model, Quantisable) else ""
        return calibrated(self, weights, rule, batches)

    def matrices(self, arrays: Arrays) -> Mapping[str, Matrix]:
        if not isinstance(self.model, Quantisable):
            return {}
        return products(self, self.model.products(), arrays) | self.table_matrices(arrays)

    def scheme_work(self, arrays: Arrays, item: int) -> Mapping[str, Mapping[str, Work]]:
        matrices = self.matrices(arrays)
        tables = [path for path, matrix in matrices.items() if matrix.is_table]
        works: dict[str, dict[str, Work]] = {path: {} for path in matrices}
        for path, matrix in matrices.items():
            if matrix.is_table:
                continue
            sizes = (matrix.rows, matrix.inputs, matrix.outputs, item)
            works[path][""] = product(*sizes)
            for name, scheme in SCHEMES.items():
                if not scheme.is_of_tables:
                    own = replace(scheme, block_size=self.model.block_size)
                    works[path][name] = product(*sizes, own)
        of_tables = [name for name, scheme in SCHEMES.items() if scheme.is_of_tables]
        for name in ("", *of_tables) if tables else ():
            own_works = self.quantised({"*": name} if name else {}).work(arrays, item)
            for path in tables:
                works[path][name] = own_works[path]
        return works

    def table_matrices(self, arrays: Arrays) -> dict[str, Matrix]:
        """The tables of `matrices`; none by default."""
        return {}

    def randomised(self: _Configured, rng: np.random.Generator) -> _Configured:
        """A random small configuration of the family, with any choice of any option."""
        with config_errors():
            return type(self)(randomised(self.config, rng))

    def least_bytes(self) -> tuple[int, int]:
        return weight_bytes(self.config), input_bytes(self.config) + drawing_bytes(self.config)

    def build_reference(self) -> torch.nn.Module:
        from reference import build

        return getattr(build, self.builder)(self.model)

    def build_port(self, dtype: Any) -> Any:
        from tripy_port import build

        return getattr(build, self.builder)(self.model, dtype)

    def named_outputs(self, results: Any) -> dict[str, Any]:
        several = results if isinstance(results, tuple) else (results,)
        return {f"{self.entry}.{name}": result for name, result in zip(self.outputs, several, strict=True)}

    def port_modules(self) -> tuple[str, ...]:
        import tripy_port

        names = (info.name for info in pkgutil.iter_modules(tripy_port.__path__))
        return tuple(f"tripy_port.{name}" for name in names if name not in _COMPUTE_NOTHING)

    def options(self) -> dict[str, Option]:
        """Every option of the schema that has choices, named as `hstu.model.normalization`."""
        return options_of(self.config)

    def cannot_be_asked(self) -> Mapping[str, str]:
        return cannot_be_asked()

    def gaps(self) -> Mapping[str, str]:
        from tripy_port.gaps import GAPS

        return GAPS

    def work(self, arrays: Arrays, item: int) -> Mapping[str, Work]:
        return case_work(self.config, _shapes(arrays), item)

    def appending_work(self, arrays: Arrays, item: int) -> Mapping[str, Work]:
        return appending_work(self.config, _shapes(arrays), item)


def unflatten_cache(tensors: Mapping[str, Any], of_a_layer: int) -> list[tuple[Any, ...]]:
    """A cache that is a list of tuples, one a layer, from its tensors in order."""
    flat = list(tensors.values())
    return [tuple(flat[start : start + of_a_layer]) for start in range(0, len(flat), of_a_layer)]


def _shapes(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in arrays.items()}
