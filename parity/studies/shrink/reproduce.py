"""Run one module of the port, or the whole port, on failing inputs and compare it with a float64 oracle.

This folder holds all data and code except the packages of the project's requirements.
Exit code 1: it fails, 0: it passes.
"""

import json
import re
import sys
from pathlib import Path

import nvtripy as tp
import torch
from safetensors.torch import load_file

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from parity.case import CaseReference, load_case
from parity.runners.tripy.pairing import paired_modules, set_parameters, taken

problem = json.loads((HERE / "problem.json").read_text())
weights, inputs, expected = (
    load_file(HERE / f"{name}.safetensors") for name in ("weights", "inputs", "expected")
)


def tree(value):
    if isinstance(value, dict):
        if set(value) == {"tensor"}:
            return tp.Tensor(inputs[value["tensor"]])
        return {key: tree(item) for key, item in value.items()}
    return [tree(item) for item in value] if isinstance(value, list) else value


case = load_case(CaseReference(**problem["case"]))
model = case.build_port(getattr(tp, problem["dtype"]))
set_parameters(case, model, weights)
args, kwargs = tree(problem["args"]), tree(problem["kwargs"])
if problem["module"]:
    module = paired_modules(case, model)[problem["module"]]
    if case.one_sided:
        args, kwargs = taken(module, args, kwargs)
    call = module if problem["method"] == "forward" else getattr(module, problem["method"])
    result = call(*args, **kwargs)
else:
    result = case.call(model, kwargs)
for key in re.findall(r"\[([^\]]*)\]", problem["result"]):
    result = result[int(key)] if key.isdigit() else result[key]
if isinstance(result, (list, tuple)):
    (result,) = (tensor for tensor in result if tensor is not None)

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
