"""Equality of the foreach path and the loop, in eager mode and under torch.compile."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import semaopt
from semaopt.kernels import dispatch, foreach, rows
from tests.kernels.common import CLOSE, OPTIONS, SCALINGS, assert_agree, normal, parameters, trained


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_foreach_equals_loop(scaling, options, dtype):
    pair = (trained(path, dtype, scaling, **options) for path in ("foreach", "loop"))
    assert_agree(*pair, **CLOSE[dtype])


def test_group_with_mixed_dtypes_and_strides():
    def start():
        xs = [normal((5, i), dtype, i) for i in range(5) for dtype in CLOSE]
        return [torch.nn.Parameter(x[:, ::2]) for x in xs]

    for scaling in SCALINGS:
        assert_agree(
            *(trained(path, None, scaling, xs=start()) for path in ("foreach", "loop")), **CLOSE[torch.bfloat16]
        )


def test_every_scaling_has_a_row():
    assert set(rows.SCALINGS) == set(semaopt.scalings.BY_NAME.values())


# ---- passes over memory, blocks -------------------------------------------------------------------------------------


class Recorder(TorchDispatchMode):
    """Count the operations on tensors of one shape, and refuse to read a tensor that is not on the CPU."""

    def __init__(self, shape=None):
        super().__init__()
        self.shape, self.passes = shape, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        flat = [t for t in pytree.tree_leaves((args, kwargs or {})) if isinstance(t, torch.Tensor)]
        out = func(*args, **(kwargs or {}))
        kind = func.name().partition("::")[2]
        devices = {t.device.type for t in pytree.tree_leaves((flat, out)) if isinstance(t, torch.Tensor) and t.ndim}
        if kind.startswith(("_local_scalar_dense", "nonzero", "is_nonzero", "equal")):
            assert all(t.is_cpu for t in flat), f"{kind} waits for the device"
        if kind.startswith(("_to_copy", "copy_", "_foreach_copy_")):
            assert len(devices) <= 1, f"{kind} from {devices} waits for the device"
        if any(t.shape == self.shape for t in flat) and kind not in ("detach", "empty_like", "new_empty"):
            self.passes.append(kind)
        return out


def passes(build):
    xs = [torch.nn.Parameter(normal((4, 3), torch.float32, i)) for i in range(2)]
    optimizer = build(xs)
    for k in range(2):  # the first step makes the states
        for x in xs:
            x.grad = normal((4, 3), torch.float32, k)
        with Recorder(torch.Size((4, 3))) as found:
            optimizer.step()
    return found.passes


@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize(
    ("scaling", "theirs", "more"),
    [
        ("adam", lambda xs: torch.optim.Adam(xs, foreach=True), 0),
        ("amsgrad", lambda xs: torch.optim.Adam(xs, foreach=True, amsgrad=True), 0),
        ("shb", lambda xs: torch.optim.SGD(xs, 0.1, momentum=0.9, dampening=0.9, foreach=True), 0),
        # Adagrad has 5 and AdaFom 7, the minimum with torch's list operations: v, g^2, its limit, u, the root, + g0, x.
        # Adagrad has no v. mul_ and addcmul_ would save no pass: g^2 must be limited before it is averaged.
        ("adafom", lambda xs: torch.optim.Adagrad(xs, foreach=True), 2),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_more_passes_than_torch(scaling, theirs, more, corrected):
    options = {"scaling": scaling, "bias_correction": corrected, "implementation": "foreach"}
    assert len(passes(lambda xs: semaopt.ASA(xs, **options))) <= len(passes(theirs)) + more


@pytest.mark.parametrize("scaling", SCALINGS)
def test_blocks_have_the_result_of_the_whole(scaling, monkeypatch):
    """Tensors larger than a block are cut; a transposed one is cut in the order of its memory."""
    results = []
    for block in (1 << 30, 64):
        monkeypatch.setattr(foreach, "BLOCK", block)
        xs = parameters(torch.float32, ((3, 2), (150,), (5,), (0, 3), (65, 2)))
        results.append(
            trained("foreach", torch.float32, scaling, xs=[*xs, torch.nn.Parameter(torch.ones(80, 2)[:, 1])])
        )
    assert_agree(*results, **({"rtol": 1e-6, "atol": 1e-6} if scaling == "adam+" else {}))


# ---- devices: nothing waits, and counters can be tensors ------------------------------------------------------------

REMOTE = [
    {},
    {"bias_correction": False, "weight_decay": 0.1, "maximize": True},
    {"clip_scaling": (0.5, 2.0), "weight_decay": 0.1, "decoupled_weight_decay": True},
    {"lr": "tensor"},
    {"device_counters": True, "lr": "tensor", "beta": "tensor", "weight_decay": 0.1, "clip_scaling": (0.5, 2.0)},
    {"device_counters": True, "bias_correction": False, "decoupled_weight_decay": True, "weight_decay": 0.1},
    {"state_dtype": torch.bfloat16},
    {"state_dtype": torch.bfloat16, "device_counters": True},
]


@pytest.mark.parametrize("implementation", ["auto", "loop"])
@pytest.mark.parametrize("options", REMOTE, ids=str)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_no_step_waits_for_the_device(scaling, options, implementation):
    """A tensor on the meta device has no value, so reading one raises; the recorder finds copies between devices."""
    xs = [torch.nn.Parameter(torch.empty(shape, device="meta")) for shape in ((3, 2), (), (7,))]
    given = {name: value for name, value in options.items() if value != "tensor"}
    optimizer = semaopt.ASA(xs, scaling=scaling, implementation=implementation, **given)
    for name in options.keys() - given.keys():  # the constructor validates numbers, which it has to read
        optimizer.param_groups[0][name] = torch.empty((), device="meta")
    for x in xs:
        x.grad = torch.empty_like(x)
    with Recorder():
        for _ in range(2):
            optimizer.step()
    state = optimizer.state[xs[0]]
    assert state["step"].device.type == ("meta" if "device_counters" in options else "cpu")
    assert "device_counters" in options or state["step"] == 2


@pytest.mark.parametrize("counters", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("method", [semaopt.PDAda, semaopt.PDSM])
def test_no_primal_dual_step_waits_for_the_device(method, counters):
    x, y = (torch.nn.Parameter(torch.empty(shape, device="meta")) for shape in ((3, 2), (4,)))
    box = semaopt.projections.Box(-1.0, 1.0)
    optimizer = method([x], [y], project=box, weight_decay=0.1, device_counters=counters)
    for group in optimizer.param_groups:
        group["lr"] = torch.empty((), device="meta")
    optimizer.param_groups[0]["beta"] = torch.empty((), device="meta") if counters else 0.9
    for z in (x, y):
        z.grad = torch.empty_like(z)
    with Recorder():
        for _ in range(2):
            optimizer.step()
    assert {optimizer.state[z]["step"].device.type for z in (x, y)} == {"meta" if counters else "cpu"}
    assert counters or all(optimizer.state[z]["step"] == 2 for z in (x, y))


def test_rates_that_every_step_would_have_to_read_are_refused():
    x = torch.nn.Parameter(torch.zeros(3, device="meta"))
    x.grad = torch.zeros_like(x)
    optimizer = semaopt.ASA([x])
    optimizer.param_groups[0]["beta"] = torch.empty((), device="meta")
    with pytest.raises(ValueError, match=r"beta=.* is a tensor on meta, .* Pass device_counters=True"):
        optimizer.step()
    assert x not in optimizer.state
    with pytest.raises(ValueError, match=r"weight_decay=.* is a tensor on meta, .* Pass a number"):
        semaopt.ASA([x], weight_decay=torch.empty((), device="meta"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_counters_as_tensors_equal_the_loop(scaling, options, dtype, monkeypatch):
    """Compute on the CPU what ``device_counters=True`` computes on a GPU."""
    right = trained("loop", dtype, scaling, **options)
    monkeypatch.setattr(foreach, "on_host", lambda number: False)
    assert_agree(trained("foreach", dtype, scaling, **options), right, **CLOSE[dtype])


def test_device_counters_move_with_the_checkpoint():
    x = torch.nn.Parameter(torch.ones(3))
    x.grad = torch.ones(3)
    optimizer = semaopt.ASA([x])
    optimizer.step()
    saved = optimizer.state_dict()
    remote = semaopt.ASA([torch.nn.Parameter(torch.empty(3, device="meta"))], device_counters=True)
    remote.load_state_dict(saved)
    state = remote.state[remote.param_groups[0]["params"][0]]
    assert {state[name].device.type for name in ("step", "v_weight", "u_weight")} == {"meta"}
    assert remote.param_groups[0]["device_counters"] is True


# ---- torch.compile --------------------------------------------------------------------------------------------------


def two_groups(**options):
    xs = [torch.nn.Parameter(normal((4, 3), torch.float32, i)) for i in range(3)]
    groups = [{"params": xs[:2]}, {"params": xs[2:], "lr": 0.1, "weight_decay": 0.1}]
    return xs, semaopt.ASA(groups, **options)


def primal_and_dual(**options):
    xs = [torch.nn.Parameter(normal((4, 3), torch.float32, i)) for i in range(3)]
    return xs, semaopt.PDAda(primal=xs[:2], dual=xs[2:], project=semaopt.projections.Box(-1.0, 1.0), **options)


@pytest.mark.parametrize(
    ("build", "options"),
    [
        *((two_groups, {"scaling": scaling}) for scaling in SCALINGS),
        (two_groups, {"lr": torch.tensor(0.1), "bias_correction": False, "maximize": True}),
        (two_groups, {"state_dtype": torch.bfloat16, "clip_scaling": (0.1, 10.0)}),
        (two_groups, {"device_counters": True}),
        (primal_and_dual, {}),
        (primal_and_dual, {"scaling": "amsgrad", "dual_lr": torch.tensor(0.1)}),
        (primal_and_dual, {"device_counters": True}),
    ],
    ids=lambda value: getattr(value, "__name__", None) or ", ".join(f"{k}={v}" for k, v in value.items()),
)
def test_compiled_step_is_one_graph(build, options):
    """``fullgraph=True`` raises at a break, from the first step on, which makes the states."""
    torch._dynamo.reset()
    results = []
    for trace in (lambda step: torch.compile(step, backend="eager", fullgraph=True), lambda step: step):
        xs, optimizer = build(**options)
        step = trace(optimizer.step)
        for k in range(3):
            for i, x in enumerate(xs):
                x.grad = normal((4, 3), x.dtype, 10 * k + i)
            step()
        assert torch.is_grad_enabled()
        results.append((xs, optimizer))
    tolerance = {"rtol": 1e-2, "atol": 1e-2} if "state_dtype" in options else CLOSE[torch.float32]
    assert_agree(*results, **tolerance)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin:UserWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # read by dynamo
@pytest.mark.parametrize("lower_lr", [0.3, 1.6], ids=["stable", "shortened"])
def test_compiled_smb_equals_eager_although_its_graph_breaks(lower_lr):
    """TrackedSystem reads the curvature to decide, for example to shorten its steps, so there is no single graph."""
    torch._dynamo.reset()
    results, graphs = [], []
    curvatures = torch.tensor([0.2, 1.0, 1.4], dtype=torch.float64)

    def counting(graph, inputs):
        graphs.append(graph)
        return graph.forward

    for trace in (lambda step: torch.compile(step, backend=counting), lambda step: step):
        x, y = (torch.nn.Parameter(normal((3,), torch.float64, k)) for k in (0, 1))
        inverse = semaopt.hypergradient.TrackedSystem()
        optimizer = semaopt.SMB([x], [y], lr=0.1, lower_lr=lower_lr, inverse=inverse, scaling="adam", project=clip)
        step = trace(optimizer.step)
        for _ in range(4):
            step(
                lambda x=x, y=y: (y - 1).square().sum() + x.square().sum() / 10,
                lambda x=x, y=y: (curvatures * (y - x.sin()).square()).sum() / 2,
            )
        results.append(([x, y], optimizer))
    assert len(graphs) > 1
    assert_agree(*results, **CLOSE[torch.float64])
    numbers = [optimizer.algorithm_state for _, optimizer in results]
    assert numbers[0].keys() == numbers[1].keys()
    assert numbers[0]["t"] == numbers[1]["t"] == 4
    assert (numbers[0]["bound"] is None) == (numbers[1]["bound"] is None) == (lower_lr < 1)


def clip(y):
    y.clamp_(-5.0, 5.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scaling", "hyper"),
    [
        ("adam", {"lr": torch.tensor(0.05), "weight_decay": 0.1}),
        ("adabound", {"bias_correction": True, "clip_scaling": (0.5, 2.0)}),
        ("adam+", {"maximize": True, "weight_decay": 0.1, "decoupled_weight_decay": True}),
        ("amsgrad", {"state_dtype": torch.bfloat16}),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_compiled_foreach_equals_loop(scaling, hyper, monkeypatch):
    """All parameters share one graph, and a new tensor learning rate does not cause a recompilation."""
    taken = []
    monkeypatch.setattr(dispatch, "foreach_group", lambda *args: (taken.append(1), foreach.foreach_group(*args)))
    torch._dynamo.reset()
    results = []
    for compiled in (True, False):
        xs = parameters(torch.float32, ((3, 2), (), (700,)))
        optimizer = semaopt.ASA(xs, scaling=scaling, implementation="auto" if compiled else "loop", **hyper)
        step = torch.compile(optimizer.step) if compiled else optimizer.step
        for k in range(4):
            for i, x in enumerate(xs):
                x.grad = normal(tuple(x.shape), x.dtype, 100 * k + i)
            step()
        results.append((xs, optimizer))
    tolerance = {"rtol": 1e-2, "atol": 1e-2} if "state_dtype" in hyper else CLOSE[torch.float32]
    assert_agree(*results, **tolerance)
    assert taken, "the trace took another path"


def test_bounds_of_s_are_not_rounded_to_float32():
    x = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = semaopt.ASA([x], lr=1.0, beta=0.0, scaling="shb", clip_scaling=(0.3, 0.7), implementation="foreach")
    x.grad = torch.ones_like(x)
    optimizer.step()
    assert x.item() == pytest.approx(0.3, abs=1e-15)


class CustomScaling(semaopt.scalings.AdaFom):
    """A scaling without a foreach row, which uses the loop even when compiled."""


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("scaling", [*SCALINGS, CustomScaling()], ids=str)
def test_rates_traced_in_float64_are_not_rounded_to_float32(scaling, corrected):
    torch._dynamo.reset()
    results = []
    for trace in (lambda step: torch.compile(step, backend="eager"), lambda step: step):
        x = torch.nn.Parameter(normal((5,), torch.float64, 7))
        optimizer = semaopt.ASA([x], lr=0.03, scaling=scaling, bias_correction=corrected)
        step = trace(optimizer.step)
        for k in range(4):
            x.grad = normal((5,), x.dtype, k)
            step()
        results.append(x.detach())
    torch.testing.assert_close(*results, rtol=1e-14, atol=1e-15)


def test_float32_rate_does_not_round_the_decay_of_float64_parameters():
    """1 - eta * decay is traced in float64, the dtype used in eager mode."""
    torch._dynamo.reset()
    results = []
    for trace in (lambda step: torch.compile(step, backend="eager"), lambda step: step):
        x = torch.nn.Parameter(normal((5,), torch.float64, 7))
        options = {"lr": torch.tensor(0.03), "weight_decay": 0.1, "decoupled_weight_decay": True}
        step = trace(semaopt.ASA([x], **options).step)
        for k in range(4):
            x.grad = normal((5,), x.dtype, k)
            step()
        results.append(x.detach())
    torch.testing.assert_close(*results, rtol=1e-14, atol=1e-15)
