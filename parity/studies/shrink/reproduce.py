"""Run one module of the port, or the whole port, on failing inputs and compare it with a float64 oracle.

This folder holds all data and code except the packages of the project's requirements.
Exit code 1: it fails, 0: it passes, 2: the folder's data are not whole, or do not fit the port.
"""

import sys
from pathlib import Path

import nvtripy as tp
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from parity.base.code import file_digest
from parity.base.errors import UserError
from parity.base.sealed import read_sealed
from parity.base.trees import decode_tree, map_tree
from parity.capture.captures import tensor_leaves
from parity.capture.outputs import flat_outputs, output_of
from parity.capture.tripy_hooks import is_tripy_tensor
from parity.capture.values import decode_value
from parity.case import CaseReference, load_case
from parity.case.contract import outputs_by_tap
from parity.runners.tripy.compiled import tripy_value
from parity.runners.tripy.pairing import paired_modules, received_arguments, set_parameters

FIX = "restore it, or shrink again"


def main():
    """Compare, print, and return the exit code. Raises `UserError` for data that are not whole."""
    problem = described()
    weights, inputs, expected = (
        tensors(name, problem["digests"][name]) for name in ("weights", "inputs", "expected")
    )
    counts = expected["counts"]
    oracle = expected["oracle"][counts]
    port = port_result(problem, weights, inputs).reshape(counts.shape)
    difference = port[counts] - oracle
    errors = {
        "l2": float(difference.norm() / oracle.norm()),
        "largest": float(difference.abs().max() / oracle.abs().max()),
        "scale_error": abs(float(difference @ oracle / (oracle @ oracle))),
    }
    print(f"{problem['module'] or 'the whole model'} ({problem['kind']}), {problem['dtype']}")
    for name, error in errors.items():
        print(f"  {name:<11} {error:.3e}, limit {problem['limit'][name]:.3e}")
    is_wrong = any(not error <= problem["limit"][name] for name, error in errors.items())
    # The reasons are of the port that was shrunk.
    for reason in problem["explanation"] if is_wrong else ("within its limits",):
        print(f"  {reason}")
    return int(is_wrong)


def described():
    """The call, its limits, and the digests of the other files."""
    path = HERE / "problem.json"
    try:
        return read_sealed(path)
    except OSError as error:
        raise UserError("problem", str(path), f"cannot be read ({error.strerror})", FIX) from error
    except ValueError as error:
        raise UserError("problem", str(path), "is not as it was written", FIX) from error


def tensors(name, digest):
    """The tensors of a file, as they were written."""
    path = HERE / f"{name}.safetensors"
    try:
        is_whole = file_digest(path) == digest
        content = load_file(path)
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error})"
        raise UserError(name, str(path), problem, FIX) from error
    except SafetensorError as error:
        problem = f"is cut short or not safetensors ({error})"
        raise UserError(name, str(path), problem, FIX) from error
    if not is_whole:
        for key, tensor in content.items():
            if tensor.isnan().any():
                place = tensor.isnan().nonzero()[0].tolist()
                raise UserError(f"{name}[{key!r}]", "", f"is nan at {place} in {path}", FIX)
        raise UserError(name, str(path), "is not as it was written", FIX)
    return content


def on_device(arguments):
    """Tripy's tensors in place of PyTorch's."""
    return map_tree(arguments, lambda leaf: tp.Tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf)


def port_result(problem, weights, inputs):
    """The port's result in float64, on the CPU."""

    dtype = getattr(torch, problem["dtype"])

    def leaf(value):
        if isinstance(value, dict) and set(value) == {"tensor"}:
            return inputs[value["tensor"]]
        return decode_value(value)

    def host(value):
        is_number = isinstance(value, torch.Tensor) and value.is_floating_point()
        return tripy_value(value.to(dtype) if is_number else value)

    case = load_case(CaseReference(**problem["case"]))
    model = case.build_port(getattr(tp, problem["dtype"]))
    set_parameters(case, model, weights)
    args, kwargs = decode_tree(problem["args"], leaf), decode_tree(problem["kwargs"], leaf)
    if problem["module"]:
        module = paired_modules(case, model)[problem["module"]]
        inside = {name: (axes, getattr(torch, own)) for name, (axes, own) in problem["inside"].items()}
        args, kwargs = map(on_device, received_arguments(case, module, args, kwargs, inside, host))
        call = module if problem["method"] == "forward" else getattr(module, problem["method"])
        results = dict(tensor_leaves(call(*args, **kwargs), is_tripy_tensor))
    else:
        results = flat_outputs(outputs_by_tap(case, case.call(model, on_device(map_tree(kwargs, host)))))
    name = problem["result"]
    if name not in results:
        known = ", ".join(repr(known) for known in results) or "nothing"
        raise UserError("result", repr(name), f"is none of the port's results, {known}", FIX)
    result = results[name]
    if is_tripy_tensor(result):
        return torch.from_dlpack(result).cpu().double()
    return output_of(name, result, dtype).double()


try:
    code = main()
except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    code = 2
sys.exit(code)
