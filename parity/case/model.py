"""`Case`: the interface of the engine to a model.

A case builds both sides and makes inputs. Every other method has a default for a dense model without padding.
"""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from parity.base.errors import UserError
from parity.base.trees import dotted, leaves, parts_of
from parity.case.cached import Cached
from parity.case.incremental import Incremental
from parity.case.options import Option
from parity.case.pairing import Pairing, entry_of
from parity.case.plan import FEW_ROWS, Arrays, Batches, PlannedBatch
from parity.case.quantised import Quantised
from parity.case.recorded import Recorded
from parity.case.reference import CaseReference

if TYPE_CHECKING:
    import nvtripy
    import torch

    from parity.base.work import Work
    from parity.case.serving import Serving
    from parity.case.streams import Streams


class NoForm(Exception):
    """A case has no such form, or the form cannot run here; the message is the reason that users read."""


class Case(Pairing, Incremental, Cached, Quantised, Recorded, abc.ABC):
    """One model in one configuration: both sides, inputs, and the parts of results that count.

    A subclass sets `name`, and `seed` and `batch_size` where these defaults do not fit. It implements
    `build_reference`, `build_port` and `make_inputs`.

    Legend: B rows of a batch.
    """

    name: str
    """Name in reports and of folders: letters, digits and underscores, a letter first."""
    description: str = ""
    """One line for lists."""
    seed: int = 0
    """Seed of the initial weights, and of `make_inputs`."""
    batch_size: int = 4
    """Rows of a batch that `make_inputs` makes."""
    entry: str = "forward"
    """The method of both models that maps inputs to outputs."""
    whole_outputs: tuple[str, ...] = ()
    """Names of outputs whose padding counts, such as promised zeros; `valid_rows` masks all other taps."""
    forms: tuple[str, ...] = ()
    """Names that `form` accepts."""
    family: str = ""
    """Name that all cases of one model share; faults by hand may be for a family."""
    packages: tuple[str, ...] = ()
    """Top packages of the case's code besides its own; folders that reproduce a failure hold copies.
    Where it is empty, the packages that the case's own imports count, without installed ones."""
    fault_catalogues: tuple[Path, ...] = ()
    """YAML files of faults by hand; see `parity.studies.fault_injection.handwritten`."""
    _reference: CaseReference | None = None

    @abc.abstractmethod
    def build_reference(self) -> torch.nn.Module:
        """The PyTorch model, with untrained weights."""

    @abc.abstractmethod
    def build_port(self, dtype: nvtripy.dtype) -> nvtripy.Module:
        """The Tripy model in a dtype, its parameters not set. See `names` and `weights` for other keys."""

    @abc.abstractmethod
    def make_inputs(self) -> Arrays | Batches:
        """The typical batch: arrays by name, drawn from `seed`, for `batch_size` rows; or with its counts."""

    # Naming

    @property
    def reference(self) -> CaseReference:
        """The plain data that another process imports this case by.

        Raises:
            UserError: The case was not loaded from a reference.
        """
        if self._reference is None:
            raise UserError(
                "case", type(self).__qualname__, "has no reference", "load it with parity.load_case"
            )
        return self._reference

    @property
    def is_live(self) -> bool:
        """Whether only this process has the case, because it was not loaded from a reference."""
        try:
            return not self.reference
        except UserError:
            return True

    def described(self) -> CaseReference:
        """The reference; of a live case its name and description alone."""
        if self.is_live:
            return CaseReference(target="", name=self.name, description=self.description)
        return self.reference

    def with_overrides(self, seed: int | None = None, batch_size: int | None = None) -> Case:
        """The same case with another seed or batch size. Override it if the constructor uses either.

        Raises:
            UserError: A value that the case cannot have.
        """
        changes = {"seed": seed, "batch_size": batch_size}
        changes = {name: value for name, value in changes.items() if value is not None}
        if batch_size is not None and batch_size < 1:
            raise UserError("batch_size", batch_size, "is less than 1", "give at least 1")
        if seed is not None and seed < 0:
            raise UserError("seed", seed, "is negative", "give 0 or more")
        other = copy.copy(self)
        for name, value in changes.items():
            setattr(other, name, value)
        if other._reference is not None:
            other._reference = other._reference.model_copy(update=changes)
        return other

    def sizes(self) -> Mapping[str, int | Sequence[int]]:
        """Sizes that a smaller case may have less of, by name; the first are shrunk first."""
        return {"batch_size": self.batch_size}

    def with_sizes(self, sizes: Mapping[str, Any]) -> Case:
        """The same case with some of its `sizes` changed. Raises `UserError` for sizes that do not fit."""
        return self.with_overrides(**sizes)

    def least_bytes(self) -> tuple[int, int]:
        """Least bytes of one side's weights and of the inputs, by arithmetic; 0 where that is not known."""
        return 0, 0

    # The entry

    def entry_arguments(self, arrays: Arrays) -> dict[str, Any]:
        """The entry's keyword arguments: by default the arrays by their names."""
        return dict(arrays)

    def fixed_arguments(self, arrays: Arrays) -> dict[str, Any]:
        """`entry_arguments` whose shapes follow from the arrays' shapes, for graphs of fixed ones."""
        return self.entry_arguments(arrays)

    def call(self, model: Any, arguments: Mapping[str, Any]) -> Any:
        """Call the entry of a model of either side."""
        return entry_of(model, self.entry)(**arguments)

    def named_outputs(self, results: Any) -> dict[str, Any]:
        """The entry's results by tap name, of either side: one tensor, a tuple, or a dict of tensors."""
        parts = parts_of(results)
        if parts is None:
            named = {"output": results}
        else:
            named = parts if isinstance(parts, dict) else dict(enumerate(parts))
        return {f"{self.entry}.{name}": result for name, result in named.items()}

    # Inputs

    def plan(self) -> Iterable[PlannedBatch]:
        """Small batches beside the typical one, for other shapes and values.

        By default one row, two rows, and other values, all from `make_inputs`. The port's dynamic sizes go up
        to those of the typical batch.
        """
        sizes = [rows for rows in FEW_ROWS if rows < self.batch_size]
        for number, rows in enumerate([*sizes, self.batch_size], start=1):
            counted = "one row" if rows == 1 else f"{rows} rows"
            name = "other values" if rows == self.batch_size else counted
            content = self.with_overrides(seed=self.seed + number, batch_size=rows).make_inputs()
            for inputs in content.inputs if isinstance(content, Batches) else [content]:
                yield PlannedBatch(name, f"{counted}, seed {self.seed + number}", inputs)

    def batch_size_of(self, arrays: Arrays) -> int:
        """B of some inputs: by default the first axis of the first array."""
        return next(iter(arrays.values())).shape[0]

    def validate(self, arrays: Arrays) -> None:
        """Raises `UserError` for inputs that the models cannot run on, or whose results cannot be judged."""

    def poison(self, arrays: Arrays, seed: int) -> Arrays | None:
        """The same inputs with garbage in their padding; None where there is no padding."""
        return None

    def valid_rows(self, arrays: Arrays) -> Mapping[int, np.ndarray]:
        """For each size of a padded axis, the (B, size) boolean mask of what counts; see `whole_outputs`."""
        return {}

    def rows(self, arrays: Arrays, rows: slice | np.ndarray) -> Arrays | None:
        """The inputs of some rows of the batch, where no row's results depend on another's.

        None where they do, or where rows cannot be told apart: such a batch runs as a whole. By default every
        array is cut along its first axis if all of them have B rows.

        Args:
            arrays: The batch's inputs.
            rows: A slice, or numbers of rows in any order, repeated ones included.
        """
        batch = self.batch_size_of(arrays)
        if any(array.shape[:1] != (batch,) for array in arrays.values()):
            return None
        return {name: array[rows] for name, array in arrays.items()}

    def dynamic_sizes(self, arrays: Arrays) -> Mapping[int | tuple[str, int], int]:
        """Dynamic axes of the port's graph with their least sizes.

        A key is the size of a first axis, or the path of the entry's argument with the number of the axis.
        """
        batch = self.batch_size_of(arrays)
        return {batch: 1} if batch > 1 else {}

    def dynamic_axes(self, arrays: Arrays) -> Mapping[str, tuple[str, int]]:
        """First axes that are dynamic in an exported graph, by the path of the entry's argument.

        Each has the size's name, which is another one only for a size of its own, and its smallest value.
        """
        batch = self.batch_size_of(arrays)
        arguments = leaves(self.entry_arguments(arrays))
        return {dotted(path): ("batch", 1) for path, array in arguments if array.shape[:1] == (batch,)}

    # Judging

    def gaps(self) -> Mapping[str, str]:
        """Classes of the reference that the port cannot have, each with the reason."""
        return {}

    def is_causal(self) -> bool:
        """Whether no row of a sequence depends on a later one."""
        return False

    def boundaries(self) -> Mapping[str, Callable[..., np.ndarray]]:
        """By class name of the reference's modules, a function of the module's arguments.

        The function returns a boolean array in the shape of the module's output: the elements whose pre-image
        lies within round-off of a discontinuity. Tensors arrive as host `torch.Tensor`s.
        """
        return {}

    def weight_scale(self, name: str, parameter: torch.Tensor) -> float | torch.Tensor | None:
        """Standard deviation of a parameter's initial values; None for the scale of its role and shape.

        A tensor broadcasts with the parameter: rows of a table may differ in size.
        """
        return None

    def initial_values(self, name: str, own: torch.Tensor) -> torch.Tensor | None:
        """Values of a parameter or a buffer in place of those that it has otherwise; None to keep them.

        For values that come with a checkpoint, such as a map of items to categories, and for numbers that a
        normal distribution never has, such as a row of a table with equal numbers. Draw from `seed`.

        Args:
            name: Its name in the reference's state dict.
            own: The values that it has otherwise, on the CPU: of a parameter, or a norm's statistic, drawn
                ones; of another buffer those of the constructor, which a port may make itself. They give
                shape and type. The method may change them in place and return them.
        """
        return None

    def work(self, arrays: Arrays, item: int) -> Mapping[str, Work]:
        """Least work of each module on one batch by tap; the whole model's is "".

        Args:
            arrays: The batch's inputs.
            item: Bytes of a number in the tested precision.

        Raises:
            ValueError: There are no counts for this case, as by default; the message is the reason.
        """
        raise ValueError(f"{self.name} has no counts of FLOPs and bytes")

    # Studies

    def randomised(self, rng: np.random.Generator) -> Case:
        """A random small case of the same kind, or a `UserError`. By default another seed and batch size."""
        rows = int(rng.integers(1, 2 * self.batch_size + 1))
        return self.with_overrides(seed=int(rng.integers(1 << 20)), batch_size=rows)

    def streams(self) -> Streams:
        """The models of this case over streams of items. Raises `UserError` where there are none."""
        raise UserError("stream", self.name, "has no streams", "name a case whose models take streams")

    def has_streams(self) -> bool:
        """Whether the case has `streams`."""
        try:
            self.streams()
        except UserError:
            return False
        return True

    def serving(self) -> Serving:
        """The requests of this case for a server. Raises `UserError` where there are none."""
        raise UserError("serve", self.name, "has no requests", "name a case that can be served")

    def port_modules(self) -> Sequence[str]:
        """Import paths of the Python modules with the port's code, for faults in it and for coverage.

        Empty by default: then the modules that define the port's classes count, with their packages.
        """
        return ()

    # Coverage

    def options(self) -> Mapping[str, Option]:
        """Options by name, such as `model.activation`. Cases of one model share the names."""
        return {}

    def cannot_be_asked(self) -> Mapping[str, str]:
        """Answers that no input can give, each with the reason; see `parity.coverage.questions`.

        A key is an answer's identity, or the beginning of one that ends before a ` | `: a function of the
        port, an argument's axis, an option.
        """
        return {}

    # Other forms

    def form(self, name: str) -> Form:
        """The same model in another layout or with fused kernels, by one of `forms`.

        Raises:
            NoForm: The case has no such form, with the reason.
        """
        raise NoForm(f"{self.name} has no {name} form")


class Form(Case):
    """A case in another layout or with fused kernels. State-dict keys are those of the case.

    Its `build_reference` and `build_port` may raise `NoForm` where the form cannot run on this machine.
    """

    computed_inside: Mapping[str, str] = {}
    """Classes of the case's reference that this form computes inside another module, each with the reason."""

    @abc.abstractmethod
    def pad_taps(self, tensors: Mapping[str, torch.Tensor], arrays: Arrays) -> dict[str, torch.Tensor]:
        """Taps of this form under the names and in the shapes of the case's reference."""

    @abc.abstractmethod
    def module_arguments(
        self, path: str, args: list, kwargs: dict, arrays: Arrays, modules: Mapping[str, Any]
    ) -> tuple[list, dict]:
        """Arguments of the case's module at `path` as those of its twin in this form.

        Args:
            path: Path of the module in both models.
            args: Its positional arguments, tensors as `torch.Tensor`s.
            kwargs: Its keyword arguments, likewise.
            arrays: The batch's inputs.
            modules: Modules of this form's model by path, for arguments that are modules.
        """

    def appended_call(
        self, path: str, method: str, args: list, kwargs: dict, arrays: Arrays, modules: Mapping[str, Any]
    ) -> CallInForm:
        """A call of the case's module at `path` in an append, as that of its twin in this form.

        Args:
            path, args, kwargs, arrays, modules: See `module_arguments`.
            method: The method of the case's module.
        """
        raise NotImplementedError(f"{self.name} has no appends of single modules")

    @property
    def appends_alone(self) -> bool:
        """Whether `appended_call` is defined, so that modules of an append run alone."""
        return type(self).appended_call is not Form.appended_call


@dataclass(frozen=True)
class CallInForm:
    """A call of one module in a form.

    Attributes:
        args, kwargs: Its arguments.
        padded: From the results by tap to those in the shapes of the case's reference.
        method: The method that it calls.
    """

    args: list
    kwargs: dict
    padded: Callable[[Mapping[str, torch.Tensor]], dict[str, torch.Tensor]]
    method: str = "forward"
