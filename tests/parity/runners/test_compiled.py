"""Executables of the port: arguments that are no inputs."""

import nvtripy as tp
import pytest
import torch

from parity.runners.tripy.compiled import Compiled, to_device


@pytest.mark.parametrize(("arguments", "result"), [({"x": None}, 1.0), ({"x": torch.ones(2)}, 2.0)])
def test_a_function_runs_with_and_without_tensors_in_its_argument(arguments, result):
    def function(arguments):
        ones = tp.ones((2,))
        return {"sum": ones if arguments["x"] is None else ones + arguments["x"]}

    compiled = Compiled(function, arguments, {})
    on_device = {name: value if value is None else to_device(value) for name, value in arguments.items()}
    assert compiled.on_host(on_device)["sum"].tolist() == [result, result]
