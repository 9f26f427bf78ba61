"""Write the largest deviation of every class: ``python -m tests.replay --draws 300``."""

import argparse
import logging
import warnings

from tests.replay.cases import CASES, deviation_of

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--draws", type=int, default=300)
parser.add_argument("--only", action="append", help="replay this class; may be repeated")
options = parser.parse_args()
warnings.simplefilter("error")
logging.disable()
for name in CASES:
    if options.only is None or name in options.only:
        print(f"| {name} | {max(deviation_of(name, seed) for seed in range(options.draws)):.1e} |", flush=True)
