"""A policy's patterns, and the casts that they put into the port's graph."""

import functools

import pytest
import torch

from cases.shipped import load_case
from parity.base.errors import UserError
from parity.base.precision import PRECISIONS
from parity.base.precision_policy import CASTABLE, Policy, compact, owner_of, read_policy
from parity.capture.names import TapName
from parity.inputs.arrays import make_inputs
from parity.inputs.weights import case_weights
from parity.runners.tripy.policy import TripyPolicyRunner
from parity.runners.tripy.runner import TripyRunner

PATHS = ("_hstu", "_hstu._l.0", "_hstu._l.0._attn", "_hstu._l.1", "_hstu._l.1._attn", "_emb")


def resolved(*patterns):
    return Policy(patterns).resolve(PATHS)


def lowered(*patterns):
    """Paths that get another precision than fp32."""
    return {path for path, name in resolved(*patterns).items() if name != "fp32"}


def test_what_no_pattern_covers_stays_in_fp32():
    assert resolved(("_emb", "fp16")) == dict.fromkeys(("", *PATHS), "fp32") | {"_emb": "fp16"}


def test_the_star_alone_is_the_model_with_all_that_is_in_it():
    assert resolved(("*", "bf16")) == dict.fromkeys(("", *PATHS), "bf16")


def test_a_pattern_covers_what_is_inside():
    assert lowered(("_hstu._l.0", "fp16")) == {"_hstu._l.0", "_hstu._l.0._attn"}


def test_a_star_stays_within_one_name():
    assert lowered(("_hstu._l.*", "fp16")) == set(PATHS) - {"_hstu", "_emb"}
    assert lowered(("_e*", "fp16")) == {"_emb"}
    with pytest.raises(UserError, match=r"_hstu\.\* matches no module"):
        resolved(("_hstu.*", "fp16"))


def test_a_dot_is_no_wildcard():
    with pytest.raises(UserError, match="matches no module"):
        Policy((("_hstu._l.0", "fp16"),)).resolve(["_hstu", "_hstu__l_0"])


def test_the_innermost_module_that_is_matched_decides_whatever_the_order():
    inner, outer = ("_hstu._l.*._attn", "fp32"), ("_hstu", "fp16")
    assert resolved(inner, outer) == resolved(outer, inner)
    assert lowered(inner, outer) == {"_hstu", "_hstu._l.0", "_hstu._l.1"}


def test_of_patterns_of_one_module_the_first_decides():
    one, all_of_them = ("_hstu._l.0", "bf16"), ("_hstu._l.*", "fp16")
    assert resolved(one, all_of_them)["_hstu._l.0"] == "bf16"
    assert resolved(all_of_them, one)["_hstu._l.0"] == "fp16"


def test_a_pattern_of_nothing_names_the_closest_module():
    with pytest.raises(UserError, match="did you mean _emb"):
        resolved(("_embd", "fp16"))


@pytest.mark.parametrize("name", ["fp8", "tf32", "float16"])
def test_an_unknown_precision_is_refused(name):
    with pytest.raises(UserError, match="use one of fp32, fp16, bf16"):
        Policy((("_emb", name),))


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("bf16+fp16", "bf16+fp16 names two precisions; give one precision, one scheme, or one of each"),
        ("int8_channel+bf16+fp8_channel", "names two schemes"),
        ("bf16+bf16", "names two precisions"),
        ("+", "'' is no precision of a module"),
    ],
)
def test_a_pattern_has_at_most_one_of_each(value, problem):
    with pytest.raises(UserError) as caught:
        Policy((("_emb", value),))
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "holds no patterns"),
        ("- fp16", "holds no patterns"),
        ("a: [", "cannot be read"),
        ("a: fp16\na: fp32", "given twice"),
    ],
)
def test_a_file_that_is_no_policy_is_refused(tmp_path, text, problem):
    (tmp_path / "policy.yaml").write_text(text)
    with pytest.raises(UserError, match=problem):
        read_policy(tmp_path / "policy.yaml")


def test_a_policy_is_read_from_yaml_or_json_in_order(tmp_path):
    for text in ('"_hstu._l.*": fp32\n"*": bf16\n', '{"_hstu._l.*": "fp32", "*": "bf16"}'):
        (tmp_path / "policy").write_text(text)
        assert read_policy(tmp_path / "policy").patterns == (("_hstu._l.*", "fp32"), ("*", "bf16"))


@pytest.mark.parametrize("number", range(0, 3 ** (len(PATHS) + 1), 41))
def test_a_short_policy_says_the_same(number):
    names = [CASTABLE[number // 3**place % 3] for place in range(len(PATHS) + 1)]
    wanted = dict(zip(("", *PATHS), names, strict=True))
    assert compact(wanted).resolve(PATHS) == wanted


def test_a_short_policy_is_short():
    wanted = {path: "fp32" if path.endswith("_attn") else "fp16" for path in ("", *PATHS)}
    assert compact(wanted).patterns == (("*", "fp16"), ("_hstu._l.*._attn", "fp32"))


def test_a_parameter_belongs_to_the_innermost_module():
    assert owner_of("_hstu._l.0._attn.weight", PATHS) == "_hstu._l.0._attn"
    assert owner_of("_hstu._l.0._uvqk", PATHS) == "_hstu._l.0"
    assert owner_of("_attn_mask", PATHS) == ""


@functools.cache
def setup(name):
    case = load_case(name)
    weights = case_weights(case)[0]
    inputs = make_inputs(case).typical
    return case, weights, inputs.arrays


def run(name, policy):
    """The port's taps under a policy, and the precisions that its modules got."""
    case, weights, arrays = setup(name)
    runner = TripyPolicyRunner(policy)
    runner.load_policy(case, weights)
    return runner.run_tapped(arrays).tensors, runner


@functools.cache
def plain(name, precision):
    case, weights, arrays = setup(name)
    runner = TripyRunner()
    runner.load(case, PRECISIONS[precision], weights)
    return runner.run_tapped(arrays).tensors


@pytest.mark.parametrize("precision", CASTABLE)
@pytest.mark.parametrize("name", ["dlrm_tiny", "hstu_tiny", "stu_tiny"])
def test_a_policy_of_one_precision_is_the_plain_port_bit_for_bit(name, precision):
    expected, (actual, _) = plain(name, precision), run(name, Policy.of({"": precision}))
    assert actual.keys() == expected.keys()
    for tap, tensor in expected.items():
        assert actual[tap].dtype == tensor.dtype, tap
        assert torch.equal(actual[tap], tensor), tap


@pytest.mark.parametrize("name", ["dlrm_tiny", "hstu_tiny"])
@pytest.mark.parametrize("turn", range(3))
def test_every_module_runs_in_its_own_precision(name, turn):
    _, runner = run(name, Policy.of({"": "fp32"}))
    wanted = {path: CASTABLE[(place + turn) % 3] for place, path in enumerate(runner.precisions)}
    actual, runner = run(name, Policy.of(wanted))
    assert runner.precisions == wanted
    exact = plain(name, "fp32")
    for tap, tensor in actual.items():
        if not tensor.is_floating_point():
            continue
        path = TapName.parse(tap).path
        # What is no module is an output of the model itself.
        assert tensor.dtype == PRECISIONS[wanted.get(path, wanted[""])].dtype, tap
        error = (tensor.double() - exact[tap].double()).norm() / exact[tap].double().norm()
        assert error < 0.1, tap


def test_parameters_are_in_the_precision_of_their_module():
    _, runner = run("dlrm_tiny", Policy.of({"": "fp32", "top_l": "fp16", "top_l.2": "bf16"}))
    dtypes = {name: str(tensor.dtype) for name, tensor in runner.model.state_dict().items()}
    assert dtypes["bot_l.0.weight"] == "float32"
    assert dtypes["top_l.0.weight"] == "float16"
    assert dtypes["top_l.2.bias"] == "bfloat16"


def test_the_port_is_left_as_it_was():
    _, runner = run("dlrm_tiny", Policy.of({"top_l": "fp16"}))
    assert all("forward" not in vars(module) for module in runner._modules.values())


def test_a_module_in_another_precision_changes_the_result_by_its_rounding_only():
    exact, (actual, _) = plain("dlrm_tiny", "fp32"), run("dlrm_tiny", Policy.of({"top_l.5": "fp16"}))
    changed = {tap for tap in exact if not torch.equal(exact[tap], actual[tap].to(exact[tap].dtype))}
    assert changed == {"top_l.5", "top_l", "predict.click"}


def test_schemes_are_apart_from_precisions():
    policy = Policy((("*", "bf16"), ("a.*", "int8_channel"), ("a.1", "fp16+int4_weights_blocks")))
    assert policy.precisions == {"*": "bf16", "a.1": "fp16"}
    assert policy.schemes == {"a.*": "int8_channel", "a.1": "int4_weights_blocks"}
    # A scheme's pattern may name what is no module, such as a matrix: the case checks it.
    assert policy.resolve(["a", "a.1", "a.1.b"]) == {"": "bf16", "a": "bf16", "a.1": "fp16", "a.1.b": "fp16"}


@pytest.mark.parametrize("name", ["int7", "bf16+int7", "+", "bf16+"])
def test_a_name_that_is_neither_is_refused(name):
    with pytest.raises(UserError, match="no precision of a module, and no scheme of quantisation"):
        Policy((("*", name),))
