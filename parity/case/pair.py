"""`ModelPair`: a case of two live models and one batch of inputs, with options in place of methods."""

from __future__ import annotations

import contextlib
import copy
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from parity.base.errors import UserError, check_names, from_here
from parity.base.trees import Leaf, dotted, leaves, map_tree
from parity.case.model import Case
from parity.case.pairing import Pairing, entry_of, overrides_call, require_fitting
from parity.case.plain_models import in_place_of_model, require_plain
from parity.case.plan import Arrays, PlannedBatch
from parity.case.shapes import checked_dynamic, checked_mask, checked_poison, cut
from parity.case.users_code import told, users_code

if TYPE_CHECKING:
    import nvtripy
    import torch

OPTIONS = ("name", "entry", "mask", "poison", "dynamic", *Pairing.OPTIONS)
"""Names of the options of a `ModelPair`."""


_SIZES = {
    "least sizes": lambda least, most: least,
    "sizes of 2": lambda least, most: min(max(least, 2), most),
    "middle sizes": lambda least, most: (least + most) // 2,
}
"""By name of a batch, its size of a dynamic axis by the least and the largest one."""


class ModelPair(Case):
    """A PyTorch model, its port, and a batch of inputs.

    Modules that only one side has are notes. The options are the attributes of `Case` of the same names.

    Args:
        torch_model: The PyTorch model, or a function that builds it. The model does not change.
        port: A function that builds the Tripy model, such as its class. It takes the type of its numbers, or
            nothing if it has one precision. A Tripy model in place of it has its own precision; its weights
            are the PyTorch model's while it runs, and its own afterwards.
        inputs: The entry's arguments by name: arrays, tensors, constants, other objects, or dictionaries,
            lists and tuples of them. The first array has the batch first. The names are the PyTorch model's.
            Options name a nested array by its path, such as `payloads.timestamps`. Both sides get the same
            objects; the port gets Tripy's types and devices in place of PyTorch's.
        options: The attributes of `Case` in `OPTIONS`, and three that describe the inputs:
            `mask`: name of the (B, N) input that is true or nonzero at valid positions, or a function from
            the inputs to this mask. Results with an axis of N count at valid positions.
            `poison`: names of the inputs (B, N, ...) that get garbage where the mask is false, or a function
            from the inputs and a seed to such inputs. Garbage may not change a valid result.
            `dynamic`: least sizes by input and axis, such as `{"idx": {0: 1}}`. The port is compiled for the
            range up to the sizes of the inputs, and runs at the least sizes, 2, the middle and the largest.

    Raises:
        UserError: A model, an input or an option that the comparison cannot use.
    """

    one_sided = True
    states_rows = False

    @from_here
    def __init__(
        self,
        torch_model: torch.nn.Module | Callable[[], torch.nn.Module],
        port: nvtripy.Module | Callable[..., nvtripy.Module],
        inputs: Mapping[str, Any],
        **options: Any,
    ) -> None:
        check_names("option", options, OPTIONS)
        options = dict(options)
        mask, poison, dynamic = (options.pop(name, None) for name in ("mask", "poison", "dynamic"))
        self._torch_model, self._port = _checked_models(torch_model, port)
        self._arrays, self._arguments = _arrays_and_arguments(inputs)
        self.name = type(torch_model).__name__ if _is_torch_module(torch_model) else "model"
        for name, value in options.items():
            setattr(self, name, value)
        if not (isinstance(self.name, str) and re.fullmatch("[A-Za-z][A-Za-z0-9_]*", self.name)):
            raise UserError(
                "name", self.name, "is no name", "use letters, digits and underscores, a letter first"
            )
        self.batch_size = self.batch_size_of(self._arrays)
        self._mask = checked_mask(mask, self._arrays)
        self._poison = checked_poison(poison, self._mask, self._arrays)
        self._dynamic = checked_dynamic(dynamic, self._arrays)
        self.check_options()
        self._check_arguments()

    def _check_arguments(self) -> None:
        """Raises `UserError` for inputs that the entry of the PyTorch model does not take."""
        model = self._torch_model if _is_torch_module(self._torch_model) else self.build_reference()
        require_fitting(model, self.entry, self._arguments)

    def build_reference(self) -> torch.nn.Module:
        if not _is_torch_module(self._torch_model):
            model = _built("torch_model", self._torch_model)
            if not _is_torch_module(model):
                raise _no_model("torch_model", model, "torch.nn.Module")
            require_plain("torch_model", self.name, model)
            return model
        try:
            return copy.deepcopy(self._torch_model)
        except Exception as error:
            raise UserError(
                "torch_model", self.name, f"cannot be copied ({error})", "give a function that builds it"
            ) from error

    def build_port(self, dtype: nvtripy.dtype) -> nvtripy.Module:
        if _is_tripy_module(self._port):
            return self._port
        port = _built("port", self._port, *_dtype_argument(self._port, dtype))
        if not _is_tripy_module(port):
            raise _no_model("port", port, "nvtripy.Module")
        return port

    def precision_of_port(self) -> str | None:
        """Name of the precision of a live Tripy model; None for a function that builds one in any."""
        import nvtripy as tp

        # It imports PyTorch, which help and completion do without.
        from parity.base.precision import DEFAULT_PRECISIONS, PRECISIONS, dtype_name

        if not _is_tripy_module(self._port) and _dtype_argument(self._port, "dtype"):
            return None
        types = {tensor.dtype for tensor in self.build_port(tp.float32).state_dict().values()}
        names = {getattr(tp, dtype_name(PRECISIONS[name].dtype)): name for name in DEFAULT_PRECISIONS}
        known = [name for dtype, name in names.items() if dtype in types]
        if len(known) > 1:
            raise UserError(
                "port", " and ".join(known), "are the types of its tensors", "build it in one type"
            )
        return known[0] if known else "fp32"

    @contextlib.contextmanager
    def port_restored(self) -> Iterator[None]:
        """Behind the body, a live Tripy model has its own weights again."""
        if not _is_tripy_module(self._port):
            yield
            return
        own = self._port.state_dict()
        try:
            yield
        finally:
            self._port.load_state_dict(
                {name: tensor for name, tensor in own.items() if _is_tensor(tensor)}, strict=False
            )

    def make_inputs(self) -> Arrays:
        if self.batch_size != self.batch_size_of(self._arrays):
            raise UserError(
                "batch_size", self.batch_size, "is not that of the inputs", "give inputs of this many rows"
            )
        return self._arrays

    def plan(self) -> Iterable[PlannedBatch]:
        shapes = [{name: array.shape for name, array in self._arrays.items()}]
        for name, size_of in _SIZES.items():
            arrays = cut(self._arrays, self._dynamic, size_of)
            if (sizes := {path: array.shape for path, array in arrays.items()}) not in shapes:
                shapes.append(sizes)
                yield PlannedBatch(name, f"the {name} of dynamic axes", arrays)

    def batch_size_of(self, arrays: Arrays) -> int:
        first = next(iter(arrays.values()))
        return first.shape[0] if first.ndim else 1

    def rows(self, arrays: Arrays, rows: slice | np.ndarray) -> Arrays | None:
        # By default the port has the sizes of the given batch. A square array relates its rows to each other.
        batch = self.batch_size_of(arrays)
        is_dynamic = all(
            0 in (axes := self._dynamic.get(name, {}))
            and not any(axis and array.shape[axis] == batch for axis in axes)
            for name, array in arrays.items()
        )
        return super().rows(arrays, rows) if is_dynamic else None

    def dynamic_sizes(self, arrays: Arrays) -> Mapping[int | tuple[str, int], int]:
        return {(name, axis): least for name, axes in self._dynamic.items() for axis, least in axes.items()}

    def dynamic_axes(self, arrays: Arrays) -> Mapping[str, tuple[str, int]]:
        return {name: ("batch", axes[0]) for name, axes in self._dynamic.items() if 0 in axes}

    def cannot_be_asked(self) -> Mapping[str, str]:
        reasons: dict[str, str] = {}
        for path, leaf in leaves(self._arguments):
            if not isinstance(leaf, _ArrayName):
                continue
            argument = dotted(tuple("*" if isinstance(step, int) else step for step in path))
            least = self._dynamic.get(leaf.name, {})
            for axis, size in enumerate(self._arrays[leaf.name].shape):
                place = f"entry {self.entry}({argument}), axis {axis}"
                if axis in least:
                    reasons[place] = f"dynamic allows {least[axis]} to {size}"
                elif axis > 0:
                    reasons[place] = "dynamic does not name this axis: the port is compiled for one size"
        return reasons

    def valid_rows(self, arrays: Arrays) -> Mapping[int, np.ndarray]:
        mask = self._mask(arrays) if self._mask is not None else None
        return {} if mask is None else {mask.shape[1]: mask}

    def poison(self, arrays: Arrays, seed: int) -> Arrays | None:
        return self._poison(arrays, seed) if self._poison is not None else None

    def entry_arguments(self, arrays: Arrays) -> dict[str, Any]:
        return map_tree(
            self._arguments, lambda leaf: arrays[leaf.name] if isinstance(leaf, _ArrayName) else leaf
        )

    def named_outputs(self, results: Any) -> dict[str, Any]:
        # As of a module: a tensor alone in a tuple or a dictionary is a tensor, and None is no output.
        outputs = {dotted(path): leaf for path, leaf in leaves(results) if leaf is not None}
        names = ["output"] if len(outputs) == 1 else list(outputs)
        return {f"{self.entry}.{name}": leaf for name, leaf in zip(names, outputs.values(), strict=True)}

    def call(self, model: Any, arguments: Mapping[str, Any]) -> Any:
        if _is_tripy_module(model) and not _takes(model, self.entry, arguments):
            # The port's parameters have other names: the order decides.
            return entry_of(model, self.entry)(*arguments.values())
        return super().call(model, arguments)


def _checked_models(torch_model: Any, port: Any) -> tuple[Any, Any]:
    if _is_tripy_module(torch_model) or _is_torch_module(port):
        given = torch_model if isinstance(torch_model, type) else type(torch_model)
        raise UserError("torch_model", given.__name__, "is the port", "give the PyTorch model first")
    if not _is_torch_module(torch_model) and not callable(torch_model):
        raise UserError("torch_model", torch_model, "is no torch.nn.Module", "give the PyTorch model")
    if needed := _needed_arguments(torch_model):
        problem = f"is no torch.nn.Module, and needs {', '.join(needed)}"
        fix = "give the PyTorch model, or a function without arguments that builds it"
        raise UserError("torch_model", _name_of(torch_model), problem, fix)
    if _is_torch_module(torch_model):
        require_plain("torch_model", type(torch_model).__name__, torch_model)
    if not _is_tripy_module(port) and not callable(port):
        raise UserError(
            "port", port, "is no nvtripy.Module", "give a Tripy model, or a function that builds it"
        )
    return torch_model, port


def _built(field: str, build: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a user's function that builds a model. Raises `UserError` where it ends otherwise."""
    with users_code(field, _name_of(build), "cannot be built"):
        return build(*arguments)


def _name_of(build: Callable[..., Any]) -> str:
    return getattr(build, "__qualname__", type(build).__name__)


def _needed_arguments(build: Any) -> list[str]:
    """Names of the arguments that a function needs; none of a model, and where Python cannot tell."""
    if _is_torch_module(build):
        return []
    try:
        parameters = inspect.signature(build).parameters.values()
    except (TypeError, ValueError):
        return []
    return [
        x.name for x in parameters if x.default is x.empty and x.kind not in (x.VAR_POSITIONAL, x.VAR_KEYWORD)
    ]


def _no_model(field: str, value: Any, model: str) -> UserError:
    returned, fix = in_place_of_model(value, model)
    return UserError(field, value, f"is no {model}: the function returns {returned}", fix)


def _is_torch_module(value: Any) -> bool:
    import torch

    return isinstance(value, torch.nn.Module)


def _is_tripy_module(value: Any) -> bool:
    import nvtripy

    return isinstance(value, nvtripy.Module)


def _is_tensor(value: Any) -> bool:
    import nvtripy

    return isinstance(value, nvtripy.Tensor)


def _dtype_argument(build: Callable[..., Any], dtype: Any) -> tuple[Any, ...]:
    """The type for a function that takes one argument, none for a function that needs none."""
    try:
        parameters = inspect.signature(build).parameters.values()
    except ValueError as error:
        # A function of C, such as `dict`.
        problem = f"has no parameters that Python can tell ({error})"
        raise UserError("port", build, problem, "give a function such as lambda dtype: ...") from error
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in positional if p.default is p.empty]
    if len(needed) > 1:
        names = ", ".join(p.name for p in needed)
        raise UserError(
            "port", build, f"needs {names}", "give a function of the type alone, such as lambda dtype: ..."
        )
    takes_one = bool(needed) or bool(positional and positional[0].name == "dtype")
    return (dtype,) if takes_one else ()


@dataclass(frozen=True)
class _ArrayName(Leaf):
    """The place of an array among the arguments of the entry."""

    name: str


def _arrays_and_arguments(inputs: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays of the inputs by dotted path, and the arguments with names in their places."""
    if not isinstance(inputs, Mapping):
        raise UserError("inputs", type(inputs).__name__, "is no dictionary", "give arguments by name")
    for name in inputs:
        if not isinstance(name, str):
            raise UserError("inputs", repr(name), "is no name of an argument", "give arguments by name")
    arrays: dict[str, np.ndarray] = {}
    places: list[Any] = []
    for path, value in leaves(dict(inputs)):
        try:
            array = _array_of(value)
        except (TypeError, RuntimeError) as error:
            # Sparse, nested, quantised, fake tensors, and those of the device meta.
            problem = f"is no dense tensor of numbers that NumPy has ({told(error)})"
            fix = "give a NumPy array or a dense PyTorch tensor"
            raise UserError(f"inputs[{dotted(path)!r}]", type(value).__name__, problem, fix) from error
        places.append(value if array is None else _ArrayName(dotted(path)))
        if array is not None:
            arrays[dotted(path)] = array
        elif any(hasattr(value, name) for name in ("__array__", "__dlpack__")):
            raise UserError(
                f"inputs[{dotted(path)!r}]",
                type(value).__name__,
                "is an array of another library",
                "give a NumPy array or a PyTorch tensor",
            )
    if not arrays:
        raise UserError("inputs", inputs, "has no array", "give the entry's arguments as arrays by name")
    empty = [name for name, array in arrays.items() if array.size == 0]
    if empty:
        raise UserError(
            f"inputs[{empty[0]!r}]", arrays[empty[0]].shape, "has no element", "give at least one"
        )
    in_order = iter(places)
    return arrays, map_tree(dict(inputs), lambda _: next(in_order))


def _array_of(value: Any) -> np.ndarray | None:
    """A tensor or an array as an array; None for anything else."""
    import torch

    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return (value.float() if value.dtype is torch.bfloat16 else value).numpy()
    return value if isinstance(value, np.ndarray) else None


def _takes(model: Any, entry: str, names: Sequence[str] | Mapping[str, Any]) -> bool:
    """Whether the entry of a model takes keyword arguments of these names."""
    own = (
        type(model).__call__ if entry == "forward" and overrides_call(model) else getattr(type(model), entry)
    )
    parameters = inspect.signature(own).parameters
    return any(p.kind is p.VAR_KEYWORD for p in parameters.values()) or set(names) <= set(parameters)
