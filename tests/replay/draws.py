"""Random options and the deviation of two trajectories."""

import numpy as np
import torch


class Draws:
    """Random numbers of one draw."""

    def __init__(self, name, seed):
        self.rng = np.random.default_rng([seed, *name.encode()])

    def pick(self, values):
        return values[self.rng.integers(len(values))]

    def yes(self, chance=0.5):
        return bool(self.rng.random() < chance)

    def rate(self, low, high):
        """A number between low and high, uniform in its logarithm."""
        return float(low * (high / low) ** self.rng.random())

    def normal(self, *shape):
        return np.asarray(self.rng.normal(size=shape))

    def arrays(self, shapes):
        return [self.normal(*shape) for shape in shapes]


def deviation(found, expected):
    """Largest difference of two lists of arrays, relative to the largest entry if that is above 1."""
    largest = 0.0
    for pair in zip(found, expected, strict=True):
        a, b = (np.asarray(z.detach() if isinstance(z, torch.Tensor) else z, dtype=np.float64) for z in pair)
        assert a.shape == b.shape, (a.shape, b.shape)
        assert np.array_equal(np.isnan(a), np.isnan(b))
        if a.size:
            size = max(1.0, float(np.nanmax(np.abs(b), initial=0.0)))
            largest = max(largest, float(np.nanmax(np.abs(a - b), initial=0.0)) / size)
    return largest


def parameters(arrays):
    return [torch.nn.Parameter(torch.tensor(a)) for a in arrays]


def values(tensors):
    return [x.detach().numpy().copy() for x in tensors]


def set_gradients(tensors, gs):
    for x, g in zip(tensors, gs, strict=True):
        x.grad = None if g is None else torch.tensor(g)


def orthogonal(draw, n):
    return np.linalg.qr(draw.normal(n, n))[0]


def positive_definite(draw, n, low, high):
    """A symmetric matrix with eigenvalues between low and high."""
    q = orthogonal(draw, n)
    return (q * draw.rng.uniform(low, high, n)) @ q.T
