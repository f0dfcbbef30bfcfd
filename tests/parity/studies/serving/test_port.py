"""Batches by tokens, and the port at fixed shapes."""

from types import SimpleNamespace

import pytest
import torch

from cases.shipped import load_case
from parity.base.errors import UserError
from parity.base.precision import PRECISIONS
from parity.base.trees import map_tree
from parity.runners.base import Unavailable
from parity.runners.tripy.compiled import Compiled
from parity.studies.serving import port as port_module
from parity.studies.serving.batching import Query, TokenQueue, in_time
from parity.studies.serving.buffers import Buffers
from parity.studies.serving.port import SERVED, ServedPort
from parity.studies.serving.requests import Requests, Shape
from parity.studies.serving.server import Server
from tests.parity.served_case import COUNT

pytest.importorskip("mlperf_loadgen", reason="the load is LoadGen's: pip install mlcommons-loadgen")
# One process makes the case, its port and its truth.
pytestmark = pytest.mark.xdist_group("serving")


class TestBatches:
    # Times of a GPU that small batches do not fill.
    TIMES = {Shape(10, 4): 1.0, Shape(20, 2): 1.0, Shape(20, 1): 0.9}
    # Times of a GPU that one request fills.
    FILLED = {Shape(10, rows): seconds for rows, seconds in ((1, 1.0), (2, 1.9), (4, 3.7))}

    def taken(self, *widths, times=TIMES):
        queue = TokenQueue(times)
        queue.put([Query(id, id, width) for id, width in enumerate(widths)])
        queue.close()
        batches = []
        while not queue.is_closed():
            batches.append(queue.take(wait=False))
        return [(batch.shape.width, [query.id for query in batch.queries]) for batch in batches]

    def test_a_batch_has_the_width_of_the_first_query_and_the_rows_of_its_shape(self):
        taken = self.taken(20, 10, 20, 20, 10, 10, 10, 10)
        assert taken == [(20, [0, 2]), (10, [1, 4, 5, 6]), (20, [3]), (10, [7])]

    @pytest.mark.parametrize(
        ("waiting", "sizes"), [(1, [1]), (2, [2]), (3, [2, 1]), (4, [4]), (7, [4, 2, 1]), (9, [4, 4, 1])]
    )
    def test_a_batch_has_the_size_that_takes_least_time_a_query(self, waiting, sizes):
        assert [len(queries) for _, queries in self.taken(*[10] * waiting, times=self.FILLED)] == sizes

    @pytest.mark.parametrize(
        ("deadline", "rows"), [(None, {1, 2, 4}), (15.0, {1, 2, 4}), (14.0, {1, 2}), (7.0, {1}), (0.1, {1})]
    )
    def test_a_deadline_bounds_the_sizes(self, deadline, rows):
        # Two batches on the device, one ahead in the queue, and the query's own.
        assert {shape.rows for shape in in_time(self.FILLED, deadline, running=2)} == rows

    @pytest.mark.parametrize(("deadline", "rows"), [(None, 4), (6.0, 2), (3.0, 1)])
    def test_a_server_chooses_by_times_in_a_queue_among_those_in_time_alone(self, setup, deadline, rows):
        width = setup.requests.width[0]
        shapes = [Shape(width, rows) for rows in (1, 2, 4)]
        alone, queued = (dict(zip(shapes, seconds, strict=True)) for seconds in ((1, 2, 5), (1, 1.8, 3)))
        port = SimpleNamespace(times=alone, queued=queued, most_running=1, kv_cache=0)
        queue = Server(setup.requests, port, lambda *_: None, deadline)._queue
        queue.put([Query(number, number, width) for number in range(7)])
        assert len(queue.take(wait=False).queries) == rows

    def test_a_deadline_leaves_each_width_its_fastest_shape(self):
        assert set(in_time(self.TIMES, 1e-3, running=1)) == {Shape(10, 4), Shape(20, 1)}

    def test_sizes_are_powers_of_two_and_the_largest(self, setup):
        widest = setup.requests.serving.widths[-1]
        sizes = Requests(setup.case, COUNT, 0, 6 * widest).sizes
        assert [shape.rows for shape in sizes if shape.width == widest] == [1, 2, 4, 6]

    def test_a_queue_that_is_closed_gives_nothing(self):
        queue = TokenQueue(self.TIMES)
        queue.close()
        assert queue.take(wait=True) is None

    def test_narrow_requests_come_in_larger_batches(self, setup):
        widest = setup.requests.serving.widths[-1]
        narrow, wide = Requests(setup.case, COUNT, 0, 30 * widest).shapes.values()
        assert wide == Shape(widest, 30)
        assert narrow.rows == 30 * widest // narrow.width > 30

    @pytest.mark.parametrize(
        ("count", "tokens", "named"),
        [(0, None, "--samples: 0"), (1 << 24, None, "--samples"), (3, 5, "--tokens: 5")],
    )
    def test_numbers_that_do_not_fit_are_refused(self, setup, count, tokens, named):
        with pytest.raises(UserError, match=named):
            Requests(setup.case, count, 0, tokens)


class TestBuffers:
    def test_every_element_is_overwritten(self, setup):
        first, other = (setup.port._arguments(setup.requests.served([number])) for number in (0, 0))
        buffers = Buffers(first)
        buffers.fill(map_tree(other, torch.ones_like))
        buffers.fill(other)
        for name in other:
            # Padding holds NaN, too.
            torch.testing.assert_close(buffers.arguments[name], other[name], rtol=0, atol=0, equal_nan=True)

    def test_two_batches_may_be_staged(self, setup):
        shape = setup.requests.shapes[setup.requests.width[0]]
        numbers = [setup.requests.full([number]) for number in setup.requests.of_width(shape.width)[:2]]
        running = [setup.port.start(shape, setup.requests.served(rows)) for rows in numbers]
        again = [setup.port.start(shape, setup.requests.served(rows)).result() for rows in numbers]
        assert all(torch.equal(work.result(), result) for work, result in zip(running, again, strict=True))
        assert not torch.equal(*again)


class TestForms:
    @pytest.mark.parametrize("runner", SERVED[1:])
    def test_every_prediction_of_another_form_passes(self, setup, tmp_path, runner):
        port = ServedPort(setup.requests, PRECISIONS["fp32"], setup.weights, runner)
        assert port.label().startswith(f"{setup.port.label()} ")
        judged = setup.judged(tmp_path, port=port)
        assert judged.passed, judged.line()
        assert judged.predictions > 0

    def test_steps_are_fused_on_a_gpu_alone(self, setup, monkeypatch):
        monkeypatch.setattr(port_module, "_replays", lambda: False)
        with pytest.raises(UserError, match="--fuse: on needs the portable runtime and a GPU"):
            ServedPort(setup.requests, PRECISIONS["fp32"], setup.weights, fuse=True)
        fused = []
        monkeypatch.setattr(port_module, "_replays", lambda: True)
        monkeypatch.setattr(Compiled, "accelerate", lambda self, fuse: fused.append(fuse))
        port = ServedPort(setup.requests, PRECISIONS["fp32"], setup.weights, SERVED[-1], fuse=True)
        assert port.label() == f"{setup.port.label()} whole layers fused"
        assert fused == [True] * len(setup.requests.sizes)

    def test_a_batch_of_other_lengths_takes_the_same_graph(self, setup):
        port = ServedPort(setup.requests, PRECISIONS["fp32"], setup.weights, SERVED[-1])
        shape = setup.requests.shapes[setup.requests.width[0]]
        shapes = {
            tuple(port._arguments(setup.requests.served(setup.requests.full([number])))["valid_rows"].shape)
            for number in setup.requests.of_width(shape.width)
        }
        assert shapes == {(shape.rows * shape.width,)}
        assert len(port._executables[shape]) == 1

    def test_a_case_without_the_form_is_unavailable(self, setup, monkeypatch):
        monkeypatch.setattr(type(setup.case), "form", load_case("dlrm_tiny").form)
        with pytest.raises(Unavailable, match="has no whole_layers form"):
            ServedPort(setup.requests, PRECISIONS["fp32"], setup.weights, SERVED[-1])


class TestTablesOnADevice:
    @pytest.fixture
    def requests(self, setup, tmp_path):
        widest = setup.requests.serving.widths[-1]
        requests = Requests(setup.case, COUNT, 0, 4 * widest)
        with requests.serving.device_tables(tmp_path / "tables", 0, "cpu") as lookup:
            requests.open_on_device(lookup)
            yield requests

    def test_rows_are_numbers_until_the_port_takes_them(self, setup, requests):
        staged, served = requests.staged([0]), setup.requests.served([0])
        assert {
            name for name, array in staged.items() if array.dtype != served[name].dtype
        } == requests.looked_up
        assert all(staged[name].dtype == "int64" for name in requests.looked_up)

    def test_they_are_the_reference_s_rows(self, requests):
        assert not any(requests.has_other_rows(number) for number in range(COUNT))

    def test_the_port_s_predictions_are_those_of_rows_from_files(self, setup, requests):
        port = ServedPort(requests, PRECISIONS["fp32"], setup.weights)
        for shape in requests.shapes.values():
            numbers = requests.full(requests.of_width(shape.width)[:1])
            own = port.start(shape, requests.staged(numbers)).result()
            other = setup.port.start(shape, setup.requests.served(numbers)).result()
            assert torch.equal(own, other)
            assert torch.equal(own, port.start(shape, requests.clean(numbers)).result())

    def test_numbers_without_tables_are_refused(self, setup, requests):
        shape = setup.requests.shapes[setup.requests.width[0]]
        staged = requests.staged(requests.full([0]))
        with pytest.raises(RuntimeError, match="no tables on a device"):
            setup.port.start(shape, staged)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="work is queued on a GPU; PyTorch finds none here")
def test_a_result_does_not_wait_for_work_behind_it(setup):
    shape = setup.requests.shapes[setup.requests.width[0]]
    numbers = setup.requests.full(setup.requests.of_width(shape.width)[:1])
    right = setup.port.start(shape, setup.requests.served(numbers)).result()
    running = setup.port.start(shape, setup.requests.served(numbers))
    queue = running.compiled.queue()
    with torch.cuda.stream(queue):
        torch.cuda._sleep(1 << 31)
    result = running.result()
    assert not queue.query()
    assert torch.equal(result, right)
