"""Inputs with which the reference raises or returns NaN or Inf: their names, where a trial proves it."""

import numpy as np
import pytest
import torch

from parity.base.errors import UserError
from parity.base.precision import PRECISIONS
from parity.case import Case
from parity.inputs.weights import case_weights
from parity.runners.torch.eager import TorchRunner
from parity.runners.torch.inputs_at_fault import raising_inputs

ROWS, IDS, WIDTH = 7, 5, 4


class Model(torch.nn.Module):
    """Looks up two lists of ids, and adds numbers at the places of a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(IDS, WIDTH)
        self.layer = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, ids_B, others_B, mask_B, x_BD):
        x_BD = self.layer(torch.where(mask_B.unsqueeze(1), x_BD, x_BD - 1.0))
        return self.table(ids_B) + self.table(others_B) + x_BD


class Inputs(Case):
    """The model with some inputs in the place of right ones."""

    name = "inputs"
    batch_size = ROWS

    def __init__(self, **others) -> None:
        self._others = others

    def build_reference(self):
        return Model()

    def build_port(self, dtype):
        raise NotImplementedError

    def make_inputs(self):
        rng = np.random.default_rng(self.seed)
        return {
            "ids_B": rng.integers(0, IDS, ROWS),
            "others_B": rng.integers(0, IDS, ROWS),
            "mask_B": rng.integers(0, 2, ROWS).astype(bool),
            "x_BD": rng.standard_normal((ROWS, WIDTH), dtype=np.float32),
        } | self._others


RIGHT = Inputs().make_inputs()
X = RIGHT["x_BD"]


def _with(place, value):
    x = X.copy()
    x[place] = value
    return x


def _record(case, precision="fp32"):
    runner = TorchRunner(torch.device("cpu"))
    runner.load(case, PRECISIONS[precision], case_weights(case)[0])
    return runner.record(case.make_inputs())


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"ids_B": RIGHT["ids_B"].astype(np.float32)}, "inputs.ids_B: float32 is no type that the reference"),
        ({"ids_B": RIGHT["ids_B"].astype(np.int16)}, "give ids_B as int64 in the case's inputs"),
        (
            {name: RIGHT[name].astype(np.float64) for name in ("ids_B", "others_B")},
            "give ids_B and others_B as int64 in the case's inputs",
        ),
        (
            {"mask_B": RIGHT["mask_B"].astype(np.float32)},
            "with bool it runs; give mask_B as bool in the case",
        ),
        ({"x_BD": X[:-2]}, "inputs.x_BD: 5 rows are not the 7 of others, and the reference raises (Runtime"),
        ({"x_BD": X[:-2]}, "(ids_B 7, others_B 7, mask_B 7, x_BD 5)"),
        ({"x_BD": _with((2, 1), np.nan)}, "inputs.x_BD[2, 1]: nan makes forward.output of the reference NaN"),
        ({"x_BD": _with(3, -np.inf)}, "inputs.x_BD[3, 0]: -inf makes forward.output of the reference NaN,"),
        ({"x_BD": _with(3, -np.inf)}, "(4 such elements); give finite numbers in the case's inputs"),
    ],
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_input_that_is_to_blame_is_named(others, message, precision):
    with pytest.raises(UserError) as caught:
        _record(Inputs(**others), precision)
    assert message in str(caught.value)


def test_an_error_that_no_other_input_removes_stays_the_reference_s():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        _record(Inputs(x_BD=X[:, :-1]))


@pytest.mark.parametrize(
    "error",
    [
        UserError("capture", "x", "cannot be written", "make room"),
        MemoryError(),
        OSError(28, "No space left"),
    ],
)
def test_what_the_machine_lacks_blames_no_input(error):
    whole = {"ids_B": RIGHT["ids_B"].astype(np.float32)}
    assert raising_inputs(whole, error, lambda arrays: {}) is None
    assert "ids_B" in str(raising_inputs(whole, RuntimeError("wrong type"), lambda arrays: {}))


class Padded(Inputs):
    """The last row is padding."""

    def named_outputs(self, results):
        return {"forward.scores": results.unsqueeze(0)}

    def batch_size_of(self, arrays):
        return 1

    def valid_rows(self, arrays):
        return {ROWS: np.arange(ROWS)[None] < ROWS - 1}


def test_nan_that_does_not_count_is_no_mistake():
    assert _record(Padded(x_BD=_with(-1, np.nan))).tensors["forward.scores"].isnan().any()
    with pytest.raises(UserError, match=r"inputs.x_BD\[5, 0\]: nan makes forward.scores"):
        _record(Padded(x_BD=_with(-2, np.nan)))


class Behind(Inputs):
    """The reference with a function behind it, of its result and x."""

    def __init__(self, function, **others):
        super().__init__(**others)
        self.function = function

    def build_reference(self):
        model = Model()
        model.forward = lambda **inputs: self.function(Model.forward(model, **inputs), inputs["x_BD"])
        return model


def test_infinity_that_a_mask_brings_into_a_result_can_be_compared():
    masked = Behind(lambda result, x: x.clone(), x_BD=_with(3, -np.inf))
    assert _record(masked).tensors["forward.output"][3].isneginf().all()


def test_nan_with_any_input_is_no_mistake_of_the_input():
    _record(Behind(lambda result, x: result * 0.0 / 0.0, x_BD=_with(0, np.inf)))
