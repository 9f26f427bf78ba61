"""The benchmark of one step: what it measures, prints and writes. No test depends on a measured time."""

from __future__ import annotations

import json
import math

import pytest
import torch
from typer.testing import CliRunner

from semaopt.experiments.bench import candidates
from semaopt.experiments.bench import step as bench_step
from semaopt.experiments.cli.commands import app
from tests.kernels.common import needs_c

BASE = candidates.BASE


def test_resnet50_has_161_tensors():
    shapes = bench_step.resnet50()
    assert len(shapes) == 161
    assert sum(math.prod(shape) for shape in shapes) == 25_557_032  # as in torchvision


def test_measures_prints_and_writes(tmp_path, capsys):
    bench_step.main(["--sizes", "one", "--seconds", "0.01", "--only", "semaopt adam", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "threads" in printed
    assert "device cpu" in printed
    assert "1 element: " in printed
    document = json.loads((tmp_path / "step.json").read_text())
    [result] = document["results"]
    rows = {row["name"]: row for row in result["rows"]}
    assert rows.keys() == {BASE, "semaopt adam"}
    assert rows[BASE]["ratio"] == 1.0
    assert 0 < rows["semaopt adam"]["shortest"] <= rows["semaopt adam"]["median"]
    assert "semaopt adam" in (tmp_path / "step.svg").read_text()


@pytest.mark.parametrize("candidate", candidates.CANDIDATES, ids=lambda c: c.name)
def test_every_candidate_takes_steps(candidate):
    if candidate.missing():
        pytest.skip(candidate.missing())
    xs = bench_step.parameters([(3, 2), (4,)])
    before = [x.detach().clone() for x in xs]
    bench_step.prepare(candidate, xs)()
    assert not any(torch.equal(x, old) for x, old in zip(xs, before, strict=True))


def test_missing_peer_is_named():
    assert candidates.Candidate("x", None, "no_such_peer").missing() == "pip install --no-deps no-such-peer"


def test_parameters_and_gradients_are_on_the_device():
    for x in bench_step.parameters([(2, 3), (4,)], "meta"):
        assert x.device.type == x.grad.device.type == "meta"


def test_the_clock_waits_for_the_device(monkeypatch):
    events = []
    monkeypatch.setattr(torch.cpu, "synchronize", lambda: events.append("wait"))
    monkeypatch.setattr(bench_step.time, "perf_counter", lambda: events.append("clock") or 0.0)
    wait = bench_step.waiter(torch.device("cpu"))
    bench_step.seconds_per_step(lambda: events.append("step"), 2, wait)
    assert events == ["step", "wait", "clock", "step", "step", "wait", "clock"]


def test_unsupported_candidate_is_skipped_on_another_device(monkeypatch):
    """Tensors stay on the CPU; only the name of the device differs."""
    create = bench_step.parameters
    monkeypatch.setattr(bench_step, "parameters", lambda shapes, device: create(shapes))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def build(xs):
        raise RuntimeError("`fused=True` requires a CPU\nmore")

    broken = candidates.Candidate("broken", build)
    monkeypatch.setattr(bench_step, "CANDIDATES", (candidates.CANDIDATES[0], broken))
    found = bench_step.measure("one", 0.01, device="cuda")
    assert [row.name for row in found.rows] == [BASE]
    assert found.skipped == {"broken": "unsupported on cuda (`fused=True` requires a CPU)"}
    with pytest.raises(RuntimeError, match="requires a CPU"):  # on the CPU it is a bug
        bench_step.measure("one", 0.01)


def result(*seconds, skipped=None):
    base, other = (bench_step.Times(name, list(times)) for name, times in zip((BASE, "other"), seconds, strict=True))
    rows = [t.row(base) for t in (base, other)]
    noisy = [row.name for row in rows if row.error > bench_step.TOLERANCE]
    return bench_step.Result("one", "1 element", rows, len(seconds[0]), noisy, skipped or {}, 0.5)


def test_noisy_ratios_are_reported():
    steady = result([1.0, 2.0, 4.0] * 9, [0.5, 1.0, 2.0] * 9)  # load affects both: the ratio is constant
    assert steady.rows[1].ratio == 0.5
    assert "Too noisy" not in bench_step.table(steady)
    noisy = result([1.0, 1.0, 1.0] * 3, [0.5, 1.0, 2.0] * 3, skipped={"peer": "pip install peer"})
    text = bench_step.table(noisy)
    assert "Too noisy: other: ratios known only to" in text
    assert "Skipped peer: pip install peer" in text


def test_rounds_end_when_ratios_have_settled_or_time_is_over():
    counts = {BASE: 0, "other": 0}

    def step(name):
        def count():
            counts[name] += 1

        return count

    times = bench_step.take_turns({name: step(name) for name in counts}, seconds=0.0)
    assert [len(t.seconds) for t in times.values()] == [bench_step.FEWEST_ROUNDS] * 2


@needs_c
@pytest.mark.parametrize("limit", candidates.LIMITS)
def test_the_limit_touches_exactly_its_bytes(limit):
    pools = []
    for count in (40_000, 64, 16_384):  # tensors of several chunks, of part of a chunk, of one chunk
        x = torch.nn.Parameter(torch.ones(count))
        x.grad = torch.ones(count)
        pools.append(candidates.Pool(x))
    arrays = candidates.LIMITS[limit]
    before = [[tensor.clone() for tensor in pool.arrays()] for pool in pools]
    candidates.stream(arrays, pools)()
    for pool, old in zip(pools, before, strict=True):
        for (width, written), tensor, was in zip(arrays, pool.arrays(), old, strict=False):
            end = tensor.numel() * width // 4
            changed = (tensor.view(torch.int32) != was.view(torch.int32)).view(-1, 2)[:, 0]
            assert changed[: end // 2].all() if written else not changed.any()
            assert not changed[end // 2 :].any()


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--only", "nobody"], '--only "nobody": unknown candidate. Choose from: "torch Adam fused", '),
        (["--device", "nowhere"], "--device nowhere: not available ("),
        (["--threads", "0"], "--threads 0: must be between 1 and 1024"),
        (["--seconds", "nan"], "--seconds nan: must be a number above 0"),
    ],
)
def test_wrong_arguments(capsys, args, text):
    with pytest.raises(SystemExit):
        bench_step.main(args)
    assert text in capsys.readouterr().err


def test_the_command():
    runner = CliRunner()
    done = runner.invoke(app, ["bench", "step", "--sizes", "one", "--seconds", "0.01", "--only", "semaopt shb"])
    assert done.exit_code == 0
    assert "semaopt shb" in done.output
    assert "Choose from: step" in runner.invoke(app, ["bench", "nothing"]).output
    assert "--sizes" in runner.invoke(app, ["bench", "--help"]).output
