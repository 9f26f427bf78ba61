"""Compare peak memory and time of stepping after the backward pass and inside it.

    python benchmarks/in_backward.py [--layers 12] [--width 2048] [--steps 5] [--state-dtype bfloat16]

Each variant runs in its own process and reports its peak memory minus the memory after building the model. glibc's
malloc is set to return freed blocks at once (MALLOC_MMAP_THRESHOLD_). Otherwise it keeps a varying number of them,
which would dominate the peak.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time

import torch
from torch import nn

import semaopt

MIB = 1 << 20


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def run(way: str, layers: int, width: int, steps: int, state_dtype: str | None) -> dict[str, float]:
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.Tanh())))
    built = peak()

    def factory(params):
        return semaopt.ASA(params, state_dtype=state_dtype and getattr(torch, state_dtype))

    if way == "inside":
        semaopt.step_in_backward(model, factory)
    else:
        optimizer = factory(model.parameters())
    a, seconds = torch.randn(8, width), []
    for _ in range(steps):
        start = time.perf_counter()
        model(a).square().mean().backward()
        if way == "after":
            optimizer.step()
            optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
    total = sum(x.double().sum().item() for x in model.parameters())
    size = sum(x.nbytes for x in model.parameters())
    return {"held": peak() - built, "seconds": sorted(seconds)[len(seconds) // 2], "parameters": size, "sum": total}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--way", choices=("after", "inside"))
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--state-dtype", choices=("bfloat16",))
    given = parser.parse_args()
    if given.way:
        print(json.dumps(run(**vars(given))))
        return
    results = {}
    for way in ("after", "inside"):
        command = [sys.executable, *sys.argv, "--way", way]
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        results[way] = json.loads(done.stdout)
        held, size = results[way]["held"], results[way]["parameters"]
        print(
            f"step {way:6} backward: {held / MIB:7.0f} MiB on top of the model's {size / MIB:.0f} MiB "
            f"({held / size:.2f} times), {results[way]['seconds']:.3f} s/step"
        )
    print("equal to the bit" if results["after"]["sum"] == results["inside"]["sum"] else "DIFFERENT results")


if __name__ == "__main__":
    main()
