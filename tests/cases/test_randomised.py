"""Random small configurations: every option of every family, with configurations that both sides accept."""

from collections import defaultdict

import numpy as np
import pytest

import configs
from cases.shipped import load_case
from parity.base.errors import UserError
from parity.inputs.arrays import make_inputs

DRAWS = 300
A_CASE = {
    "dlrm": "dlrm_tiny",
    "dlrmv3": "dlrmv3_tiny",
    "hstu": "hstu_tiny",
    "lecture_dlrm": "dlrm_lecture_tiny",
    "stu": "stu_tiny",
}


def drawn(family, number):
    """A random case of the family; nothing for a draw that the schema refuses."""
    try:
        return load_case(A_CASE[family]).randomised(np.random.default_rng([7, number]))
    except UserError:
        return None


def is_accepted(case):
    """Whether the case accepts the inputs of its own plan."""
    try:
        make_inputs(case)
    except UserError:
        return False
    return True


def test_every_family_has_random_configurations():
    assert {configs.load_case(name).family for name in configs.list_cases()} == set(A_CASE)


@pytest.mark.parametrize("family", A_CASE)
def test_draws_reach_every_choice_of_every_option(family):
    cases = [case for case in (drawn(family, number) for number in range(DRAWS)) if case is not None]
    assert len(cases) > DRAWS / 2
    seen, choices = defaultdict(set), {}
    for case in cases:
        for name, option in case.options().items():
            seen[name].add(option.value)
            choices[name] = set(option.choices)
    assert {name: choices[name] - seen[name] for name in choices if choices[name] - seen[name]} == {}
    assert {1, 2} < {case.batch_size for case in cases}
    assert sum(map(is_accepted, cases[:12])) > 4


def test_a_number_draws_the_same_configuration_again():
    first, again, other = (drawn("lecture_dlrm", number) for number in (3, 3, 4))
    assert first.config == again.config != other.config
