import copy
import io
import math

import pytest
import torch

import semaopt
from semaopt.kernels import averaging
from tests.kernels.common import normal


def problem(size=3, **hyper):
    x = torch.nn.Parameter(torch.arange(1.0, size + 1))
    return x, semaopt.ASA([x], lr=0.1, scaling="shb", **hyper)


def take(x, optimizer, steps, seed=0):
    """x_t and v_{t+1} of each step."""
    generator = torch.Generator().manual_seed(seed)
    path = []
    for _ in range(steps):
        before = x.detach().clone()
        x.grad = (x.detach() + torch.randn(x.shape, generator=generator)).to(x.dtype)
        optimizer.step()
        path.append((before, optimizer.state[x]["v"].clone()))
    return path


def test_sampled_is_an_iterate_with_its_own_estimate():
    x, optimizer = problem(bias_correction=False)
    iterates = semaopt.Iterates(optimizer, seed=3)
    path = take(x, optimizer, 50)
    at, v = path[iterates.tau]
    assert torch.equal(iterates.sampled()[0], at)
    assert torch.equal(iterates.estimate()[0], v)
    assert torch.equal(iterates.last()[0], x)


def test_tau_is_uniform():
    counts = torch.zeros(5)
    x, optimizer = problem(1)
    iterates = semaopt.Iterates(optimizer, keep=("sampled",))
    for _ in range(1000):
        iterates.reset()
        take(x, optimizer, 5)
        counts[iterates.tau] += 1
    chi_square = ((counts - 200) ** 2 / 200).sum()
    assert chi_square < 18.5  # 0.999 quantile with 4 degrees of freedom


def test_average_is_the_mean_of_the_iterates():
    x, optimizer = problem()
    iterates = semaopt.Iterates(optimizer)
    path = take(x, optimizer, 20)
    torch.testing.assert_close(iterates.average()[0], torch.stack([at for at, _ in path]).mean(0))


def test_a_step_that_raised_does_not_count():
    def start():
        x, _ = problem()
        return x, semaopt.ASA([x], lr=0.1, beta=0.5, on_nonfinite="error")

    (x, optimizer), (y, smooth) = start(), start()
    iterates, others = semaopt.Iterates(optimizer, seed=3), semaopt.Iterates(smooth, seed=3)
    for k in range(6):
        if k in (0, 2, 3):
            x.grad = torch.full_like(x, torch.nan)
            with pytest.raises(RuntimeError, match=r"nan|NaN"):
                optimizer.step()
            resumed = semaopt.Iterates(optimizer)
            resumed.load_state_dict(iterates.state_dict())
            iterates.remove()
            iterates = resumed
        x.grad, y.grad = torch.full_like(x, k + 1.0), torch.full_like(y, k + 1.0)
        optimizer.step()
        smooth.step()
    assert (iterates.t, iterates.tau) == (others.t, others.tau) == (6, others.tau)
    for read in (semaopt.Iterates.average, semaopt.Iterates.sampled, semaopt.Iterates.estimate):
        assert torch.equal(read(iterates)[0], read(others)[0])


def test_the_average_of_low_precision_parameters_is_kept_in_float32():
    x = torch.nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.bfloat16))
    optimizer = semaopt.ASA([x], lr=0.01, scaling="shb")
    iterates = semaopt.Iterates(optimizer, keep=("average",))
    path = [at for at, _ in take(x, optimizer, 100)]
    assert iterates.average()[0].dtype == torch.float32
    torch.testing.assert_close(iterates.average()[0], torch.stack(path).float().mean(0), rtol=1e-5, atol=1e-6)


def test_complex_parameters():
    x = torch.nn.Parameter(torch.tensor([1 + 1j, 2 - 3j]))
    optimizer = semaopt.ASA([x], lr=0.5, beta=0.0, scaling="shb")
    iterates = semaopt.Iterates(optimizer)
    for _ in range(2):
        x.grad = x.detach().clone()
        optimizer.step()
    torch.testing.assert_close(iterates.average()[0], 0.75 * torch.tensor([1 + 1j, 2 - 3j]))


def test_use_puts_everything_back_even_after_an_error():
    x, optimizer = problem()
    iterates = semaopt.Iterates(optimizer)
    take(x, optimizer, 10)
    last = x.detach().clone()
    with iterates.use("average"):
        assert torch.equal(x, iterates.average()[0])
    assert torch.equal(x, last)
    with pytest.raises(ZeroDivisionError), iterates.use("sampled"):
        1 / 0  # noqa: B018
    assert torch.equal(x, last)
    iterates.place("average")
    assert torch.equal(x, iterates.average()[0])


def test_resume_is_exact():
    x, optimizer = problem()
    iterates = semaopt.Iterates(optimizer, seed=5)
    take(x, optimizer, 10)
    buffer = io.BytesIO()
    torch.save((x.detach(), optimizer.state_dict(), iterates.state_dict()), buffer)
    take(x, optimizer, 30, seed=1)
    buffer.seek(0)
    at, state, kept = torch.load(buffer, weights_only=True)
    y, resumed = problem()
    y.data.copy_(at)
    resumed.load_state_dict(state)
    again = semaopt.Iterates(resumed)
    again.load_state_dict(kept)
    take(y, resumed, 30, seed=1)
    assert again.tau == iterates.tau
    for which in ("sampled", "average", "estimate"):
        assert torch.equal(getattr(again, which)()[0], getattr(iterates, which)()[0])


def test_any_torch_optimizer_will_do():
    x = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([x], lr=0.1)
    iterates = semaopt.Iterates(optimizer)
    x.grad = torch.ones(2)
    optimizer.step()
    assert torch.equal(iterates.sampled()[0], torch.ones(2))


def test_the_estimate_is_corrected_as_the_step_was():
    x, optimizer = problem(1, bias_correction=True)
    iterates = semaopt.Iterates(optimizer)
    x.grad = torch.tensor([2.0])
    optimizer.step()
    assert iterates.estimate()[0].item() == pytest.approx(2.0)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adagrad])
def test_an_optimizer_without_an_average_has_no_estimate(make):
    x = torch.nn.Parameter(torch.ones(2))
    optimizer = make([x], lr=0.1)
    iterates = semaopt.Iterates(optimizer)
    x.grad = torch.ones(2)
    optimizer.step()
    assert not iterates.tracked
    with pytest.raises(TypeError, match=rf"optimizer={make.__name__}: its state had no moving average.*semaopt\.ASA"):
        iterates.estimate()


def test_a_first_step_that_is_left_out_has_no_estimate():
    x, optimizer = problem(1, on_nonfinite="skip")
    iterates = semaopt.Iterates(optimizer)
    x.grad = torch.tensor([float("nan")])
    optimizer.step()
    with pytest.raises(TypeError, match=r"its state had no moving average after step 0"):
        iterates.estimate()


def test_sbma_keeps_no_estimate_of_the_lower_variables():
    x, y = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    inverse = semaopt.hypergradient.Neumann(terms=1, bound=1.0)
    optimizer = semaopt.SBMA(upper=[x], lower=[y], lr=0.1, lower_lr=0.5, inverse=inverse)
    iterates = semaopt.Iterates(optimizer)
    optimizer.step(lambda: y.square().sum() / 2, lambda: (y - x).square().sum() / 2)
    upper, lower = iterates.estimate()
    assert (upper.item(), lower.item()) == (1.0, 0.0)  # grad F(1) = 1; the state of y holds f_y = 1


@pytest.mark.parametrize(("saved", "mine"), [("sampled", "average"), ("average", "sampled")])
@pytest.mark.parametrize("steps", [0, 3])
def test_a_state_that_kept_something_else_is_refused(saved, mine, steps):
    x, optimizer = problem()
    iterates = semaopt.Iterates(optimizer, keep=(saved,))
    take(x, optimizer, steps)
    state = iterates.state_dict()
    iterates.remove()
    other = semaopt.Iterates(optimizer, keep=(mine,))
    if steps:
        text = rf"state_dict=\('{saved}',\) is invalid: it must have kept what this object keeps, \('{mine}',\). Load it into Iterates"  # noqa: E501
        with pytest.raises(ValueError, match=text):
            other.load_state_dict(state)
    else:
        other.load_state_dict(state)  # nothing was kept yet
    path = take(x, optimizer, 2)
    assert any(torch.equal(other._get(mine)[0], at) for at, _ in path) or mine == "average"


@pytest.mark.parametrize("read", [True, False])
def test_groups_that_join_later_stood_still_before(read):
    x, optimizer = problem()
    iterates = semaopt.Iterates(optimizer, seed=1)
    take(x, optimizer, 3)
    y = torch.nn.Parameter(torch.tensor([5.0], dtype=torch.bfloat16))
    optimizer.add_param_group({"params": [y]})
    if read:  # otherwise the next step adds the new parameter
        assert [len(kept) for kept in (iterates.sampled(), iterates.average(), iterates.estimate())] == [2, 2, 2]
    ys = [y.detach().clone()] * 3
    for _ in range(4):
        ys.append(y.detach().clone())
        y.grad = torch.ones_like(y)
        take(x, optimizer, 1)
    assert torch.equal(iterates.sampled()[1], ys[iterates.tau])
    torch.testing.assert_close(iterates.average()[1], torch.stack(ys).float().mean(0))
    assert iterates.estimate()[1].dtype == torch.float32
    iterates.load_state_dict(iterates.state_dict())
    with iterates.use("average"):
        assert not torch.equal(y, ys[0])


def test_an_estimate_does_not_outlive_its_tau():
    x, optimizer = problem()
    iterates = semaopt.Iterates(optimizer)
    take(x, optimizer, 1)
    assert iterates.tracked
    optimizer.state.clear()
    x.grad = None
    for _ in range(1000):
        optimizer.step()  # nothing is averaged any more
    assert iterates.tau > 0
    assert not iterates.tracked
    with pytest.raises(TypeError, match="no moving average after step"):
        iterates.estimate()


def test_remove():
    x, optimizer = problem()
    iterates = semaopt.Iterates(optimizer)
    take(x, optimizer, 3)
    iterates.remove()
    take(x, optimizer, 3)
    assert iterates.t == 3


def test_wrong_use():
    x, optimizer = problem()
    with pytest.raises(
        ValueError, match=r"keep=\('best',\) is invalid: it must name 'sampled', 'average' or both\. last\(\)"
    ):
        semaopt.Iterates(optimizer, keep=("best",))
    iterates = semaopt.Iterates(optimizer, keep=("average",))
    with pytest.raises(RuntimeError, match=r"no 'average' iterate after 0 steps\. Take a step first"):
        iterates.average()
    take(x, optimizer, 1)
    for asked in (iterates.sampled, iterates.estimate):
        with pytest.raises(RuntimeError, match=r"iterate: this object keeps average\. Pass keep=\('sampled',\)"):
            asked()
    nothing = r"no 'average' iterate: this object keeps nothing\. Pass keep=\('average',\)"
    with pytest.raises(RuntimeError, match=nothing):
        semaopt.Iterates(optimizer, keep=()).average()
    with pytest.raises(ValueError, match=r"which='best' is invalid: it must be one of sampled, average, last"):
        iterates.place("best")
    _, other = problem(4)
    with pytest.raises(
        ValueError, match=r"average=\[\(3,\)\] is invalid: it must have the shapes of the optimizer's parameters"
    ):
        semaopt.Iterates(other, keep=("average",)).load_state_dict(iterates.state_dict())


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("power", [0, 2.5, 8])
def test_the_polynomial_average_by_hand(power, every):
    x, optimizer = problem()
    iterates = semaopt.Iterates(optimizer, average="polynomial", power=power, every=every)
    path = [at for at, _ in take(x, optimizer, 20)][::every]
    expected = path[0].double()
    for t, at in enumerate(path):
        expected = expected + (power + 1) / (t + power + 1) * (at.double() - expected)
    torch.testing.assert_close(iterates.average()[0].double(), expected, rtol=1e-6, atol=1e-6)
    if power == 0:
        torch.testing.assert_close(iterates.average()[0], torch.stack(path).mean(0))


def test_the_polynomial_average_beats_the_last_iterate_at_a_constant_lr():
    x, optimizer = problem(50)
    iterates = semaopt.Iterates(optimizer, average="polynomial")
    take(x, optimizer, 2000)
    assert iterates.average()[0].norm() < 0.3 * x.norm()


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.RMSprop, lambda p, lr: torch.optim.SGD(p, lr, 0.9)])
def test_the_average_resumes_on_torchs_optimizers(make):
    def start():
        x = torch.nn.Parameter(torch.ones(3))
        optimizer = make([x], lr=0.01)
        return x, optimizer, semaopt.Iterates(optimizer, ("average",), average="polynomial", every=2)

    def advance(x, optimizer, steps):
        for t in steps:
            x.grad = torch.full_like(x, float(t % 3) - 0.5)
            optimizer.step()

    x, optimizer, iterates = start()
    advance(x, optimizer, range(7))
    saved = io.BytesIO()
    torch.save((x.detach(), optimizer.state_dict(), iterates.state_dict()), saved)
    advance(x, optimizer, range(7, 20))
    saved.seek(0)
    at, state, kept = torch.load(saved, weights_only=True)
    y, resumed, again = start()
    y.data.copy_(at)
    resumed.load_state_dict(state)
    again.load_state_dict(kept)
    advance(y, resumed, range(7, 20))
    assert torch.equal(again.average()[0], iterates.average()[0])


def test_an_average_of_other_options_is_refused():
    x, optimizer = problem()
    iterates = semaopt.Iterates(optimizer, average="polynomial")
    take(x, optimizer, 2)
    for options in ({}, {"average": "polynomial", "power": 3}, {"average": "polynomial", "every": 2}):
        other = semaopt.Iterates(optimizer, **options)
        with pytest.raises(ValueError, match=r"it must have the options of this object.*Construct Iterates with"):
            other.load_state_dict(iterates.state_dict())
        other.remove()


def test_batch_norm_statistics_of_the_average():
    """The recipe of the docstring: update_bn inside ``use`` on a copy, the model itself unchanged."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    data = [torch.randn(16, 2, generator=torch.Generator().manual_seed(k)) for k in range(4)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    iterates = semaopt.Iterates(optimizer, average="polynomial")
    for a in data:
        optimizer.zero_grad()
        model(a).square().mean().backward()
        optimizer.step()
    before = copy.deepcopy(model.state_dict())
    with iterates.use("average"):
        averaged = copy.deepcopy(model)
    torch.optim.swa_utils.update_bn(data, averaged)
    hidden = torch.cat([averaged[0](a) for a in data])
    torch.testing.assert_close(averaged[1].running_mean, hidden.mean(0).detach(), rtol=1e-4, atol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("make", "scale"),
    [
        (lambda x: torch.optim.Adam([x], lr=0.1, betas=(0.5, 0.9)), 1.0),
        (lambda x: torch.optim.SGD([x], lr=0.1, momentum=0.5, dampening=0.5), 1.0),
        (lambda x: torch.optim.SGD([x], lr=0.1, momentum=0.5), 0.5),  # the buffer starts at g, not at an average of g
    ],
)
def test_the_estimate_of_torchs_optimizers(make, scale):
    x = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    optimizer = make(x)
    iterates = semaopt.Iterates(optimizer)
    x.grad = torch.full_like(x, 3.0)
    optimizer.step()
    assert iterates.estimate()[0].tolist() == pytest.approx([3.0 * scale] * 2)


def test_skipped_steps_do_not_count():
    """A skipped step used to re-weight the average and to advance the stages."""

    def start():
        x, _ = problem()
        optimizer = semaopt.ASA([x], lr=0.1, beta=0.5, on_nonfinite="skip")
        return x, optimizer, semaopt.Iterates(optimizer, seed=3)

    (x, optimizer, iterates), (y, smooth, others) = start(), start()
    for k in range(8):
        for _ in range(k % 3):
            x.grad = torch.full_like(x, torch.nan)
            optimizer.step()
        x.grad, y.grad = torch.full_like(x, k + 1.0), torch.full_like(y, k + 1.0)
        optimizer.step()
        smooth.step()
    assert optimizer.skipped_steps == 7
    assert (iterates.t, iterates.tau) == (others.t, others.tau) == (8, others.tau)
    for read in (semaopt.Iterates.average, semaopt.Iterates.sampled, semaopt.Iterates.estimate):
        assert torch.equal(read(iterates)[0], read(others)[0])


def test_another_default_device():
    with torch.device("meta"):
        x = torch.nn.Parameter(torch.ones(2, device="cpu"))
        optimizer = semaopt.ASA([x], lr=0.1)
        iterates = semaopt.Iterates(optimizer)
        x.grad = torch.ones(2, device="cpu")
        for _ in range(5):
            optimizer.step()
    assert iterates.sampled()[0].device.type == "cpu"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"average": "exponential"}, r"average='exponential' is invalid: it must be one of uniform, polynomial"),
        ({"average": "polynomial", "power": -1}, r"power=-1 is invalid: it must be a finite number >= 0"),
        ({"every": 0}, r"every=0 is invalid: it must be a whole number >= 1"),
    ],
)
def test_wrong_averages(options, text):
    with pytest.raises(ValueError, match=text):
        semaopt.Iterates(problem()[1], **options)


# ---- fused into the step --------------------------------------------------------------------------------------------

FUSED = {
    "adam": {},
    "amsgrad": {"weight_decay": 0.1, "decoupled_weight_decay": True},
    "shb": {"weight_decay": 0.1, "maximize": True},
    "adabound": {},
    "adam+": {"state_dtype": torch.bfloat16},
}


def averaged_run(implementation, scaling, dtype, **options):
    """Train with a parameter that joins late and a large, a transposed and an empty one; return the averages."""
    shapes = ((3, 2), (700,), (0, 2), ())
    xs = [torch.nn.Parameter(normal(shape, dtype, i)) for i, shape in enumerate(shapes)]
    xs.append(torch.nn.Parameter(normal((5, 4), dtype, 9).t()))
    optimizer = semaopt.ASA(xs, scaling=scaling, lr=0.1, implementation=implementation, **options)
    iterates = semaopt.Iterates(optimizer, keep=("average",), average="polynomial", power=2.0)
    for k in range(5):
        for i, x in enumerate(xs):
            x.grad = None if (i, k) == (0, 2) else torch.empty_like(x).copy_(normal(tuple(x.shape), dtype, 10 * k + i))
        optimizer.step()
    return [*xs, *iterates.average()]


@pytest.mark.skipif(not semaopt.kernels.available(), reason=str(semaopt.kernels.available()))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scaling", FUSED)
def test_c_step_averages_in_its_pass(scaling, dtype, monkeypatch):
    """Only the step in which a parameter has no gradient leaves averages to the slow twin."""
    if dtype == torch.float64 and "state_dtype" in FUSED[scaling]:
        pytest.skip("state_dtype is for float32 and bf16 parameters")
    monkeypatch.setattr(semaopt.ASA, "updates_averages", False)
    expected = averaged_run("c", scaling, dtype, **FUSED[scaling])
    monkeypatch.setattr(semaopt.ASA, "updates_averages", True)
    slow, update = [], averaging.update_
    monkeypatch.setattr(averaging, "update_", lambda xs, average: (slow.append(len(xs)), update(xs, average)))
    found = averaged_run("c", scaling, dtype, **FUSED[scaling])
    assert slow == [1]
    tolerance = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 1e-6}[dtype]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert not averaging.pending


@pytest.mark.parametrize("implementation", ["foreach", "loop", "auto"])
def test_other_paths_average_before_the_step(implementation):
    found = averaged_run(implementation, "adam", torch.float32)
    torch.testing.assert_close(found, averaged_run("loop", "adam", torch.float32), rtol=1e-5, atol=1e-6)


def test_average_is_complete_whenever_it_is_read():
    """A skipped step leaves its average pending; reading, saving or a second object completes it."""
    x = torch.nn.Parameter(torch.tensor([4.0]))
    optimizer = semaopt.ASA([x], lr=1.0, beta=0.0, scaling="shb", on_nonfinite="skip")
    iterates = [semaopt.Iterates(optimizer, keep=("average",)) for _ in range(2)]
    for g in (1.0, math.nan, math.nan, 1.0):
        x.grad = torch.tensor([g])
        optimizer.step()
    assert x.item() == 2.0
    assert [each.average()[0].item() for each in iterates] == [3.5, 3.5]  # of x_0 = 4 and x_1 = 3
    x.grad = torch.tensor([math.nan])
    optimizer.step()
    saved = iterates[0].state_dict()["kept"]["average"][0]
    assert saved.item() == pytest.approx(3.0)  # x_2 = 2 was kept before the step that was skipped
    iterates[1].remove()
    assert iterates[1].average()[0].item() == pytest.approx(3.0)
