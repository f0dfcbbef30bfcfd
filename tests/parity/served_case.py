"""One case under the real LoadGen: its requests, its port, and a right accuracy run."""

import numpy as np

from cases.shipped import load_case
from parity.base.precision import PRECISIONS
from parity.inputs.weights import case_weights
from parity.studies.serving import loadgen
from parity.studies.serving.judging import Judge
from parity.studies.serving.loadgen import Folders, Load, Logged
from parity.studies.serving.port import ServedPort
from parity.studies.serving.requests import Requests
from parity.studies.serving.server import Server, header

CASE, COUNT = "dlrmv3_tiny", 12
ROWS = 4
"""Requests of a batch at the largest width."""


class Setup:
    """A case, its requests, its port and the judge, whose runs of the reference are made once."""

    def __init__(self, tables):
        self.case = load_case(CASE)
        widest = self.case.serving().widths[-1]
        self.requests = Requests(self.case, COUNT, 0, ROWS * widest)
        self.opened = self.case.serving().tables(tables, 0)
        self.requests.lookup = self.opened.__enter__()
        self.weights, _ = case_weights(self.case)
        self.port = ServedPort(self.requests, PRECISIONS["fp32"], self.weights)
        # Batches as large as queries allow, whatever the machine is busy with.
        self.port.queued = dict.fromkeys(self.port.times, 1.0)
        self.judge = Judge(self.requests, PRECISIONS["fp32"], self.weights, self.port)

    def run(self, folder, kind=Server, scenario="offline", audit=None, port=None):
        """One test with a server of a class: LoadGen's log and the server's."""
        folders = Folders(folder, "audit")
        load = Load(scenario, rate=400, duration=0.05, queries=40)
        place = folders.accuracy if audit is None else folders.audit
        with kind(self.requests, port or self.port, loadgen.answer) as server:
            benchmark = self.requests.serving.benchmark
            loadgen.run_test(load, benchmark, COUNT, server.ask, folders, place, audit)
        return loadgen.logged(place), server.log

    def judged(self, folder, kind=Server, **options):
        log, own = self.run(folder, kind, **options)
        assert own.error is None
        return self.judge.accuracy(log, own.batches)


def as_log(accuracy, change=0.0):
    """LoadGen's log of the answers of an accuracy run, with a change of every prediction."""
    return [
        Logged(number, np.concatenate([header(number), values + np.float32(change)]))
        for number, values in accuracy.answers.items()
    ]
