"""Equality of the compiled step and the loop; bitwise equality across instruction sets and thread counts."""

from __future__ import annotations

import copy
import gc
import itertools
import math
import os
import signal
import threading
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import semaopt
from semaopt.kernels import compiled
from semaopt.kernels.ascend import ascend_box_loop_
from semaopt.kernels.loader import library
from tests.kernels.common import CLOSE, OPTIONS, SCALINGS, assert_agree, isas, needs_c, normal, parameters, trained

pytestmark = needs_c
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


@pytest.fixture(params=isas())
def isa(request):
    lib = library()
    before = lib.isa
    assert lib.use_isa(request.param)
    yield request.param
    lib.use_isa(before)


@pytest.fixture(params=["dlpack", "python"])
def reader(request, monkeypatch):
    """Select one of the two ways to read tensor addresses."""
    lib = library()
    if request.param == "dlpack" and not lib.reads_tensors:
        pytest.skip("this torch has no DLPack exchange")
    monkeypatch.setattr(lib, "reads_tensors", request.param == "dlpack")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_compiled_step_equals_loop(scaling, options, dtype):
    assert_agree(trained("c", dtype, scaling, **options), trained("loop", dtype, scaling, **options), **CLOSE[dtype])


def test_readers_give_bitwise_equal_results(reader):
    for scaling in SCALINGS:
        both = [trained("c", torch.float32, scaling, bias_correction=True) for _ in range(2)]
        assert_agree(*both)
        assert_agree(both[0], trained("loop", torch.float32, scaling, bias_correction=True), **CLOSE[torch.float32])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_instruction_sets_give_bitwise_equal_results(isa, dtype):
    mine = [trained("c", dtype, scaling, bias_correction=True, weight_decay=0.1) for scaling in SCALINGS]
    assert library().use_isa("portable")
    for scaling, one in zip(SCALINGS, mine, strict=True):
        assert_agree(one, trained("c", dtype, scaling, bias_correction=True, weight_decay=0.1))


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_thread_counts_give_bitwise_equal_results(scaling, threads):
    threads(1)
    shapes = ((200_003,), (100, 7), (50_000,), (1,))
    one = trained("c", torch.float32, scaling, xs=parameters(torch.float32, shapes))
    for n in (2, 3, 4):
        threads(n)
        assert library().threads(n) == (n if library().runtime else 1)
        assert_agree(one, trained("c", torch.float32, scaling, xs=parameters(torch.float32, shapes)))


shapes = st.lists(st.lists(st.integers(0, 9), max_size=4).map(tuple), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(shapes=shapes, scaling=st.sampled_from(SCALINGS), dtype=st.sampled_from(DTYPES), data=st.data())
def test_arbitrary_shapes(shapes, scaling, dtype, data):
    def start():
        xs = [normal(shape, dtype, i) for i, shape in enumerate(shapes)]
        return [torch.nn.Parameter(x.permute(order)) for x, order in zip(xs, orders, strict=True)]

    orders = [data.draw(st.permutations(range(len(shape)))) for shape in shapes]
    options = data.draw(st.sampled_from(OPTIONS))
    left, right = (trained(path, dtype, scaling, xs=start(), steps=3, **options) for path in ("c", "loop"))
    assert_agree(left, right, **CLOSE[dtype])


@settings(max_examples=30, deadline=None, derandomize=True)
@given(sizes=st.lists(st.integers(0, 300), min_size=1, max_size=40), offset=st.integers(0, 7))
def test_slices_of_one_buffer(sizes, offset):
    """Step unaligned, adjacent parameters: none may be written outside its bounds."""
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size + offset)

    def start():
        flat = normal((ends[-1] + 8,), torch.float32, 5)
        xs = [torch.nn.Parameter(flat[a + offset : b]) for a, b in itertools.pairwise(ends)]
        return flat, xs

    (before, _), (flat, xs), (_, twins) = start(), start(), start()
    assert_agree(trained("c", torch.float32, xs=xs), trained("loop", torch.float32, xs=twins), **CLOSE[torch.float32])
    inside = torch.zeros_like(flat, dtype=torch.bool)
    for a, b in itertools.pairwise(ends):
        inside[a + offset : b] = True
    assert torch.equal(flat[~inside], before[~inside])


def test_many_tensors_and_mixed_dtypes():
    def start():
        return [torch.nn.Parameter(normal((i % 7,), DTYPES[i % 3], i)) for i in range(700)]

    assert_agree(*(trained(path, torch.float64, xs=start()) for path in ("c", "loop")), **CLOSE[torch.bfloat16])


def test_nan_and_inf_propagate_as_in_the_loop():
    for scaling in SCALINGS:
        if scaling == "adam+":
            continue  # a NaN in the norm makes every coordinate NaN, on both paths
        ends = []
        for path in ("c", "loop"):
            x = torch.nn.Parameter(torch.arange(70.0))
            optimizer = semaopt.ASA(
                [x], scaling=scaling, implementation=path, weight_decay=0.0, clip_scaling=(0.1, 9.0)
            )
            for k in range(3):
                x.grad = torch.ones(70)
                x.grad[k * 20], x.grad[k * 20 + 1], x.grad[k * 20 + 2] = math.nan, math.inf, -math.inf
                optimizer.step()
            ends.append(x.detach())
        torch.testing.assert_close(*ends, equal_nan=True)


def test_gradients_with_another_layout_are_copied_first():
    """The C step handles permuted, broadcast and negative-view gradients."""
    made = {
        "transposed": lambda g: g.t().contiguous().t(),
        "broadcast": lambda g: g[:1].expand_as(g),
        "negative": lambda g: torch._neg_view(-g),
        "strided": lambda g: torch.stack([g, g], -1)[..., 0],
    }
    for make in made.values():
        ends = []
        for path in ("c", "loop"):
            x = torch.nn.Parameter(normal((6, 5), torch.float32, 1))
            optimizer = semaopt.ASA([x], implementation=path)
            for k in range(3):
                x.grad = make(normal((6, 5), torch.float32, k))
                optimizer.step()
            ends.append(([x], optimizer))
        assert_agree(*ends, **CLOSE[torch.float32])


def test_gradient_may_be_the_parameter():
    ends = []
    for path in ("c", "loop"):
        x = torch.nn.Parameter(normal((1000,), torch.float32, 1))
        optimizer = semaopt.ASA([x], implementation=path, scaling="shb", lr=0.5, beta=0.5)
        for _ in range(3):
            x.grad = x.detach()
            optimizer.step()
        ends.append(([x], optimizer))
    assert_agree(*ends, **CLOSE[torch.float32])


def test_replaced_tensors_are_found():
    """Replace x.data, states and gradients between steps, even with other strides."""
    ends = []
    for path in ("auto", "loop"):
        x = torch.nn.Parameter(normal((6, 4), torch.float32, 1))
        optimizer = semaopt.ASA([x], implementation=path)
        for k in range(6):
            x.grad = normal((6, 4), torch.float32, k)
            if k == 2:
                x.data = x.data.clone()
            if k == 3:
                x.data = x.data.t().contiguous().t()
                x.grad = x.grad.t().contiguous().t()
            if k == 4:
                optimizer.state[x]["v"] = optimizer.state[x]["v"].clone()
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            if k == 5:
                x.data = torch.cat([x.data, x.data])[:6]
            optimizer.step()
        ends.append(([x], optimizer))
    assert_agree(*ends, **CLOSE[torch.float32])


def test_autograd_detects_the_in_place_change():
    x = torch.nn.Parameter(torch.ones(3))
    optimizer = semaopt.ASA([x], implementation="c")
    loss = (x * x).sum()
    x.grad = torch.ones(3)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_loaded_state_takes_the_layout_of_the_parameter():
    x = torch.nn.Parameter(normal((2, 3, 4, 5), torch.float32, 1))
    y = torch.nn.Parameter(x.detach().to(memory_format=torch.channels_last))
    first = semaopt.ASA([x], implementation="c")
    x.grad = normal((2, 3, 4, 5), torch.float32, 2)
    first.step()
    second = semaopt.ASA([y], implementation="c")
    second.load_state_dict(first.state_dict())
    with torch.no_grad():
        y.copy_(x)
    y.grad = x.grad
    first.step()
    second.step()
    assert torch.equal(x, y)
    assert second.state[y]["v"].stride() == y.stride()


def exit_status_in_fork(work) -> int:
    """Run ``work`` in a forked process for at most ten seconds, and return its exit status."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)  # terminate the child if it hangs
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_step_runs_in_a_forked_child(threads):
    """Torch's own operations hang there, waiting for threads that do not exist in the child."""
    threads(2)
    big = ((200_003,), (50_000,))
    started, ended = (trained("c", torch.float32, xs=parameters(torch.float32, big), steps=n) for n in (2, 3))
    xs, optimizer = started
    for x, y in zip(xs, ended[0], strict=True):
        x.grad = y.grad

    def work():
        assert library().threads(2) == 1
        optimizer.step()
        torch.set_num_threads(1)
        assert_agree(started, ended)

    assert exit_status_in_fork(work) == 0
    assert library().threads(2) == (2 if library().runtime else 1), "the parent keeps its threads"


def test_step_runs_from_several_threads(threads):
    threads(2)
    big = ((100_003,), (50_000,))
    expected = trained("c", torch.float32, xs=parameters(torch.float32, big))
    results = {}

    def work(i):
        results[i] = trained("c", torch.float32, xs=parameters(torch.float32, big))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for i in range(4):
        assert_agree(expected, results[i])


def test_tables_neither_keep_tensors_nor_grow_without_bound():
    for _ in range(compiled.MOST_TABLES + 10):
        trained("c", torch.float32, xs=[torch.nn.Parameter(torch.ones(3))], steps=1)
    assert len(compiled._tables) <= compiled.MOST_TABLES
    x = torch.nn.Parameter(torch.ones(3))
    gone = weakref.ref(x)
    trained("c", torch.float32, xs=[x], steps=2)
    del x
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_box_ascent_equals_its_loop(dtype, reader):
    def start():
        return [y.detach() for y in parameters(dtype)]

    for lo, hi in ((-1.0, 1.0), (-math.inf, 0.5), (-math.inf, math.inf)):
        ys, twins = start(), start()
        gs = [normal(tuple(y.shape), dtype, 50 + i) for i, y in enumerate(ys)]
        gs[-2] = gs[-2].t().contiguous().t()  # same layout as the transposed parameter
        assert compiled.ascend_box_(ys, gs, 0.5, lo, hi)
        ascend_box_loop_(twins, gs, 0.5, lo, hi)
        for y, twin in zip(ys, twins, strict=True):
            torch.testing.assert_close(y, twin, **CLOSE[dtype])
            assert y.numel() == 0 or (y.max() <= hi and y.min() >= lo)


def test_box_ascent_falls_back_to_its_loop():
    y = torch.zeros(3, dtype=torch.float16)
    semaopt.kernels.ascend_box_([y], [torch.ones(3, dtype=torch.float16)], 2.0, -1.0, 1.0)
    assert y.tolist() == [1.0, 1.0, 1.0]
