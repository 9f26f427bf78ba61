"""The Triton step: interpreted in another process, compiled for two GPUs without having one, and chosen by "auto"."""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import semaopt
from semaopt.kernels import dispatch, triton_launch
from tests.kernels.common import normal

HERE = Path(__file__).parent
needs_triton = pytest.mark.skipif(
    not triton_launch._installed(), reason="Triton is not installed: pip install --no-deps triton"
)


def interpret(*arguments: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(HERE / "interpreted.py")]
    environment = os.environ | {triton_launch.INTERPRETER: "1"}
    done = subprocess.run(
        [*command, *arguments], cwd=HERE.parents[1], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert re.search(r"\d+ passed", done.stdout)


@needs_triton
def test_kernels_agree_with_the_loop_under_the_interpreter():
    interpret("-m", "not slow")


@needs_triton
@pytest.mark.slow
def test_kernels_agree_with_the_loop_for_every_option():
    interpret("-m", "slow")


# ---- compiled without a GPU -----------------------------------------------------------------------------------------

STORAGES = {
    "float32": ("float32", "float32"),
    "float64": ("float64", "float64"),
    "bf16": ("bfloat16", "float32"),
    "float16": ("float16", "float32"),
    "float32, bf16 state": ("float32", "bfloat16"),
    "bf16, bf16 state": ("bfloat16", "bfloat16"),
}
SCALINGS = {"shb": 0, "adam": 1, "amsgrad": 2}
BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def build(kernel, constants, capability, warps, **pointers):
    """Return the PTX of a kernel, and its use of registers and memory as ptxas reports it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {
        p.name: "constexpr" if p.name in constants else p.annotation_type or pointers.get(p.name, "*i64")
        for p in kernel.params
    }
    options = {"num_warps": warps, "enable_fp_fusion": False}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return built.asm["ptx"], built.asm["cubin"]


def usage(cubin, folder):
    """Return bytes of stack and local memory per thread."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    text = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True, check=True).stdout
    return tuple(int(re.search(rf"{name}:(\d+)", text)[1]) for name in ("STACK", "LOCAL"))


def vector_bytes(ptx, threads, block):
    """Return the bytes per element that the 128-bit loads and stores of a whole chunk move."""
    found = collections.Counter(re.findall(r"\b(ld|st)\.global\.(?:v4\.b32|v2\.b64)", ptx))
    return found["ld"] * 16 * threads / block, found["st"] * 16 * threads / block


def table_row(scaling, storage, averaged):
    """Return (read, written) bytes per element in theory: x, g, v, u, u_max and the average of iterates."""
    x, s = (BYTES[name] for name in STORAGES[storage])
    wide = 8 if storage == "float64" else 4
    averages = s * (1 + SCALINGS[scaling]) + wide * averaged
    return 2 * x + averages, x + averages


CASES = [
    (c, scaling, storage, averaged)
    for c in (80, 90)
    for scaling in SCALINGS
    for storage in STORAGES
    for averaged in (0, 1)
]
FAST = {(80, "adam", "float32", 0), (90, "amsgrad", "bf16, bf16 state", 1), (90, "shb", "float64", 0)}


@needs_triton
@pytest.mark.parametrize(
    ("capability", "scaling", "storage", "averaged"),
    [pytest.param(*case, marks=[] if case in FAST else [pytest.mark.slow]) for case in CASES],
)
def test_update_moves_each_byte_once_in_128_bits(capability, scaling, storage, averaged, tmp_path):
    import triton.language as tl

    from semaopt.kernels import triton_step as kernels

    xt, st = (getattr(tl, name) for name in STORAGES[storage])
    constants = {
        "SCALING": SCALINGS[scaling],
        "XT": xt,
        "ST": st,
        "AT": tl.float64 if storage == "float64" else tl.float32,
    }
    constants |= {"ALIGNED": True, "AVERAGED": bool(averaged), "NORMED": False, "BLOCK": kernels.BLOCK}
    ptx, cubin = build(kernels.update, constants, capability, kernels.WARPS)
    assert vector_bytes(ptx, 32 * kernels.WARPS, kernels.BLOCK) == table_row(scaling, storage, averaged)
    assert usage(cubin, tmp_path) == (0, 0)
    assert ".local" not in ptx
    assert "fma." not in ptx, "a fused multiply-add rounds differently from the C step"
    if scaling != "shb":
        assert re.findall(r"\b(?:div|sqrt)\.(\w+)\.", ptx) == ["rn"] * len(re.findall(r"\b(?:div|sqrt)\.", ptx))


@needs_triton
@pytest.mark.parametrize("capability", [80, 90])
def test_norm_and_ascent_move_each_byte_once(capability, tmp_path):
    import triton.language as tl

    from semaopt.kernels import triton_auc
    from semaopt.kernels import triton_step as kernels

    shared = {"XT": tl.float32, "AT": tl.float32, "ALIGNED": True, "BLOCK": kernels.BLOCK}
    threads = 32 * kernels.WARPS
    ptx, cubin = build(kernels.norm, {**shared, "ST": tl.float32}, capability, kernels.WARPS, partial="*fp64")
    assert vector_bytes(ptx, threads, kernels.BLOCK) == (12, 0)  # x, g and v; one number per chunk is written
    assert usage(cubin, tmp_path) == (0, 0)
    ptx, cubin = build(kernels.ascend, shared, capability, kernels.WARPS)
    assert vector_bytes(ptx, threads, kernels.BLOCK) == (8, 4)
    assert usage(cubin, tmp_path) == (0, 0)
    normed = {**shared, "ST": tl.float32, "SCALING": 0, "AVERAGED": False, "NORMED": True}
    ptx, cubin = build(kernels.update, normed, capability, kernels.WARPS, norm_square="*fp64")
    assert vector_bytes(ptx, threads, kernels.BLOCK) == (12, 8)
    assert usage(cubin, tmp_path) == (0, 0)
    real = {"scores": "*fp32", "gradient": "*fp32", "labels": "*i64", "numbers": "*fp64", "out": "*fp64"}
    flags = {"SIGMOID": True, "FLOATING": False, "SIGNED": True, "BLOCK": triton_auc.BLOCK}
    _, cubin = build(triton_auc.objective, flags, capability, triton_auc.WARPS, **real)
    assert usage(cubin, tmp_path) == (0, 0)


@needs_triton
def test_unaligned_tensors_are_compiled_without_vector_loads(tmp_path):
    import triton.language as tl

    from semaopt.kernels import triton_step as kernels

    constants = {"SCALING": 1, "XT": tl.float32, "ST": tl.float32, "AT": tl.float32, "AVERAGED": False, "NORMED": False}
    ptx, cubin = build(kernels.update, {**constants, "ALIGNED": False, "BLOCK": kernels.BLOCK}, 80, kernels.WARPS)
    assert vector_bytes(ptx, 32 * kernels.WARPS, kernels.BLOCK) == (0, 0)
    assert usage(cubin, tmp_path) == (0, 0)


def test_table_of_bytes_in_the_docs_is_the_one_tested():
    page = (HERE.parents[1] / "docs/how-to/fast.md").read_text()
    for storage in STORAGES:
        cells = [sum(table_row(scaling, storage, 0)) for scaling in SCALINGS]
        assert f"| {storage} | {' | '.join(map(str, cells))} |" in page


# ---- choice ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def fresh(monkeypatch):
    monkeypatch.setattr(triton_launch, "_failures", {})
    dispatch._warn_once_about_triton.cache_clear()
    yield
    dispatch._warn_once_about_triton.cache_clear()


def steps(implementation="auto", n=3):
    """Take steps for which "auto" chooses "triton", as on CUDA; the arithmetic runs on the CPU."""
    x = torch.nn.Parameter(normal((4,), torch.float32, 0))
    optimizer = semaopt.ASA([x], implementation=implementation)
    for k in range(n):
        x.grad = normal((4,), torch.float32, k + 1)
        optimizer.step()
    return x.detach()


@pytest.mark.parametrize("why", ["absent", "broken"])
def test_auto_falls_back_to_foreach_with_one_message(why, fresh, monkeypatch, caplog):
    """The kernels cannot be imported, or Triton is missing: the steps are taken, and one message says how."""
    monkeypatch.setenv(triton_launch.INTERPRETER, "1")  # the CPU counts as supported
    monkeypatch.setattr(triton_launch, "_installed", lambda: why == "broken")
    monkeypatch.setitem(sys.modules, "semaopt.kernels.triton_step", None)
    monkeypatch.setattr(dispatch, "on_cuda", lambda x: True)
    monkeypatch.setattr(dispatch.compiled, "step", lambda *args: False)
    taken = []
    foreach = dispatch.foreach_group
    monkeypatch.setattr(dispatch, "foreach_group", lambda *args: (taken.append(1), foreach(*args)))
    with caplog.at_level(logging.WARNING, logger="semaopt"):
        x = steps()
    assert len(taken) == 3
    assert torch.equal(x, steps("foreach"))
    assert len(caplog.records) == 1
    text = caplog.records[0].getMessage()
    assert ("pip install triton" if why == "absent" else "did not compile on cpu (ModuleNotFoundError") in text
    assert "foreach" in text
    with pytest.raises(ValueError, match=r"implementation='triton': (Triton is not|the Triton step did not)"):
        steps("triton")


@needs_triton
@pytest.mark.parametrize("name", ["lr", "beta"])
def test_rate_on_the_device_is_not_read(name, fresh, monkeypatch):
    """A tensor on the meta device has no value: a step that reads a number from it would raise."""
    monkeypatch.setenv(triton_launch.INTERPRETER, "1")  # the CPU counts as supported
    monkeypatch.setattr(dispatch, "on_cuda", lambda x: True)
    monkeypatch.setattr(dispatch.compiled, "step", lambda *args: False)
    taken = []
    monkeypatch.setattr(dispatch, "foreach_group", lambda *args: taken.append(1))
    for path in ("auto", "triton"):
        x = torch.nn.Parameter(torch.ones(4))
        x.grad = torch.ones(4)
        optimizer = semaopt.ASA([x], implementation=path)
        optimizer.param_groups[0][name] = torch.empty((), device="meta")
        if path == "auto":
            optimizer.step()
            continue
        with pytest.raises(ValueError, match=r"'triton': a rate is a tensor on meta, and the Triton.*use 'auto'"):
            optimizer.step()
    assert taken == [1]


@needs_triton
def test_compile_error_is_kept_and_nothing_changes(fresh, monkeypatch):
    class Broken:
        def warmup(self, *args, **options):
            raise RuntimeError("ptxas died\nlong log")

    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    device = torch.device("cuda", 0)
    assert triton_launch.why_unavailable(device) is None
    assert not triton_launch.compiles(Broken(), (), {}, device)
    assert triton_launch.why_unavailable(device) == (
        "the Triton step did not compile on cuda:0 (RuntimeError: ptxas died)"
    )


class CustomScaling:
    g0, buffers = 1.0, ()

    def update_(self, m, seen):
        return seen.g.square()


def test_unsupported_requests(monkeypatch):
    x = torch.nn.Parameter(torch.ones(3))
    with pytest.raises(ValueError, match=r"'triton': the scaling CustomScaling is not one of Table 2.*use 'auto'"):
        semaopt.ASA([x], scaling=CustomScaling(), implementation="triton")
    monkeypatch.setattr(triton_launch, "_installed", lambda: True)
    with pytest.raises(ValueError, match=r"'triton': the Triton step needs a CUDA tensor, and the parameter is on cpu"):
        semaopt.ASA([x], implementation="triton")
    monkeypatch.setattr(triton_launch, "_installed", lambda: False)
    with pytest.raises(ValueError, match=r"'triton': Triton is not installed; install it with pip install triton"):
        semaopt.ASA([x], implementation="triton")
