"""Predictions of kernels: lookups, products and streams, calibrated on an H200."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from parity.timing.ceilings import MATMUL_PRECISIONS
from perf_model import lookup
from perf_model.evaluation import point_seconds
from perf_model.kernels import kind_of, product_of
from perf_model.lookup import BagSizes, LookupModel
from perf_model.points import STREAMS, Point, calibration_points, evaluation_points, index_sets
from perf_model.products import Product, ProductModel
from perf_model.trace import Operation, trace
from perf_model.workloads import Maker
from tests.parity.timing.made_ceilings import ROUND, h200
from tests.perf_model.gpu import calibration, kernel_model

LOOKUP = LookupModel(
    launch=1e-6,
    bandwidth=1e12,
    cache_bytes=1e6,
    start=1e-6,
    hit_latency=1e-7,
    miss_latency=3e-7,
    chunk=1e-10,
    hit_segment=1e-11,
    miss_segment=3e-11,
    power=2.0,
)
SIZES = BagSizes(rows=100_000, dim=64, bag=10, batch=1000, sets=8)


@pytest.mark.parametrize("field", ["rows", "dim", "bag", "batch"])
def test_a_larger_lookup_takes_no_less(field):
    large = dataclasses.replace(SIZES, batch=10_000, bag=20)
    for model in (LOOKUP, kernel_model().lookups):
        larger = [dataclasses.replace(large, **{field: size}) for size in (1, 2, 10, 100, 1000, 10**4, 10**6)]
        seconds = [model.seconds(sizes) for sizes in larger]
        assert seconds == sorted(seconds)
        assert seconds[-1] > seconds[0]


def test_a_larger_cache_takes_no_longer():
    caches = [10.0**power for power in range(3, 10)]
    seconds = [dataclasses.replace(LOOKUP, cache_bytes=cache).seconds(SIZES) for cache in caches]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] > seconds[-1]


def test_the_hit_rate_is_the_share_of_the_rows_in_use_that_the_cache_holds():
    table = 100_000 * 64 * 4
    assert SIZES.row_bytes == 256
    assert dataclasses.replace(SIZES, sets=100).hit_rate(table / 4) == 0.25
    assert dataclasses.replace(SIZES, sets=100).hit_rate(2 * table) == 1.0
    # One set of 10,000 indices keeps as many rows in use, at most.
    assert dataclasses.replace(SIZES, sets=1).hit_rate(1_280_000) == 0.5
    assert dataclasses.replace(SIZES, dim=9).row_bytes == 64


def test_a_lookup_by_hand():
    sizes = BagSizes(rows=10_000, dim=64, bag=10, batch=1000, sets=8)
    hit = 1e6 / (10_000 * 256)
    latency = 1e-6 + 10 * (hit * 1e-7 + (1 - hit) * 3e-7)
    chunks = 2000 * (1e-10 + 10 * (hit * 1e-11 + (1 - hit) * 3e-11))
    dram = ((1 - hit) * 10_000 * 256 + 16 * 10_000 + 256 * 1000) / 1e12
    expected = 1e-6 + (latency**2 + max(chunks, dram) ** 2) ** 0.5
    assert LOOKUP.seconds(sizes) == pytest.approx(expected, rel=1e-12)


def test_the_fit_finds_the_constants_that_made_the_times():
    result = []
    for measured in calibration():
        if measured.point.family == "embedding_bag":
            seconds = LOOKUP.seconds(BagSizes.of(**measured.point.sizes))
            result.append(dataclasses.replace(measured, median=seconds))
    actual = lookup.fit(result, launch=1e-6, bandwidth=1e12)
    errors = [actual.seconds(BagSizes.of(**m.point.sizes)) / m.median - 1 for m in result]
    assert max(map(abs, errors)) < 0.02
    assert actual.miss_latency == pytest.approx(3e-7, rel=0.05)


def test_too_few_lookups_cannot_be_fitted():
    with pytest.raises(ValueError, match="0 measured lookups cannot fit"):
        lookup.fit([], launch=1e-6, bandwidth=1e12)


def test_products_count_their_flops_and_bytes():
    product = Product(m=3, n=5, k=7, batch=2)
    assert product.flops == 2 * 2 * 3 * 5 * 7
    assert product.moved(4) == 4 * 2 * (21 + 35 + 15)


def test_waves_are_whole():
    assert Product(128, 128, 10).flops_in_waves(4) == 2 * 128 * 128 * 10
    assert Product(1, 1, 10).flops_in_waves(4) == Product(128, 128, 10).flops_in_waves(4)
    assert Product(5 * 128, 128, 10).flops_in_waves(4) == 8 * 2 * 128 * 128 * 10


@pytest.mark.parametrize("precision", MATMUL_PRECISIONS)
def test_a_measured_product_is_predicted_as_it_was_measured(precision):
    model = ProductModel(calibration(), precision, False, h200())
    own = [m for m in calibration() if m.point.family == "product" and m.point.precision == precision]
    for measured in own[::17]:
        sizes = measured.point.sizes
        predicted = model.seconds(Product(sizes["m"], sizes["n"], sizes["k"]))
        assert predicted == pytest.approx(measured.median, rel=0.02)


@pytest.mark.parametrize("precision", MATMUL_PRECISIONS)
def test_far_larger_products_take_longer(precision):
    sizes = (64, 512, 4096, 16384)
    for batch in (1, 4):
        seconds = [kernel_model().product_seconds(Product(m, m, m, batch), precision) for m in sizes]
        assert seconds == sorted(seconds)
        # Beyond the launch, time grows with the cube, within the efficiency that is still gained.
        assert 20 < seconds[-1] / seconds[-2] < 130


def test_no_product_beats_the_matmul_rate_by_much():
    for precision, m in itertools.product(MATMUL_PRECISIONS, (4096, 16384)):
        product = Product(m, m, m)
        rate = product.flops / kernel_model().product_seconds(product, precision)
        assert 0.5 < rate / h200().matmul[precision] < 1.15


def test_a_precision_without_products_is_refused():
    with pytest.raises(ValueError, match="0 measured products in fp8"):
        ProductModel(calibration(), "fp8", False, h200())


def one_operation(point: Point) -> Operation:
    work = Maker("meta").make(point)
    (operation,) = trace(lambda: work.launch(0)).operations
    return operation


@pytest.mark.parametrize("kind", STREAMS)
def test_what_is_measured_as_a_kind_is_recognised_as_it(kind):
    operation = one_operation(Point(kind, "fp32", {"elements": 2**20}))
    # Halves of a row are joined, and a constant is rounded up: neither has exactly as many elements.
    assert kind_of(operation) == kind


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_measured_stream_is_predicted_as_it_was_measured(kind, precision):
    for measured in calibration():
        point = measured.point
        if point.family == kind and point.precision == precision and point.sizes["elements"] >= 2**22:
            assert point_seconds(point, kernel_model()) == pytest.approx(measured.median, rel=0.25)


@pytest.mark.parametrize(
    ("family", "transposed"), [("scores", True), ("scores_plain", False), ("values", False)]
)
def test_a_batched_product_is_recognised_with_its_layout(family, transposed):
    operation = one_operation(Point(family, "fp32", {"b": 3, "n": 40, "d": 16}))
    n, k = (40, 16) if family != "values" else (16, 40)
    assert product_of(operation) == Product(40, n, k, 3, transposed)


def test_a_linear_layer_is_a_product_with_a_transposed_factor():
    operation = one_operation(Point("product", "fp32", {"m": 6, "n": 5, "k": 4}))
    assert product_of(operation) == Product(6, 5, 4, 1, transposed=True)


def test_no_evaluated_point_was_calibrated_with():
    calibrated, evaluated = calibration_points(), evaluation_points()
    assert len(evaluated) >= 200
    assert len({point.key for point in calibrated}) == len(calibrated)
    assert len({point.key for point in evaluated}) == len(evaluated)
    assert not {point.key for point in calibrated} & {point.key for point in evaluated}
    bags = [
        {tuple(p.sizes.values()) for p in points if p.family == "embedding_bag"}
        for points in (calibrated, evaluated)
    ]
    assert all(bags)
    assert not bags[0] & bags[1]


def test_index_sets_rotate_through_more_than_the_l2_where_they_can():
    for point in (*calibration_points(), *evaluation_points()):
        if point.family == "embedding_bag":
            sizes = point.sizes
            sets = index_sets(sizes["bag"], sizes["batch"], sizes["dim"], sizes["rows"])
            touched = sizes["batch"] * sizes["bag"] * 8
            touched += min(sizes["batch"] * sizes["bag"], sizes["rows"]) * sizes["dim"] * 4
            assert 4 <= sets <= 256
            assert sets == 256 or sets * touched >= 3 * 60 * 2**20


SMALL = {
    "embedding_bag": {"rows": 50, "batch": 4},
    "mlp": {"batch": 3},
    "attention": {"b": 1, "n": 9},
}


@pytest.mark.parametrize("family", SMALL)
def test_what_is_evaluated_runs_with_finite_results(family):
    point = next(p for p in evaluation_points() if p.family == family and p.precision == "fp32")
    small = SMALL[family]
    work = Maker("cpu").make(dataclasses.replace(point, sizes={**point.sizes, **small}))
    with torch.inference_mode():
        assert work.launch(0).isfinite().all()


def test_the_round_gpu_is_no_h200():
    assert ROUND.gpu != h200().gpu
