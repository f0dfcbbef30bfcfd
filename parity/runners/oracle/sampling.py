"""Rounding samples, many at once: one pass of a model in which rounded tensors have an axis of samples.

A rounded tensor is a `Samples`. The model sees the shape of one sample; all samples lie along a leading axis.
Every operation on it runs once, under `torch.func.vmap`, for all samples. Its errors are drawn for every
element of every sample, so that samples are independent, as in passes of their own.

A tensor without a rounding is equal in all samples, and exists once: inputs, parameters, indices, masks. Its
first rounding makes it a `Samples`, be it of the batch or of parameters alone. A bias that a model computes
once for all rows has other errors in every sample.

Some models cannot run so (`NotBatchable`). A branch or a shape may depend on a rounded number. A model may
write a rounded number into a tensor that exists once. PyTorch cannot vectorize every operation. Samples of
such a model are taken one by one, with the same distribution, and the runner's log has the reason.

A model may keep a tensor of a pass for later calls, such as a table in a cache of Python's. A later pass
takes as many of its samples as it needs, and code outside of any pass takes the first one.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._C._functorch import _add_batch_dim, _remove_batch_dim, _set_vmap_fallback_warning_enabled
from torch._functorch.vmap import lazy_load_decompositions, vmap_increment_nesting

from parity.base.dispatch import EachOperation, largest_bytes, mapped
from parity.base.precision import Precision
from parity.capture.terms import terms
from parity.case.users_code import line_of
from parity.runners.oracle.exactness import exact_elements, is_wide
from parity.runners.oracle.own_types import OwnResults
from parity.runners.oracle.rounding import Errors, Roundings, norm_of_terms, sum_before_bias

CHUNK_BYTES = 1 << 24
"""Bytes of the largest tensor of a pass: samples are taken together up to it."""
_LOG = logging.getLogger(__name__)
_THREAD = threading.local()
"""Of each thread, `is_sampling`: whether it is inside a pass."""


class NotBatchable(Exception):
    """An operation cannot run for all samples at once; the message names it."""


class Samples(torch.Tensor):
    """A tensor of one sample's shape that holds S of them.

    Attributes:
        values: (S, ...).
    """

    values: torch.Tensor

    @staticmethod
    def __new__(cls: type[Samples], values: torch.Tensor) -> Samples:
        sample = torch.Tensor._make_wrapper_subclass(
            cls, values.shape[1:], strides=values.stride()[1:], dtype=values.dtype, device=values.device
        )
        sample.values = values
        return sample

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if getattr(_THREAD, "is_sampling", False):
            raise NotBatchable(f"{func} outside of the pass")
        return func(*mapped(_first, args), **mapped(_first, kwargs or {}))


class RoundingSamples(EachOperation):
    """Inside, float64 results have errors, independent ones in each of `count` samples.

    Args:
        errors: The source of the errors.
        count: S.

    Raises:
        NotBatchable: An operation in the body cannot run for all samples at once.
    """

    def __init__(self, errors: Errors, count: int) -> None:
        super().__init__()
        self._errors = errors
        self._count = count

    def __enter__(self) -> RoundingSamples:
        # Inside a dispatch mode, PyTorch switches function transforms off; `_for_all` switches them on again.
        self._outside = (
            torch._C._dispatch_tls_local_include_set(),
            torch._C._dispatch_tls_local_exclude_set(),
        )
        # An operation without a batching rule runs once for each sample: no news for users. Filters of
        # Python's warnings would belong to all threads of the process.
        _set_vmap_fallback_warning_enabled(False)
        _THREAD.is_sampling = True
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        _THREAD.is_sampling = False
        super().__exit__(*exception)

    def operation(self, func: Any, args: tuple, kwargs: dict) -> Any:
        name = func.overloadpacket.__name__
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise NotBatchable(f"{func} draws random numbers of its own")
        places = [*_samples_in((*args, *kwargs.values()))]
        if any(len(kept.values) != self._count for kept in places):
            if func._schema.is_mutable:
                raise NotBatchable(f"{func} has a tensor that the model keeps from another call")
            args, kwargs = mapped(self._of_this_pass, args), mapped(self._of_this_pass, kwargs)
            places = [*_samples_in((*args, *kwargs.values()))]
        if places and name == "_local_scalar_dense":
            return _common_number(args[0], func)
        in_place = func._schema.is_mutable
        if in_place and not (name.endswith("_") and torch.Tag.inplace_view not in func.tags):
            raise NotBatchable(f"{func} writes into an argument")
        operands = [arg for arg in args if is_wide(arg)]
        if in_place:
            # The operation overwrites its argument.
            operands = [
                Samples(arg.values.clone()) if isinstance(arg, Samples) else arg.clone() for arg in operands
            ]

        def run(values: Sequence[torch.Tensor]) -> tuple[Any, ...]:
            own_args, own_kwargs = args, kwargs
            if values:
                in_order = iter(values)
                own_args = tuple(_with_values(arg, in_order) for arg in args)
                own_kwargs = {key: _with_values(arg, in_order) for key, arg in kwargs.items()}
            norm = norm_of_terms(func, name, own_args, own_kwargs)
            result = func(*own_args, **own_kwargs)
            before = sum_before_bias(name, own_args, own_kwargs, result)
            return (result, *(size for size in (norm, before) if size is not None))

        if not places:
            result, *sizes = run(())
        else:
            result, *sizes = self._for_all(run, [samples.values for samples in places], func)
        outputs = result if isinstance(result, (tuple, list)) else (result,)
        count = terms(func, args, kwargs, result).count
        # Every sum with a bias has a norm.
        norm, before = (*sizes, None, None)[:2]
        exact = functools.partial(exact_elements, name, args, kwargs)
        results = [
            self._rounded(name, output, operands, norm, before, count, in_place, exact) for output in outputs
        ]
        if in_place:
            return args[0]
        return type(result)(results) if isinstance(result, (tuple, list)) else results[0]

    def _of_this_pass(self, leaf: Any) -> Any:
        """A tensor that the model keeps from another pass, with the samples of this one."""
        return Samples(_as_many(leaf.values, self._count)) if isinstance(leaf, Samples) else leaf

    def _for_all(
        self, run: Callable[[Sequence[torch.Tensor]], tuple], values: list[torch.Tensor], func: Any
    ) -> tuple:
        """`run` for every sample: its tensors as `Samples`, and other results, such as None, as they are.

        This is `torch.func.vmap` for the flat arguments of operations. Its nested containers and their checks
        take ten times as long as an operation on a few numbers.
        """
        count = values[0].shape[0]
        try:
            with torch._C._ForceDispatchKeyGuard(*self._outside):
                lazy_load_decompositions()
                with vmap_increment_nesting(count, "error") as level:
                    results = run([_add_batch_dim(value, 0, level) for value in values])
                    whole = mapped(lambda leaf: _of_tensor(_remove_batch_dim, leaf, level, count, 0), results)
        except RuntimeError as error:
            raise NotBatchable(f"{func}: {error}") from error
        is_view = any(returned.alias_info is not None for returned in func._schema.returns)
        return mapped(lambda leaf: _of_tensor(_samples, leaf, is_view), whole)

    def _rounded(
        self,
        name: str,
        output: Any,
        operands: list[torch.Tensor],
        norm: torch.Tensor | None,
        before_bias: torch.Tensor | None,
        count: int,
        in_place: bool,
        exact_elements: Callable[..., torch.Tensor | None],
    ) -> Any:
        if not count:
            return output
        self._errors.take_type(output, name)
        if not is_wide(output):
            return output
        if in_place and not isinstance(output, Samples):
            raise NotBatchable("a rounded number is written into a tensor that all samples share")
        values = output.values if isinstance(output, Samples) else output
        shape = torch.Size((self._count, *output.shape))
        fitting = [_aligned(operand, output.ndim) for operand in operands]
        norms = None if norm is None else _all(norm)
        exact = exact_elements(values, fitting, norms, count, self._errors.current)
        before = None if before_bias is None else _all(before_bias)
        rounded = self._errors.add(values, shape, norms, count, exact, before)
        return output if isinstance(output, Samples) else Samples(rounded)


def _as_many(values: torch.Tensor, count: int) -> torch.Tensor:
    """So many samples, of which some may repeat if there are fewer."""
    return values if len(values) == count else values[torch.arange(count) % len(values)]


def _first(leaf: Any) -> Any:
    return leaf.values[0] if isinstance(leaf, Samples) else leaf


def _samples_in(arguments: Iterable[Any]) -> Iterator[Samples]:
    """The `Samples` in arguments of an operation, which are tensors, lists of tensors, or other values."""
    for argument in arguments:
        if isinstance(argument, Samples):
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from _samples_in(argument)


def _with_values(argument: Any, values: Iterator[torch.Tensor]) -> Any:
    """An argument with the next of `values` in place of each of its `Samples`."""
    if isinstance(argument, Samples):
        return next(values)
    if isinstance(argument, (list, tuple)):
        return type(argument)(_with_values(part, values) for part in argument)
    return argument


def _of_tensor(convert: Callable[..., torch.Tensor], leaf: Any, *options: Any) -> Any:
    """A leaf of a result: a tensor converted, another value, such as None, as it is."""
    return convert(leaf, *options) if isinstance(leaf, torch.Tensor) else leaf


def _all(tensor: torch.Tensor) -> torch.Tensor:
    """The values of all samples, or the tensor that exists once."""
    return tensor.values if isinstance(tensor, Samples) else tensor


def _samples(values: torch.Tensor, is_view: bool) -> Samples:
    return Samples(values if is_view else _laid_out(values))


def _laid_out(values: torch.Tensor) -> torch.Tensor:
    """Values with the axis of samples outermost in memory: one sample has the layout of a plain tensor."""
    outermost = all(
        values.stride(0) >= stride
        for size, stride in zip(values.shape, values.stride(), strict=True)
        if size > 1
    )
    return values if outermost and values.stride(0) else values.contiguous()


def _common_number(tensor: Samples, func: Any) -> Any:
    values = tensor.values.unique()
    if values.numel() != 1:
        raise NotBatchable(f"{func} of a number that differs between samples")
    return values.item()


def _aligned(operand: torch.Tensor, axes: int) -> torch.Tensor:
    """An operand's values, with axes of size 1 behind the samples: they broadcast as one sample's do."""
    if not isinstance(operand, Samples):
        return operand
    shape = operand.values.shape
    return operand.values.reshape(shape[:1] + (1,) * max(0, axes - operand.ndim) + shape[1:])


class LargestResult(EachOperation):
    """Inside, `bytes` becomes the size of the largest new tensor of an operation."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def operation(self, func: Any, args: tuple, kwargs: dict) -> Any:
        result = func(*args, **kwargs)
        if any(returned.alias_info is not None for returned in func._schema.returns):
            return result  # a view, for instance of a large parameter
        self.bytes = max(self.bytes, largest_bytes(result))
        return result


_STATED: set[str] = set()
"""Reasons that the log has: every module of a model has the same one."""


def _state(reason: NotBatchable) -> None:
    """Log a reason once a process, with the first line of the user's code that has it."""
    if str(reason) in _STATED:
        return
    _STATED.add(str(reason))
    line = line_of(reason)
    _LOG.warning(
        "this comparison takes longer, with the same verdicts: the model runs once for each sample of the "
        "rounding errors, and not once for all, because %s%s",
        reason,
        f" ({line})" if line else "",
    )


def rounding_samples(
    arguments: Callable[[], Any],
    run: Callable[[Any], Mapping[str, torch.Tensor]],
    taps: list[str],
    precision: Precision,
    count: int,
    largest: int,
    own_types: OwnResults | None = None,
    errors_of: type[Errors] = Errors,
) -> dict[str, torch.Tensor]:
    """Samples of `taps` by name, (K, ...) each for a tap of shape (...).

    Args:
        arguments: Fresh arguments of a pass, which may overwrite them.
        run: A pass in float64: tensors by tap name, `taps` among them.
        taps: Names of the taps to sample.
        precision: The precision whose roundings the samples have.
        count: K.
        largest: Bytes of the largest tensor of a pass.
        own_types: See `Errors`.
        errors_of: The errors of a sample.

    Raises:
        OtherOperations: The pass has other operations than `own_types`.
    """
    errors = functools.partial(errors_of, precision, own_types=own_types)
    together = min(count, CHUNK_BYTES // max(1, largest))
    if together > 1:
        try:
            return _many_at_once(arguments, run, taps, errors(0), count, together)
        except NotBatchable as reason:
            _state(reason)
    samples = []
    for seed in range(count):
        fresh = arguments()
        with torch.inference_mode(), Roundings(errors(seed)):
            results = run(fresh)
        samples.append({tap: results[tap] for tap in taps})
    return {tap: torch.stack([sample[tap] for sample in samples]) for tap in taps} if samples else {}


def _many_at_once(
    arguments: Callable[[], Any],
    run: Callable[[Any], Mapping[str, torch.Tensor]],
    taps: list[str],
    errors: Errors,
    count: int,
    together: int,
) -> dict[str, torch.Tensor]:
    chunks = []
    for start in range(0, count, together):
        size = min(together, count - start)
        fresh = arguments()
        errors.begin(size)
        with torch.inference_mode(), RoundingSamples(errors, size):
            results = run(fresh)
        chunks.append({tap: _values(results[tap], size) for tap in taps})
    return {tap: torch.cat([chunk[tap] for chunk in chunks]) for tap in taps}


def _values(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """All samples of a tap. A tensor without a rounding is equal in all."""
    if isinstance(tensor, Samples):
        return _as_many(tensor.values, count)
    return tensor.expand(count, *tensor.shape)
