"""benchmarks/bilevel_published.py: the methods, their decays and the table."""

import runpy
from pathlib import Path

import pytest
import torch

import semaopt

PUBLISHED = runpy.run_path(str(Path(__file__).parent.parent / "benchmarks" / "bilevel_published.py"))


def problem(options=None):
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(60, 3, generator=generator), torch.tensor([1.0, -1.0]).repeat(30)
    return semaopt.problems.RegularizationSelection((a, b), (a, b), batch=10)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(PUBLISHED["PROBLEMS"], "ijcnn1", problem)


def test_table_of_one_method(small, capsys):
    PUBLISHED["main"](["--only", "SABA", "--calls", "60"])
    head, rule, *rows = capsys.readouterr().out.splitlines()
    assert head.count("|") == rule.count("|")
    steps, calls = zip(*(map(int, row.split("|")[2:4]) for row in rows), strict=True)
    assert steps[:3] == (0, 1, 4)
    assert calls[-2] < 60 <= calls[-1]


def test_measuring_counts_no_calls(small, capsys):
    PUBLISHED["main"](["--only", "SABA", "--calls", "60"])
    steps, calls = zip(
        *(map(int, row.split("|")[2:4]) for row in capsys.readouterr().out.splitlines()[2:]), strict=True
    )
    assert calls == tuple(4 * step for step in steps)


def test_start_at_the_solution_of_the_lower_problem(small, capsys):
    found = problem()
    found.lower.data.copy_(found.solve_lower())
    assert not torch.allclose(found.lower, problem().lower)
    PUBLISHED["main"](["--only", "SABA", "--calls", "10", "--start", "solution"])
    assert f"{found.value()[0]:.4f}" in capsys.readouterr().out


def test_methods_with_published_step_sizes_all_run(small, capsys):
    PUBLISHED["main"](["--calls", "40"])
    shown = {row.split("|")[1].strip() for row in capsys.readouterr().out.splitlines()[2:]}
    assert shown == set(PUBLISHED["PUBLISHED"]["ijcnn1"])


@pytest.mark.parametrize(("name", "factors"), [("SOBA", (0.5, 0.5)), ("BSA", (0.5, 1.0)), ("SABA", (1.0, 1.0))])
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_decays(name, factors):
    method, schedule = PUBLISHED["prepare"](name, problem(), 0.3, 0.1)
    for _ in range(3):
        schedule.step()
    upper, lower = (group["lr"] for group in method.param_groups)
    assert (upper, lower) == pytest.approx((0.3 * factors[0], 0.1 * factors[1]))


@pytest.mark.filterwarnings("ignore:lower_lr=")
def test_a_method_that_diverges_is_a_row(small, monkeypatch, capsys):
    monkeypatch.setitem(PUBLISHED["PUBLISHED"]["ijcnn1"], "SOBA", (1e6, 1e-6))
    PUBLISHED["main"](["--only", "SOBA", "--calls", "200"])
    assert "diverged" in capsys.readouterr().out


def test_g_of_ijcnn1_has_all_rows_of_the_training_file(monkeypatch):
    pytest.importorskip("sklearn", reason="loads data, which needs the extra 'experiments'")
    from semaopt.experiments import data

    task = data.load("breast_cancer", seed=0)
    monkeypatch.setattr(data, "load", lambda **options: task)
    made = PUBLISHED["ijcnn1"](None)
    inputs, labels = made.lower_data
    assert len(inputs) == len(labels) == len(task.train) + len(task.valid)
    assert len(made.upper_data[1]) == len(task.test)
    assert set(labels.tolist()) == {-1.0, 1.0}
