"""Feed damaged and hostile inputs to every reader, and count those that are not refused with a clear error.

    python benchmarks/fuzz.py --inputs 100000 --seed 0          # distributed over all targets
    python benchmarks/fuzz.py --only "cifar pickles" --inputs 5000
    python benchmarks/fuzz.py --only stores --number 17         # repeat one input, with its traceback

Mutations change bytes, lines and structure. They are seeded: the same numbers give the same inputs. The exit status is
1 after a finding: an exception that is not the library's, a function called by a file, undetected damage, a file left
behind, or more than 30 seconds for one input.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.fuzz.commands import COMMANDS
from tests.fuzz.harness import fuzz
from tests.fuzz.targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one target")
    parser.add_argument("--number", type=int, help="run only this input of the target")
    given = parser.parse_args()
    warnings.simplefilter("error")  # a warning counts as a finding
    os.environ["COLUMNS"] = "80"
    everything = [*TARGETS, COMMANDS]
    chosen = [target for target in everything if given.only in (None, target.name)]
    if not chosen:
        parser.error(f"--only {given.only}: unknown target; available: {', '.join(one.name for one in everything)}")
    if given.number is not None:
        one = chosen[0]
        with tempfile.TemporaryDirectory() as folder:
            made = one.make(Random(f"{given.seed}/{one.name}/{given.number}"))
            print(repr(made)[:2000])
            print("accepted" if one.verify(made, Path(folder)) else "refused")
        return 0
    shares = sum(target.share for target in chosen)
    print(f"{'target':16} {'inputs':>8} {'accepted':>9} {'findings':>9} {'ms each':>8}")
    total = findings = 0
    for target in chosen:
        found = fuzz(target, range(-(-given.inputs * target.share // shares)), given.seed)
        bad = sum(found.kinds.values())
        each = 1e3 * found.seconds / max(found.inputs, 1)
        print(f"{target.name:16} {found.inputs:8} {found.accepted:9} {bad:9} {each:8.2f}", flush=True)
        for kind, count in found.kinds.most_common(20):
            print(f"  {count} x {kind}\n    {found.examples[kind]}")
        total, findings = total + found.inputs, findings + bad
    print(f"{'all':16} {total:8} {'':9} {findings:9}")
    return int(findings > 0)


if __name__ == "__main__":
    sys.exit(main())
