"""Run one module of the port, or the whole port, on failing inputs and compare it with a float64 oracle.

This folder holds all data and code except the packages of the project's requirements.
Exit code 1: it fails, 0: it passes.
"""

import json
import sys
from pathlib import Path

import nvtripy as tp
import torch
from safetensors.torch import load_file

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from parity.base.trees import decode_tree, leaves
from parity.capture.values import decode_value
from parity.case import CaseReference, load_case
from parity.runners.tripy.compiled import tripy_value
from parity.runners.tripy.pairing import paired_modules, set_parameters, taken

problem = json.loads((HERE / "problem.json").read_text())
weights, inputs, expected = (
    load_file(HERE / f"{name}.safetensors") for name in ("weights", "inputs", "expected")
)


def leaf(value):
    if isinstance(value, dict) and set(value) == {"tensor"}:
        return tp.Tensor(inputs[value["tensor"]])
    return tripy_value(decode_value(value))


case = load_case(CaseReference(**problem["case"]))
model = case.build_port(getattr(tp, problem["dtype"]))
set_parameters(case, model, weights)
args, kwargs = decode_tree(problem["args"], leaf), decode_tree(problem["kwargs"], leaf)
if problem["module"]:
    module = paired_modules(case, model)[problem["module"]]
    if case.one_sided:
        args, kwargs = taken(module, args, kwargs)
    call = module if problem["method"] == "forward" else getattr(module, problem["method"])
    result = call(*args, **kwargs)
else:
    # Outputs of the model are numbered.
    result = list(case.named_outputs(case.call(model, kwargs)).values())
results = {
    "".join(f"[{key}]" for key in path): tensor for path, tensor in leaves(result) if tensor is not None
}
if len(results) > 1:
    results = {"": results[problem["result"]]}
(result,) = results.values()

counts = expected["counts"]
oracle = expected["oracle"][counts]
port = torch.from_dlpack(result).cpu().double().reshape(counts.shape)
difference = port[counts] - oracle
errors = {
    "l2": float(difference.norm() / oracle.norm()),
    "largest": float(difference.abs().max() / oracle.abs().max()),
    "scale_error": abs(float(difference @ oracle / (oracle @ oracle))),
}
print(f"{problem['module'] or 'the whole model'} ({problem['kind']}), {problem['dtype']}")
for name, error in errors.items():
    print(f"  {name:<11} {error:.3e}, limit {problem['limit'][name]:.3e}")
for reason in problem["explanation"]:
    print(f"  {reason}")
sys.exit(any(not error <= problem["limit"][name] for name, error in errors.items()))
