"""The shape of the repository: imports that contracts do not see, and a port that mirrors the reference.

The sources are read, not imported, where that is enough: an import hidden in a function counts as well.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nvtripy as tp
import pytest
import torch

import reference.build
import tripy_port.build
from configs import list_cases, load_case
from tests.locations import ROOT
from tripy_port.gaps import ADDITIONS, GAPS

OURS = (
    *("cases", "configs", "datasets", "kernels", "parity", "perf_model", "reference", "tables", "tripy_port"),
    *("tripy_portable", "mlir_tensorrt", "tensorrt"),
)


def imported_packages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, top-level package) of every import, also in functions and through importlib."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module.split(".")[0]
    yield from dynamically_imported(tree)


def dynamically_imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, top-level package) of every import by a literal name, which import-linter does not see."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value.split(".")[0]


def sources(folder: str) -> dict[str, ast.Module]:
    """Parsed files by path from the root; tests and what is built below a folder are left out."""
    paths = [p.relative_to(ROOT) for p in (ROOT / folder).rglob("*.py")]
    own = [
        p
        for p in paths
        if not {"build", "tests", "__pycache__"} & set(p.parts) and not p.parts[0].startswith(".")
    ]
    return {str(p): ast.parse((ROOT / p).read_text()) for p in sorted(own)}


@pytest.mark.parametrize("folder", [name for name in OURS if name not in ("mlir_tensorrt", "tensorrt")])
def test_no_import_hides_from_the_contracts(folder):
    """The contracts in pyproject.toml hold the house rules; an import by name would pass them unseen."""
    files = sources("portable/src" if folder == "tripy_portable" else folder)
    assert files, f"no sources in {folder}"
    hidden = [
        f"{path}:{line} imports {package}"
        for path, tree in files.items()
        for line, package in dynamically_imported(tree)
        if package in OURS and package != folder
    ]
    assert not hidden, "\n".join(hidden)


def beyond_nvtripy(tree: ast.AST) -> list[str]:
    """Packages that the port must not import, however it imports them."""
    allowed = {"tripy_port", "configs", "kernels", "nvtripy", *sys.stdlib_module_names}
    return [package for _, package in imported_packages(tree) if package not in allowed]


def test_the_port_imports_nvtripy_and_the_standard_library():
    assert {
        path: names for path, tree in sources("tripy_port").items() if (names := beyond_nvtripy(tree))
    } == {}


def test_the_performance_model_takes_torch_where_it_measures_or_traces():
    taking = {
        path
        for path, tree in sources("perf_model").items()
        for _, package in imported_packages(tree)
        if package == "torch"
    }
    traced = {f"perf_model/{name}.py" for name in ("models", "trace", "workloads")}
    assert {path for path in taking if not path.startswith("perf_model/measure/")} == traced
    assert "perf_model/measure/timing.py" in taking


@pytest.mark.parametrize(
    "source",
    [
        "import torch",
        "import torch.nn as nn",
        "from torch import Tensor",
        "def f():\n    import torch",
        "import importlib\nimportlib.import_module('torch.nn')",
        "from reference.hstu_dense import HSTUDense",
        "from tripy_portable import guard",
        "import numpy",
    ],
)
def test_a_forbidden_import_in_the_port_is_seen(source):
    assert beyond_nvtripy(ast.parse(source))


def test_the_port_takes_of_the_kernels_what_needs_no_torch():
    taken = {
        node.module
        for tree in sources("tripy_port").values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "kernels"
    }
    assert taken == {"kernels.plugins.schema", "kernels.head_sizes"}
    imports = "import sys, kernels.plugins.schema, kernels.head_sizes"
    script = f"{imports}; sys.exit('torch' in sys.modules or 'triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 0


def private_tripy(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, expression) of what reaches behind Tripy's public API."""
    public = {name.removeprefix("nvtripy.") for name in tp.__all__}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "nvtripy":
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, a.name) for a in node.names if a.name.startswith("nvtripy."))
        elif isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            behind = node.attr.startswith("_") and not node.attr.endswith("__") and owner != "self"
            if behind or node.attr == "trace_tensor" or (owner == "tp" and node.attr not in public):
                yield node.lineno, ast.unparse(node)


def test_the_port_uses_public_tripy_only():
    actual = [
        f"{path}:{line} {what}"
        for path, tree in sources("tripy_port").items()
        for line, what in private_tripy(tree)
    ]
    assert not actual, "\n".join(actual)


@pytest.mark.parametrize(
    "source",
    [
        "from nvtripy.trace.ops import gather",
        "import nvtripy.frontend",
        "tp.frontend.ops",
        "x.trace_tensor",
        "x._stack",
    ],
)
def test_private_tripy_is_seen(source):
    assert list(private_tripy(ast.parse(source)))


# A signature: whether it is a property, what it returns, and (name, annotation, default) of each parameter.
Signature = tuple[bool, str, dict[str, tuple[str, str]]]


def public_names(folder: str) -> dict[str, Signature | None]:
    """ "file.function", "file.Class" (without a signature) and "file.Class.method" of the public names."""
    names: dict[str, Signature | None] = {}
    for path, tree in sources(folder).items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                names[f"{Path(path).stem}.{node.name}"] = None
                for member in node.body:
                    if isinstance(member, ast.FunctionDef) and _is_public(member.name):
                        names[f"{Path(path).stem}.{node.name}.{member.name}"] = _signature(member)
            elif isinstance(node, ast.FunctionDef) and _is_public(node.name):
                names[f"{Path(path).stem}.{node.name}"] = _signature(node)
    return names


def _is_public(name: str) -> bool:
    return name == "__init__" or not name.startswith("_")


def _signature(node: ast.FunctionDef) -> Signature:
    def text(expression: ast.expr | None) -> str:
        return (
            "" if expression is None else re.sub(r"\b(torch\.nn|torch|nn)\.", "tp.", ast.unparse(expression))
        )

    positional = node.args.posonlyargs + node.args.args
    defaults = [None] * (len(positional) - len(node.args.defaults)) + list(node.args.defaults)
    parameters = [*zip(positional, defaults, strict=True)]
    parameters += zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    parameters += [(variadic, None) for variadic in (node.args.vararg, node.args.kwarg) if variadic]
    is_property = any(text(decorator) == "property" for decorator in node.decorator_list)
    return is_property, text(node.returns), {a.arg: (text(a.annotation), text(d)) for a, d in parameters}


def covered(name: str) -> bool:
    """Whether `GAPS` lists a name or something that contains it."""
    parts = name.split(".")
    return any(".".join(parts[: i + 1]) in GAPS for i in range(len(parts)))


def mismatches(reference: dict[str, Signature | None], port: dict[str, Signature | None]) -> Iterator[str]:
    """Names that are neither mirrored nor listed. The port may add `ADDITIONS` and a parameter `dtype`."""
    for name, signature in reference.items():
        if covered(name):
            continue
        if name not in port:
            yield f"{name} has no counterpart and is not in GAPS"
        elif signature is not None:
            is_property, returns, parameters = signature
            stored = {key: value for key, value in parameters.items() if not covered(f"{name}.{key}")}
            port_property, port_returns, port_parameters = port[name]
            port_parameters = {k: v for k, v in port_parameters.items() if f"{name}.{k}" not in ADDITIONS}
            if "dtype" not in parameters and list(port_parameters)[-1:] == ["dtype"]:
                port_parameters = {k: v for k, v in port_parameters.items() if k != "dtype"}
            wanted, actual = (
                (is_property, returns, list(stored.items())),
                (port_property, port_returns, list(port_parameters.items())),
            )
            if wanted != actual:
                yield f"{name}\n  reference {wanted}\n  port      {actual}"


def test_the_port_mirrors_every_public_name_and_signature():
    actual = list(mismatches(public_names("reference"), public_names("tripy_port")))
    assert not actual, "\n".join(actual)


@pytest.mark.parametrize("change", ["missing", "renamed parameter", "default", "order", "property"])
def test_a_departure_of_the_port_is_seen(change):
    reference = public_names("reference")
    name = "similarity.DotProductSimilarity.forward"
    is_property, returns, parameters = reference[name]
    first, *rest = parameters.items()
    port = dict(reference)
    if change == "missing":
        del port[name]
    else:
        port[name] = {
            "renamed parameter": (is_property, returns, {"me": first[1], **dict(rest)}),
            "default": (is_property, returns, {**parameters, first[0]: ("", "None")}),
            "order": (is_property, returns, dict([*rest, first])),
            "property": (True, returns, parameters),
        }[change]
    assert any(entry.startswith(name) for entry in mismatches(reference, port))


def test_every_listed_gap_is_one():
    reference, port = public_names("reference"), public_names("tripy_port")
    for gap, reason in GAPS.items():
        assert reason
        parents = {name for name in reference if name == gap or name.startswith(f"{gap}.")}
        owner, _, parameter = gap.rpartition(".")
        is_parameter = (
            owner in reference and reference[owner] is not None and parameter in reference[owner][2]
        )
        assert parents or is_parameter, f"{gap} names nothing in reference"
        assert not parents & set(port), f"{gap} has a counterpart"


def test_every_listed_addition_is_one():
    reference, port = public_names("reference"), public_names("tripy_port")
    for addition, reason in ADDITIONS.items():
        owner, _, parameter = addition.rpartition(".")
        assert reason
        assert parameter in port[owner][2], f"{addition} names nothing in the port"
        assert parameter not in reference[owner][2], f"{addition} is in the reference, too"


def test_validation_says_the_same_on_both_sides():
    files = [sources(folder)[f"{folder}/validation.py"].body[1:] for folder in ("reference", "tripy_port")]
    assert ast.dump(ast.Module(files[0], [])) == ast.dump(ast.Module(files[1], []))


def small_tables(case: str):
    """A case with few items, or rows of a table: no key depends on their number."""
    case = load_case(case)
    if case.family in ("hstu", "stu"):
        few = {"num_items": min(case.model.num_items, 100)}
    elif case.family in ("dlrmv3", "lecture_dlrm"):
        return case
    else:
        few = {"max_rows_per_table": min(max(case.model.table_rows), 300)}
    return case.model_copy(update={"model": case.model.model_copy(update=few)})


def build_reference(case) -> torch.nn.Module:
    return getattr(reference.build, f"build_{case.family}")(case.model)


def build_port(case, dtype: tp.dtype = tp.float32) -> tp.Module:
    return getattr(tripy_port.build, f"build_{case.family}")(case.model, dtype)


@pytest.mark.parametrize("dtype", [tp.float32, tp.float16, tp.bfloat16], ids=str)
@pytest.mark.parametrize("case", list_cases())
def test_state_dicts_have_the_same_names_shapes_and_dtypes(case, dtype):
    case = small_tables(case)
    reference = build_reference(case).to(getattr(torch, str(dtype))).state_dict()
    port = build_port(case, dtype).state_dict()
    described = {
        name: (tuple(map(int, parameter.shape)), f"torch.{parameter.dtype}")
        for name, parameter in port.items()
    }
    assert described == {name: (tuple(value.shape), str(value.dtype)) for name, value in reference.items()}


def module_tree(module: tp.Module, prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, child in module.named_children():
        yield prefix + name, type(child).__name__
        yield from module_tree(child, f"{prefix}{name}.")


@pytest.mark.parametrize("case", list_cases())
def test_module_trees_have_the_same_paths_and_classes(case):
    case = small_tables(case)
    # Lists of PyTorch are lists of Python in the port, unless they have a forward.
    reference = {
        path: type(module).__name__
        for path, module in build_reference(case).named_modules()
        if path and type(module) not in (torch.nn.ModuleList, torch.nn.ParameterList)
    }
    assert dict(module_tree(build_port(case))) == reference
