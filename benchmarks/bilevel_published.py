"""Bilevel methods with the step sizes that benchmark_bilevel publishes, on its two main problems.

    python benchmarks/bilevel_published.py                                # ijcnn1, 50,000 oracle calls, all methods
    python benchmarks/bilevel_published.py --problem mnist --only SOBA SABA --calls 6000 --images 2000
    python benchmarks/bilevel_published.py --only SOBA --start solution   # y starts at y*(x), not at a normal vector

Data: ijcnn1 and MNIST in $SEMAOPT_DATA (``semaopt data fetch ijcnn1``). The published pairs are (step size, ratio): the
step size on y and on the linear system is the first, and that on x is the first divided by the second. SOBA
decreases both like one over the square root of the step number, BSA the one on x; other decays are part of the
methods. With fewer than 20,000 MNIST images the gradient in x grows, so the step size on x shrinks by the same factor.
On ijcnn1, g is the loss on all rows of the training file. All methods have the same start, seed 0. The value function
and its gradient are exact, on all data.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

import semaopt
from semaopt.baselines import BSA, FSLA, MRBO, SABA, SOBA, SUSTAIN, TTSA, AmIGO, StocBiO
from semaopt.hypergradient import Neumann, NeumannSeries

#: (step size, ratio) of each method.
PUBLISHED: dict[str, dict[str, tuple[float, float]]] = {
    "ijcnn1": {
        "SOBA": (0.03125, 0.01),
        "SABA": (0.125, 1),
        "StocBiO": (0.125, 1),
        "MRBO": (0.5, 0.0316),
        "SUSTAIN": (0.5, 0.1),
        "AmIGO": (0.125, 0.316),
        "TTSA": (0.5, 0.0316),
        "BSA": (0.5, 0.01),
        "FSLA": (0.03125, 0.01),
    },
    "mnist": {"SOBA": (1.0, 1e-4), "SABA": (0.1, 1e-3), "FSLA": (1.0, 1e-4), "MRBO": (0.1, 1e-4)},
}
METHODS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (SOBA, SABA, StocBiO, MRBO, SUSTAIN, AmIGO, TTSA, BSA, FSLA)
}
INVERSES = {StocBiO: NeumannSeries, MRBO: NeumannSeries, BSA: Neumann, TTSA: Neumann, SUSTAIN: Neumann}
#: Whether the step sizes on x and on y decay like one over the square root of the step number.
DECAYS = {SOBA: (True, True), BSA: (True, False)}
IMAGES = 20_000


def ijcnn1(options: argparse.Namespace) -> Any:
    from semaopt.experiments import data

    task = data.load(name="ijcnn1", seed=0)

    def rows(*parts: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.cat([part.inputs(None) for part in parts]), 2.0 * torch.cat([part.labels for part in parts]) - 1

    # The benchmark has no validation part: g is the loss on all rows of the training file.
    train, test = rows(task.train, task.valid), rows(task.test)
    return semaopt.problems.RegularizationSelection(train, test)


def mnist(options: argparse.Namespace) -> Any:
    from semaopt.experiments import data

    task = data.load(name="mnist", seed=0)
    order = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(0))

    def rows(part: Any, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return part.inputs(index).flatten(1), part.labels[index]

    train, valid = order[: options.images], order[IMAGES : IMAGES + 5000]
    return semaopt.problems.SoftmaxCleaning(
        rows(task.train, train), rows(task.train, valid), rows(task.test, torch.arange(len(task.test)))
    )


PROBLEMS: dict[str, Callable[[argparse.Namespace], Any]] = {"ijcnn1": ijcnn1, "mnist": mnist}


def prepare(name: str, problem: Any, lr: float, lower_lr: float) -> tuple[torch.optim.Optimizer, LambdaLR]:
    """Return the method, with ten inner steps and ten terms as published, and its schedule."""
    kind, more = METHODS[name], dict[str, Any]()
    if kind in INVERSES:
        more["inverse"] = INVERSES[kind](terms=10, bound=1 / lower_lr)
    if kind is SABA:
        more["samples"] = problem.samples
    elif kind in (SUSTAIN, MRBO, FSLA):
        more |= {"samples": problem.samples, "weight": 0.5}
    method: torch.optim.Optimizer = kind([problem.upper], [problem.lower], lr=lr, lower_lr=lower_lr, **more)
    decays = DECAYS.get(kind, (False, False))
    factors: list[Callable[[int], float]] = [(lambda t: (t + 1) ** -0.5) if one else (lambda _: 1.0) for one in decays]
    return method, LambdaLR(method, factors)


def curve(name: str, problem: Any, options: argparse.Namespace) -> Iterator[tuple[int, int, float, float]]:
    """Yield (step, calls, value function, squared norm of its gradient) at steps 0, 1, 4, 16 ... and at the end."""
    step_size, ratio = PUBLISHED[options.problem][name]
    lr = step_size / ratio * (options.images / IMAGES if options.problem == "mnist" else 1)
    method, schedule = prepare(name, problem, lr, step_size)
    steps = total = 0
    shown = 0  # the next step to measure
    while total < options.calls:
        if steps == shown:
            yield steps, total, *exact(problem)
            shown = max(4 * shown, 1)
        with semaopt.hypergradient.count_calls() as calls:
            method.step(problem.outer, problem.inner)
        schedule.step()
        steps, total = steps + 1, total + calls.gradients + calls.hessian_products + calls.mixed_products
    yield steps, total, *exact(problem)


def exact(problem: Any) -> tuple[float, float]:
    """Return the value function and the squared norm of its gradient."""
    value, gradient = problem.value()
    return value, gradient.square().sum().item()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", choices=PUBLISHED, default="ijcnn1")
    parser.add_argument("--only", nargs="+", choices=METHODS, help="the methods; by default all published ones")
    parser.add_argument("--calls", type=int, default=50_000, help="oracle calls per method")
    parser.add_argument("--images", type=int, default=IMAGES, help="training images of MNIST")
    parser.add_argument("--start", choices=["random", "solution"], default="random", help="where y starts")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print("| method | step | calls | value function | squared norm of its gradient |\n|---|---|---|---|---|")
    for name in options.only or PUBLISHED[options.problem]:
        problem = PROBLEMS[options.problem](options)
        if options.start == "solution":
            problem.lower.data.copy_(problem.solve_lower())
        try:
            for step, calls, value, norm in curve(name, problem, options):
                print(f"| {name} | {step} | {calls} | {value:.4f} | {norm:.2g} |", flush=True)
        except RuntimeError as error:
            print(f"| {name} | diverged: {str(error).splitlines()[0][:80]} | | | |", flush=True)


if __name__ == "__main__":
    main()
