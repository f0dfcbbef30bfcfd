"""DLRM's forward at MLPerf's sizes on one GPU: the fused forward against PyTorch.

    python benchmarks/gpu/dlrm.py --out dlrm.json
    python benchmarks/gpu/dlrm.py --batch 2048 --longest-bag 1 --rounds 50

The model is `configs/dlrm_mlperf.yaml` with tables of up to 1,000,000 rows (3.6 GB of float32) and dense
layers in bfloat16. Bags have one index (MLPerf v1), or 1 to 5 (the configuration's). All sides have the same
weights and the same four sets of inputs. Indices are uniform in each table, so that the cache holds no rows
of the previous call.

PyTorch's sides: the reference's modules, eager, with torch.compile, and with torch.compile in a CUDA graph
without copies of the inputs; the same three with all tables in one, for a single `embedding_bag`. Our sides:
`kernels.dlrm.forward` with Triton's or CUDA C++'s bags and interaction: called from Python, as a CUDA graph
with copies of the inputs, and as a graph without.

Prints a row a batch size: verdict, median microseconds of each side, and the floor. The verdict rule compares
the results with float64 in the same run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.timing import (  # noqa: E402
    captured,
    environment,
    measure,
    measure_device,
    measured_ceilings,
    parsed,
    report,
)
from configs import load_case  # noqa: E402
from kernels.dlrm import Bags  # noqa: E402
from kernels.dlrm.forward import FusedDLRM, run_mlp  # noqa: E402
from parity.base.precision import PRECISIONS  # noqa: E402
from parity.verdict.rule import judge  # noqa: E402
from reference.dlrm import DLRM_Net  # noqa: E402
from reference.dlrm_layers import interaction_width  # noqa: E402

DTYPE = torch.bfloat16
MOST_ROWS = 1_000_000
SETS = 4
# Three layers at the bottom, the interaction, five at the top. The longest sum has 1,024 products.
MODULES, LONGEST_SUM = 9, 1024
FORMS = {"triton": None, "cuda": "cuda"}


@dataclass(frozen=True)
class Inputs:
    """One batch in both forms: the reference's lists, and all tables together."""

    dense_BC: torch.Tensor
    lS_o: list[torch.Tensor]
    lS_i: list[torch.Tensor]
    bags: Bags


class Model:
    """The reference on the GPU with float32 tables and bfloat16 dense layers, and its tables joined."""

    def __init__(self) -> None:
        case = load_case("dlrm_mlperf")
        config = case.model.model_copy(update={"max_rows_per_table": MOST_ROWS})
        self.rows = config.table_rows
        self.sigmoid_top = config.top_sigmoid
        width = interaction_width("dot", len(self.rows) + 1, config.arch_sparse_feature_size)
        with torch.device("meta"):
            net = DLRM_Net(
                config.arch_sparse_feature_size,
                self.rows,
                config.bottom_widths,
                (width, *config.top_widths),
                sigmoid_top=self.sigmoid_top,
                validate_inputs=False,
            )
        generator = torch.Generator("cuda").manual_seed(0)
        state = {
            name: _weight(name, value, generator).to(torch.float32 if name.startswith("emb_l") else DTYPE)
            for name, value in net.state_dict().items()
        }
        # One memory for all tables, so that sides with one table and with 26 tables read the same rows.
        joined = torch.cat([state[f"emb_l.{table}.weight"] for table in range(len(self.rows))])
        self.joined = joined
        for table, part in enumerate(joined.split(list(self.rows))):
            state[f"emb_l.{table}.weight"] = part
        self.net: DLRM_Net = net.eval().requires_grad_(False)
        self.net.load_state_dict(state, assign=True)
        self.net.requires_grad_(False)
        self.net.interaction.pairs = self.net.interaction.pairs.cuda()
        self.bases_T = torch.tensor([0, *self.rows[:-1]], device="cuda").cumsum(0)

    def forward(self, dense_BC: torch.Tensor, lS_o: list, lS_i: list) -> torch.Tensor:
        """The reference's modules, with the tables' results cast to the dense layers' type."""
        vectors = [vector.to(DTYPE) for vector in self.net.apply_emb(lS_o, lS_i)]
        features_BFD = torch.stack((self.net.bot_l(dense_BC), *vectors), dim=1)
        return self.net.top_l(self.net.interaction(features_BFD))

    def forward_joined(
        self, dense_BC: torch.Tensor, indices_L: torch.Tensor, offsets: torch.Tensor
    ) -> torch.Tensor:
        """The same with one `embedding_bag`; indices count from the first table's first row."""
        pooled = functional.embedding_bag(
            indices_L, self.joined, offsets, mode="sum", include_last_offset=True
        )
        vectors_TBD = pooled.to(DTYPE).view(len(self.rows), dense_BC.shape[0], -1)
        dense_BD = self.net.bot_l(dense_BC)
        features_BFD = torch.cat((dense_BD[None], vectors_TBD)).transpose(0, 1)
        return self.net.top_l(self.net.interaction(features_BFD))

    def exact(self, features: Inputs) -> torch.Tensor:
        """The float64 result of the stored weights."""
        pooled = [
            functional.embedding_bag(indices, bag.weight.double(), offsets, mode="sum")
            for indices, offsets, bag in zip(features.lS_i, features.lS_o, self.net.emb_l, strict=True)
        ]
        state = self.net.state_dict()
        x = _exact_mlp(features.dense_BC.double(), state, "bot_l.", -1)
        features = torch.stack((x, *pooled), dim=1)
        return _exact_mlp(self.net.interaction(features), state, "top_l.", self.sigmoid_top)


def _weight(name: str, like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Normal weights that make every part matter: products of vectors are of order one."""
    drawn = torch.randn(like.shape, generator=generator, device="cuda")
    if name.startswith("emb_l"):
        return drawn * like.shape[1] ** -0.25
    return drawn * ((2.0 / like.shape[1]) ** 0.5 if like.dim() == 2 else 0.1)


def _exact_mlp(x: torch.Tensor, state: dict, prefix: str, sigmoid_layer: int) -> torch.Tensor:
    layer = 0
    while f"{prefix}{2 * layer}.weight" in state:
        weight, bias = (state[f"{prefix}{2 * layer}.{part}"].double() for part in ("weight", "bias"))
        x = functional.linear(x, weight, bias)
        x = torch.sigmoid(x) if layer == sigmoid_layer else torch.relu(x)
        layer += 1
    return x


def make_inputs(model: Model, batch: int, longest: int, seed: int) -> Inputs:
    """Dense features like logarithms of counts, bags of 1 to ``longest`` indices uniform in each table."""
    generator = torch.Generator("cuda").manual_seed(seed)
    columns = model.net.bot_l[0].in_features
    dense_BC = torch.randn(batch, columns, generator=generator, device="cuda").abs().to(DTYPE)
    lS_o, lS_i = [], []
    for rows in model.rows:
        lengths_B = torch.randint(1, longest + 1, (batch,), generator=generator, device="cuda")
        lS_o.append(lengths_B.cumsum(0) - lengths_B)
        lS_i.append(torch.randint(0, rows, (int(lengths_B.sum()),), generator=generator, device="cuda"))
    return Inputs(dense_BC, lS_o, lS_i, Bags.join(lS_o, lS_i))


def make_sides(model: Model, fused: dict[str, FusedDLRM], inputs: list[Inputs]) -> dict[str, list[Callable]]:
    """Every side's call on each set of inputs."""
    torch.compiler.reset()
    compiled = torch.compile(model.forward, fullgraph=True, dynamic=False)
    compiled_joined = torch.compile(model.forward_joined, fullgraph=True, dynamic=False)
    shifted = [_shifted(model, features) for features in inputs]
    # Sets of bags with several indices differ in shape: torch.compile would compile each.
    same = len({features.bags.indices_L.numel() for features in inputs}) == 1
    if not same:
        compiled = torch.compile(model.forward, fullgraph=True, dynamic=True)
        compiled_joined = torch.compile(model.forward_joined, fullgraph=True, dynamic=True)

    def lists(function: Callable) -> list[Callable]:
        return [lambda g=g: function(g.dense_BC, g.lS_o, g.lS_i) for g in inputs]

    def joined(function: Callable) -> list[Callable]:
        pairs = zip(inputs, shifted, strict=True)
        return [lambda g=g, i=i: function(g.dense_BC, i, g.bags.offsets) for g, i in pairs]

    sides = {
        "eager": lists(model.forward),
        "compile": lists(compiled),
        "compile, graph": [captured([call]) for call in lists(compiled)],
        "one table, eager": joined(model.forward_joined),
        "one table, compile": joined(compiled_joined),
        "one table, compile, graph": [captured([call]) for call in joined(compiled_joined)],
    }
    largest = max(inputs, key=lambda features: features.bags.indices_L.numel())
    for form, net in fused.items():
        graph = net.capture(largest.dense_BC, largest.bags)
        sides[f"fused {form}, called"] = [
            lambda g=g, f=net: f(g.dense_BC, g.bags, validate=False) for g in inputs
        ]
        sides[f"fused {form}, inputs copied"] = [lambda g=g, f=graph: f(g.dense_BC, g.bags) for g in inputs]
        sides[f"fused {form}, graph"] = [
            net.capture(features.dense_BC, features.bags).replay for features in inputs
        ]
    return sides


def _shifted(model: Model, features: Inputs) -> torch.Tensor:
    """Indices into all tables as one."""
    counts = torch.tensor([len(indices) for indices in features.lS_i], device="cuda")
    return features.bags.indices_L + model.bases_T.repeat_interleave(counts)


def errors(model: Model, sides: dict[str, list[Callable]], features: Inputs) -> dict[str, dict]:
    """Every side's relative error on the first set, and the verdict with eager PyTorch as the reference."""
    oracle = model.exact(features).cpu()
    # A graph returns a list of one result; other sides return the result.
    results = {name: calls[0]() for name, calls in sides.items()}
    results = {name: (r[0] if isinstance(r, list) else r).cpu() for name, r in results.items()}
    judged = {}
    for name, result in results.items():
        verdict = judge(oracle, results["eager"], result, PRECISIONS["bf16"], LONGEST_SUM, modules=MODULES)
        judged[name] = {
            "verdict": verdict.status,
            "reason": verdict.reason,
            "l2": verdict.port.l2,
            "limit": verdict.limit.l2,
        }
    return judged


def floor(model: Model, inputs: list[Inputs], bandwidth: float, rate: float) -> dict[str, float]:
    """The fewest bytes and operations, and their microseconds at the measured ceilings.

    A row, a weight, an input and the result count once each.
    """
    features = inputs[0]
    columns = model.joined.shape[1]
    unique = sum(indices.unique().numel() for indices in features.lS_i)
    weights = [v for k, v in model.net.state_dict().items() if not k.startswith("emb_l")]
    batch = features.dense_BC.shape[0]
    moved = unique * columns * 4 + sum(w.numel() * w.element_size() for w in weights)
    moved += (
        features.dense_BC.numel() * 2 + (features.bags.indices_L.numel() + features.bags.offsets.numel()) * 8
    )
    moved += batch * 2
    vectors = len(model.rows) + 1
    per_row = sum(w.numel() for w in weights if w.dim() == 2) + vectors * (vectors - 1) // 2 * columns
    return {
        "bytes": moved,
        "operations": 2 * batch * per_row,
        "bytes_us": moved / bandwidth * 1e6,
        "operations_us": 2 * batch * per_row / rate * 1e6,
    }


def parts(fused: FusedDLRM, inputs: list[Inputs], rounds: int) -> dict[str, dict]:
    """Times of the fused forward's parts, each as a graph over all sets of inputs."""
    rows = [g.dense_BC.new_zeros(g.dense_BC.shape[0], fused.padded_width) for g in inputs]

    def interact(number: int) -> None:
        features = inputs[number]
        fused.interact(features.dense_BC, features.bags, rows[number][:, : fused.width], validate=False)

    sides = {
        "bottom MLP": [lambda g=g: run_mlp(g.dense_BC, fused.bottom, fused.backend) for g in inputs],
        "bottom MLP, bags, interaction": [lambda n=n: interact(n) for n in range(len(inputs))],
        "top MLP": [lambda r=r: run_mlp(r, fused.top, fused.backend) for r in rows],
    }
    return {name: asdict(spread) for name, spread in measure_device(sides, rounds).items()}


def run(
    model: Model, fused: dict[str, FusedDLRM], batch: int, longest: int, rounds: int, ceilings: dict
) -> dict:
    """One row of the table."""
    inputs = [make_inputs(model, batch, longest, seed) for seed in range(SETS)]
    sides = make_sides(model, fused, inputs)
    times = measure(sides, rounds)
    medians = {name: spread.median for name, spread in times.items()}
    best_peer = min(("eager", "compile", "compile, graph"), key=medians.get)
    best_of_all = min((name for name in medians if not name.startswith("fused")), key=medians.get)
    ours = [name for name in medians if name.startswith("fused")]
    return {
        "batch": batch,
        "longest_bag": longest,
        "times_us": {name: asdict(spread) for name, spread in times.items()},
        "best_peer": best_peer,
        "best_peer_with_one_table": best_of_all,
        "ratios": {name: medians[best_peer] / medians[name] for name in ours},
        "ratios_to_one_table": {name: medians[best_of_all] / medians[name] for name in ours},
        "parts_us": {form: parts(net, inputs, rounds) for form, net in fused.items()},
        "floor": floor(model, inputs, ceilings["copy_bytes_per_s"], ceilings["bf16_per_s"]),
        "errors": errors(model, sides, inputs[0]),
        "clocks": environment(),
    }


def table(row: dict) -> str:
    """A row as text."""
    f = row["floor"]
    lines = [
        f"B {row['batch']}, bags up to {row['longest_bag']}: floor {f['bytes_us']:.1f} us of bytes, "
        f"{f['operations_us']:.1f} us of operations",
        *(
            f"  {name:28} {t['median']:8.1f} us  [{t['p10']:.1f}, {t['p90']:.1f}]  "
            f"{row['errors'][name]['verdict']} l2 {row['errors'][name]['l2']:.2e}"
            for name, t in row["times_us"].items()
        ),
        *(
            f"    {form}: {name:30} {t['median']:8.1f} us"
            for form, times in row["parts_us"].items()
            for name, t in times.items()
        ),
        *(
            f"  {name}: {ratio:.2f} x {row['best_peer']}, "
            f"{row['ratios_to_one_table'][name]:.2f} x {row['best_peer_with_one_table']}"
            for name, ratio in row["ratios"].items()
        ),
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[2048, 16384])
    parser.add_argument("--longest-bag", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--rounds", type=int, default=50)
    arguments = parsed(parser)
    with torch.no_grad():
        ceilings = measured_ceilings()
        model = Model()
        state = model.net.state_dict()
        fused = {
            form: FusedDLRM(state, sigmoid_top=model.sigmoid_top, dtype=DTYPE, bags_backend=backend)
            for form, backend in FORMS.items()
        }
        rows = []
        for longest in arguments.longest_bag:
            for batch in arguments.batch:
                rows.append(run(model, fused, batch, longest, arguments.rounds, ceilings))
                print(table(rows[-1]), flush=True)
                report(arguments.out, ceilings, rows=rows)
    failed = [e["reason"] for row in rows for e in row["errors"].values() if e["verdict"] != "PASS"]
    print("\n".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
