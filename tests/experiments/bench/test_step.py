"""The benchmark of a step: what it measures, prints and writes. No time is tested."""

from __future__ import annotations

import json
import math

import pytest
import torch
from typer.testing import CliRunner

from semaopt.experiments.bench import contestants, figure
from semaopt.experiments.bench import step as bench_step
from semaopt.experiments.cli.commands import app
from tests.kernels.common import needs_c

BASE = contestants.BASE


def test_resnet50_has_its_161_tensors():
    shapes = bench_step.resnet50()
    assert len(shapes) == 161
    assert sum(math.prod(shape) for shape in shapes) == 25_557_032  # as torchvision's


def test_it_measures_prints_and_writes(tmp_path, capsys):
    bench_step.main(["--sizes", "one", "--seconds", "0.01", "--only", "semaopt adam", "--out", str(tmp_path)])
    said = capsys.readouterr().out
    assert "threads" in said
    assert "1 element: " in said
    document = json.loads((tmp_path / "step.json").read_text())
    [result] = document["results"]
    rows = {row["name"]: row for row in result["rows"]}
    assert rows.keys() == {BASE, "semaopt adam"}
    assert rows[BASE]["ratio"] == 1.0
    assert 0 < rows["semaopt adam"]["shortest"] <= rows["semaopt adam"]["median"]
    assert "semaopt adam" in (tmp_path / "step.svg").read_text()


@pytest.mark.parametrize("contestant", contestants.CONTESTANTS, ids=lambda c: c.name)
def test_every_contestant_takes_steps(contestant):
    if contestant.absent():
        pytest.skip(contestant.absent())
    xs = bench_step.parameters([(3, 2), (4,)])
    before = [x.detach().clone() for x in xs]
    bench_step.prepare(contestant, xs)()
    assert not any(torch.equal(x, old) for x, old in zip(xs, before, strict=True))


def test_an_absent_peer_is_named():
    assert contestants.Contestant("x", None, "no_such_peer").absent() == "pip install --no-deps no-such-peer"


def result(*seconds, absent=None):
    base, other = (bench_step.Times(name, list(times)) for name, times in zip((BASE, "other"), seconds, strict=True))
    rows = [t.row(base) for t in (base, other)]
    noisy = [row.name for row in rows if row.error > bench_step.CLOSE]
    return bench_step.Result("one", "1 element", rows, len(seconds[0]), noisy, absent or {}, 0.5)


def test_a_noisy_machine_is_said_to_be_noisy():
    quiet = result([1.0, 2.0, 4.0] * 9, [0.5, 1.0, 2.0] * 9)  # a busy moment meets both: the ratio is steady
    assert quiet.rows[1].ratio == 0.5
    assert "Too noisy" not in bench_step.table(quiet)
    noisy = result([1.0, 1.0, 1.0] * 3, [0.5, 1.0, 2.0] * 3, absent={"peer": "pip install peer"})
    said = bench_step.table(noisy)
    assert "Too noisy: 1 of 2 ratios are known only to" in said
    assert "without peer: pip install peer" in said


def test_turns_go_on_until_the_ratios_have_settled_or_time_is_over():
    ticks = {BASE: 0, "other": 0}

    def step(name):
        def count():
            ticks[name] += 1

        return count

    times = bench_step.in_turns({name: step(name) for name in ticks}, seconds=0.0)
    assert [len(t.seconds) for t in times.values()] == [bench_step.FEWEST_TURNS] * 2


@needs_c
@pytest.mark.parametrize("limit", contestants.LIMITS)
def test_the_limit_touches_every_byte_it_says(limit):
    pools = []
    for count in (40_000, 64, 16_384):  # chunks of several tensors, full and not
        x = torch.nn.Parameter(torch.ones(count))
        x.grad = torch.ones(count)
        pools.append(contestants.Pool(x))
    arrays = contestants.LIMITS[limit]
    before = [[tensor.clone() for tensor in pool.arrays()] for pool in pools]
    contestants.stream(arrays, pools)()
    for pool, old in zip(pools, before, strict=True):
        for (width, written), tensor, was in zip(arrays, pool.arrays(), old, strict=False):
            end = tensor.numel() * width // 4
            changed = (tensor.view(torch.int32) != was.view(torch.int32)).view(-1, 2)[:, 0]
            assert changed[: end // 2].all() if written else not changed.any()
            assert not changed[end // 2 :].any()


def test_an_unknown_contestant_is_refused(capsys):
    with pytest.raises(SystemExit):
        bench_step.main(["--only", "nobody"])
    assert '--only: unknown "nobody"; there is: "torch Adam fused", ' in capsys.readouterr().err


def test_the_command():
    runner = CliRunner()
    done = runner.invoke(app, ["bench", "step", "--sizes", "one", "--seconds", "0.01", "--only", "semaopt shb"])
    assert done.exit_code == 0
    assert "semaopt shb" in done.output
    assert "is unknown; there is: step" in runner.invoke(app, ["bench", "nothing"]).output
    assert "--sizes" in runner.invoke(app, ["bench", "--help"]).output


def test_times_have_their_units():
    assert [figure._time(t) for t in (2.0, 0.0345, 12.3e-6)] == ["2 s", "34.5 ms", "12.3 us"]
