"""Properties of the batches of ClassBalanced with random options."""

import numpy as np
import torch

from semaopt.samplers import ClassBalanced


def used_evenly(drawn, members):
    """Whether every member is drawn before any is repeated: counts differ by at most 1."""
    counts = np.bincount(drawn, minlength=members.max() + 1)[members]
    return counts.max() - counts.min() <= 1


def balanced(draw):
    n, size, replicas = int(draw.rate(20, 200)), draw.pick([2, 5, 8]), draw.pick([1, 2])
    labels = np.zeros(n, dtype=int)
    labels[draw.rng.permutation(n)[: max(2 * replicas, int(n * draw.rng.uniform(0.05, 0.6)))]] = 1
    positives, seed, epoch = draw.rng.uniform(0.05, 0.95), draw.pick([0, 7]), draw.pick([0, 3])
    state, owned, shares = torch.random.get_rng_state(), [], []
    for rank in range(replicas):
        sampler = ClassBalanced(labels, size, positives, seed, replicas, rank)
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert len(batches) == len(sampler) == -(-n // (size * replicas))
        assert all(len(batch) == size for batch in batches)
        rows = np.concatenate(batches)
        for b in (0, 1):
            drawn = rows[labels[rows] == b]
            members = np.flatnonzero(labels == b) if replicas == 1 else np.unique(drawn)
            assert used_evenly(drawn, members), "an example was repeated before its class was used up"
        shares += [labels[batch].mean() for batch in batches]
        owned.append(set(rows.tolist()))
        again = ClassBalanced(labels, size, positives, seed, replicas, rank)
        cut = len(batches) // 2
        again.load_state_dict({**sampler.state_dict(cut), "epoch": epoch})
        assert list(again) == batches[cut:], "the epoch did not resume at its position"
    assert not set.intersection(*owned) or replicas == 1
    assert torch.equal(state, torch.random.get_rng_state())
    k = min(max(round(size * positives), 1), size - 1)
    assert set(shares) == {k / size}
    return abs(float(np.mean(shares)) - sampler.prior.item())


CASES = {"ClassBalanced (properties)": balanced}
