"""Loading of the compiled library, and the reason reported if it is unavailable."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import semaopt
from semaopt.kernels import loader
from tests.kernels.common import needs_c
from tests.sources import copy_sources


def test_availability_has_a_truth_value_and_a_reason():
    available = semaopt.kernels.available()
    assert bool(available) == (loader.library() is not None)
    assert str(available) == available.reason
    assert len(str(available)) > 10


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_library_is_built_where_a_compiler_is():
    """Without this test a C file that does not compile would only skip the tests of the C step."""
    found = semaopt.kernels.available()
    assert found, found.reason


@needs_c
@pytest.mark.skipif(sys.platform == "win32", reason="one thread on Windows")
def test_library_uses_the_threads_of_torch():
    assert "omp" in loader.library().runtime.lower()


@needs_c
@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not installed")
def test_library_links_to_no_runtime_of_openmp():
    needed = subprocess.run(["readelf", "-d", loader.LIBRARY], capture_output=True, text=True, check=False).stdout
    assert "omp" not in needed, "a runtime of its own would be a second pool of threads"


@needs_c
@pytest.mark.skipif(platform.machine() != "x86_64", reason="other machines have one instruction set here")
@pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed")
@pytest.mark.parametrize(("isa", "register"), [("avx2", "ymm"), ("avx512", "zmm"), ("portable", "xmm")])
def test_each_instruction_set_uses_its_own_vector_registers(isa, register):
    """No product is fused with a sum, which would round differently. The machine need not support the set."""
    disassembly = subprocess.run(["objdump", "-d", loader.LIBRARY], capture_output=True, text=True, check=True).stdout
    functions = [
        part for part in disassembly.split("\n\n") if re.search(rf"<adam_\w+_{isa}>:", part.partition("\n")[0])
    ]
    assert len(functions) == 5, "one for each storage"
    for function in functions:
        assert re.search(rf"vsqrtp[sd].*{register}" if isa != "portable" else r"sqrtp[sd].*xmm", function)
        assert "vfm" not in function
    if isa == "portable":
        assert not any("ymm" in function for function in functions)


def reload(monkeypatch, **paths):
    loader._load.cache_clear()
    monkeypatch.setattr(loader, "_load", loader._load.__wrapped__)
    for name, path in paths.items():
        monkeypatch.setattr(loader, name, path)
    return loader.available()


def test_failed_build_reports_its_reason(monkeypatch, tmp_path):
    (tmp_path / "failed").write_text("no C compiler: 'cc' was not found\n")
    availability = reload(monkeypatch, LIBRARY=tmp_path / "none", FAILURE=tmp_path / "failed")
    assert not availability
    assert str(availability).startswith(
        "the C step is not compiled: no C compiler: 'cc' was not found; install a C compiler"
    )


def test_sources_that_were_never_built(monkeypatch, tmp_path):
    availability = reload(monkeypatch, LIBRARY=tmp_path / "none", FAILURE=tmp_path / "none")
    assert "this copy of semaopt was never built" in str(availability)


def test_broken_library(monkeypatch, tmp_path):
    (tmp_path / "broken").write_text("not a library")
    availability = reload(monkeypatch, LIBRARY=tmp_path / "broken")
    assert not availability
    assert "cannot be loaded" in str(availability)


@needs_c
def test_library_built_from_other_sources(monkeypatch):
    monkeypatch.setattr(loader, "INTERFACE", -1)
    assert "was built from other sources; install semaopt again" in str(reload(monkeypatch))


def test_library_can_be_disabled(monkeypatch):
    monkeypatch.setenv(loader.SWITCH, "1")
    assert str(reload(monkeypatch)) == "switched off by SEMAOPT_NO_C=1"


def build(folder: Path, **environment: str) -> Path:
    """Build a wheel from a copy of the sources."""
    source = copy_sources(folder / "source")
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", folder, source]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = folder.glob("*.whl")
    return wheel


@pytest.mark.skipif(sys.platform == "win32", reason="setuptools ignores CC there")
def test_install_without_a_compiler_works_and_reports_the_reason(tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    wheel = build(tmp_path, CC="/bin/false")
    assert wheel.name.endswith("-py3-none-any.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "import semaopt, torch; print(semaopt.kernels.available()); x = torch.nn.Parameter(torch.ones(2));"
    code += "x.grad = torch.ones(2); o = semaopt.ASA([x]); o.step(); o.step(); print(x[0].item() < 1)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=True)
    assert done.stdout.startswith(
        "the C step is not compiled: the C compiler '/bin/false' ended with status 1; install"
    )
    assert done.stdout.endswith("True\n")
    assert done.stderr.count("take longer") == 1


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_wheel_with_the_library_fits_one_platform_and_every_python(tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    wheel = build(tmp_path)
    names = zipfile.ZipFile(wheel).namelist()
    assert "-py3-none-" in wheel.name
    assert not wheel.name.endswith("-any.whl")
    assert f"semaopt/kernels/{loader.LIBRARY.name}" in names
    assert not [name for name in names if name.endswith((".c", ".h", ".failed"))]
