"""Time a step against torch, installed peers and the memory limit; the same as ``semaopt bench step``.

    python benchmarks/step.py [--sizes one net resnet50 large] [--threads 2] [--seconds 30] [--out DIR]

Peers: ``pip install --no-deps pytorch_optimizer torch-optimizer pytorch_ranger``.
"""

from semaopt.experiments.bench.step import main

if __name__ == "__main__":
    main()
