"""Studies of a user's own case, which lists no modules, packages or streams."""

import pytest

from parity.base.errors import UserError
from parity.base.precision import PRECISIONS
from parity.coverage.source import port_code
from parity.studies.fault_injection.bench import Bench
from parity.studies.fault_injection.faults import Outcome
from parity.studies.fault_injection.trial import try_fault
from tests.cases.test_small_model import Port, SmallModel


def test_faults_go_into_the_module_that_defines_the_port():
    assert Port.__module__ in port_code(SmallModel()).modules
    bench = Bench(SmallModel(), PRECISIONS["fp32"])
    dropped = next(
        fault
        for fault in bench.faults()
        if (fault.operator, fault.target.split(":")[-1]) == ("source: call dropped", "Port.forward")
    )
    assert try_fault(bench, dropped).outcome in (Outcome.DETECTED, Outcome.BROKEN)
    scaled = next(
        fault for fault in bench.faults() if (fault.operator, fault.detail) == ("weight: scaled", "large")
    )
    finding = try_fault(bench, scaled)
    assert (finding.outcome, finding.localised) == (Outcome.DETECTED, True)


def test_a_case_without_streams_is_refused():
    with pytest.raises(UserError, match="small_model has no streams"):
        SmallModel().streams()
