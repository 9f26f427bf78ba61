"""The ResNet-8 problem of benchmarks/bilevel_resnet.py, on which FirstOrder is compared with second derivatives."""

import importlib
import json
import logging
import sys
import warnings
from pathlib import Path

import pytest
import torch

from semaopt.hypergradient import count_calls

pytest.importorskip("pydantic", reason="the network is that of the extra 'experiments'")
METHOD = "semaopt SMB, FirstOrder"


@pytest.fixture(scope="module")
def resnet():
    sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
    names = ("bilevel_resnet", "bilevel_contestants")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of betty and TorchOpt, where they are installed
            module = importlib.import_module(names[0])
    finally:
        sys.path.pop(0)
    module.BATCH, module.EXAMPLES = 4, 12
    yield module
    for name in names:
        del sys.modules[name]


def test_a_first_order_step_takes_four_gradients_on_one_pair_of_batches(resnet):
    problem = resnet.Cleaning()
    step = resnet.methods()[METHOD](problem)
    before = [p.detach().clone() for p in (problem.weights, *problem.model.parameters())]
    with count_calls() as calls:
        step()
    assert (calls.gradients, calls.hessian_products, calls.mixed_products) == (4, 0, 0)
    after = [problem.weights, *problem.model.parameters()]
    assert all(not torch.equal(a, b) for a, b in zip(after[1:], before[1:], strict=True))
    moved = (problem.weights != before[0]).nonzero().flatten().tolist()
    assert moved == sorted(set(problem.noisy[2].tolist()))  # only the weights of this batch


def test_first_order_approaches_the_tracked_hypergradient(resnet):
    """Both estimates at the same x, y and batches; that of FirstOrder with a large penalty has almost no bias."""
    found = []
    for inverse in (resnet.FirstOrder(penalty=1e3), resnet.TrackedSystem()):
        problem = resnet.Cleaning()
        problem.model.double()
        problem.images = problem.images.double()
        problem.draw()
        resnet.ours(inverse)(problem)()
        found.append(problem.weights.grad.double())
    assert torch.nn.functional.cosine_similarity(*found, dim=0) > 0.99


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak memory from Linux")
def test_it_prints_time_and_memory(resnet, capsys):
    threads = torch.get_num_threads()
    try:
        with warnings.catch_warnings():
            resnet.main(METHOD, 1)
    finally:
        logging.disable(logging.NOTSET)
        torch.set_num_threads(threads)
    found = json.loads(capsys.readouterr().out)
    assert found["ms"] > 0
    assert found["peak_mb"] >= 0
