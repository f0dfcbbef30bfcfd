"""The package refuses to shadow native packages, and knows which nvtripy it supports."""

import subprocess
import sys
import types
from pathlib import Path

import pytest

import mlir_tensorrt
import tensorrt
from tripy_portable import guard

NATIVE = [
    "tensorrt",
    "tensorrt-cu12",
    "tensorrt_cu13_libs",
    "mlir-tensorrt-compiler",
    "mlir_tensorrt_runtime",
    "tensorrt-libs",
]
HARMLESS = ["tensorrt-rtx-cu13", "tensorrt_rtx", "torch-tensorrt", "tripy-portable", "nvtripy", "tensorrtx"]


def test_the_stand_ins_say_what_they_are():
    assert mlir_tensorrt.__portable__ is True
    assert tensorrt.__portable__ is True
    assert not hasattr(tensorrt, "__version__")
    assert not hasattr(tensorrt, "Builder")


@pytest.mark.parametrize("name", NATIVE)
def test_installation_beside_native_packages_is_refused(name, tmp_path):
    (tmp_path / f"{name.replace('-', '_')}-10.15.0.dist-info").mkdir()
    with pytest.raises(guard.NativePackagesPresent, match="refuses to shadow native packages"):
        guard.refuse_to_shadow_installation([tmp_path])


def test_installation_elsewhere_is_allowed(tmp_path):
    for name in HARMLESS:
        (tmp_path / f"{name.replace('-', '_')}-1.0.dist-info").mkdir()
    guard.refuse_to_shadow_installation([tmp_path, tmp_path / "missing"])


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.full if at else ()) for at, n in enumerate(NATIVE)]
)
def test_import_beside_native_packages_is_refused(name, tmp_path):
    """In a process of its own, with a native distribution's metadata on the path."""
    metadata = tmp_path / f"{name.replace('-', '_')}-10.15.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 10.15.0\n")
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import mlir_tensorrt"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "refuses to shadow native packages" in result.stderr


def test_the_build_is_refused(tmp_path, monkeypatch):
    """The set-up script itself fails, whatever pip isolates."""
    (tmp_path / "tensorrt-10.15.0.dist-info").mkdir()
    monkeypatch.setattr(guard.sysconfig, "get_path", lambda key: str(tmp_path))
    with pytest.raises(guard.NativePackagesPresent):
        guard.refuse_to_shadow_installation()
    setup = (Path(__file__).parents[1] / "setup.py").read_text()
    assert "refuse_to_shadow_installation()" in setup


@pytest.mark.parametrize("version", ["0.1.5", "0.2.0"])
def test_other_versions_of_nvtripy_are_refused(version, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvtripy", types.SimpleNamespace(__version__=version))
    with pytest.raises(guard.UnsupportedNvtripy, match=f"found {version}"):
        guard.check_nvtripy_version()


def test_the_installed_version_passes():
    guard.check_nvtripy_version()


@pytest.mark.parametrize("version", guard.SUPPORTED_NVTRIPY)
def test_a_supported_version_passes(version, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvtripy", types.SimpleNamespace(__version__=version))
    guard.check_nvtripy_version()
