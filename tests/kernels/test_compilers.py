"""The C step under other compilers: clang gives the same bits as gcc, and the code for MSVC compiles and agrees."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from semaopt.kernels import loader
from tests.kernels.common import assert_agree, needs_c, trained
from tests.sources import ROOT, copy_sources

SOURCES = sorted((ROOT / "semaopt" / "kernels").glob("*.c"))
needs_clang = pytest.mark.skipif(shutil.which("clang") is None, reason="clang is not installed")
#: The declarations of the headers of Windows that the library uses.
WINDOWS = {
    "string.h": "#include <stddef.h>\nvoid *memcpy(void *, const void *, size_t); void *memset(void *, int, size_t);",
    "stdlib.h": "#include <stddef.h>\n"
    "void *malloc(size_t), *calloc(size_t, size_t), *realloc(void *, size_t), free(void *);",
    "math.h": '#define INFINITY __builtin_inff()\n#define NAN __builtin_nanf("")\n'
    "#define isnan __builtin_isnan\n#define isinf __builtin_isinf\n"
    "double sqrt(double), exp(double), expm1(double), log(double), log1p(double), floor(double), fabs(double);"
    "float sqrtf(float);",
    "intrin.h": "#include <stdint.h>\n#if defined(_M_X64)\n#include <xmmintrin.h>\n#endif\n"
    "int64_t _InterlockedExchangeAdd64(int64_t volatile *, int64_t);",
}


def headers(folder: Path, texts: dict[str, str]) -> Path:
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).write_text(f"#pragma once\n{text}\n")
    return folder


def compiled(*command: object) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def agrees(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Compare steps of this library with those of the installed one, bit by bit."""
    runs = [
        (torch.float32, "adam", {"weight_decay": 0.1, "clip_scaling": (0.5, 2.0)}),
        (torch.float64, "amsgrad", {}),
        (torch.bfloat16, "shb", {"maximize": True}),
        (torch.float32, "adam+", {}),
        (torch.float32, "adabound", {"state_dtype": torch.bfloat16}),
    ]
    expected = [trained("c", dtype, scaling, **options) for dtype, scaling, options in runs]
    other = loader.Library(path)
    monkeypatch.setattr(loader, "_load", lambda: (other, loader.Availability(True, "")))
    for (dtype, scaling, options), run in zip(runs, expected, strict=True):
        assert_agree(run, trained("c", dtype, scaling, **options))


@needs_c
@needs_clang
@pytest.mark.slow
def test_clang_gives_the_same_bits(monkeypatch, tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    source = copy_sources(tmp_path / "source")
    environment = {**os.environ, "CC": "clang", "CFLAGS": "-Wall -Wextra -Werror"}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    library = source / "semaopt" / "kernels" / loader.LIBRARY.name
    assert library.exists(), done.stdout + done.stderr
    agrees(monkeypatch, library)


@needs_clang
@pytest.mark.slow
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_sources_compile_for_windows(machine, tmp_path):
    """MSVC itself is not available here; clang with its target defines _MSC_VER and _WIN32."""
    include = headers(tmp_path / "include", WINDOWS)
    flags = ["-std=c11", "-ffreestanding", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
    for source in SOURCES:
        compiled("clang", f"--target={machine}-pc-windows-msvc", *flags, "-I", include, source)


@needs_c
@needs_clang
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="compiles the code for MSVC as a Linux library")
def test_the_code_for_msvc_gives_the_same_bits(monkeypatch, tmp_path):
    exchange = "{ return __atomic_fetch_add(at, value, __ATOMIC_RELAXED); }"
    intrinsics = (
        "#include <stdint.h>\n#include <xmmintrin.h>\n"
        f"static int64_t _InterlockedExchangeAdd64(int64_t *at, int64_t value) {exchange}"
    )
    include = headers(tmp_path / "include", {"intrin.h": intrinsics})
    library = tmp_path / "_step.so"
    dialect = ["-fms-extensions", "-fdeclspec", "-D_MSC_VER=1940", "-D_M_X64", "-I", include]
    flags = ["-std=gnu11", "-O2", "-ffp-contract=off", "-Wno-unknown-pragmas", "-Wno-ignored-attributes"]
    compiled("clang", "-shared", "-fPIC", "-pthread", *flags, *dialect, *SOURCES, "-lm", "-o", library)
    agrees(monkeypatch, library)
    assert loader.library().isa == "portable"


@pytest.mark.parametrize("kind", ["unix", "msvc"])
def test_each_compiler_gets_its_flags(kind, monkeypatch):
    setuptools = pytest.importorskip("setuptools", minversion="77")
    from setuptools.command.build_ext import build_ext
    from setuptools.dist import Distribution

    given, used = {}, {}
    monkeypatch.setattr(setuptools, "setup", lambda **options: given.update(options))
    monkeypatch.setattr(build_ext, "build_extension", lambda _, ext: used.update(vars(ext)))
    runpy.run_path(str(ROOT / "setup.py"))
    build = given["cmdclass"]["build_ext"](Distribution())
    build.ensure_finalized()
    build.compiler = SimpleNamespace(compiler_type=kind)
    build.build_extension(given["ext_modules"][0])
    flags = [*used["extra_compile_args"], *used["extra_link_args"]]
    assert flags
    assert all(flag.startswith("/" if kind == "msvc" else "-") for flag in flags)
    assert {Path(name).name for name in used["sources"]} == {path.name for path in SOURCES}
    assert {Path(name).name for name in used["depends"]} == {path.name for path in SOURCES[0].parent.glob("*.h")}
