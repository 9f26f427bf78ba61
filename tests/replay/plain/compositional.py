"""SCMA, in numpy: z tracks the inner value, ASA steps along J_g^T grad f(z)."""

import numpy as np


class SCMA:
    """``xs`` is an ASA of one vector. With ``blocks``, z has one row per block, which starts at its first value."""

    def __init__(self, xs, inner_beta, blocks=None):
        self.xs, self.gamma, self.z = xs, 1 - inner_beta, {} if blocks else None

    def step(self, g, jacobian, slope, direct, rows=None, gamma=None):
        """``g(x)`` and ``jacobian(x)`` of two samples, ``slope(z)`` = grad f(z), ``direct(x)`` = df/dx at fixed z."""
        x, gamma = self.xs.xs[0], self.gamma if gamma is None else gamma
        if rows is None:
            self.z = g(x) if self.z is None else (1 - gamma) * self.z + gamma * g(x)
            z = self.z
        else:
            for i, new in zip(rows, g(x), strict=True):
                self.z[i] = (1 - gamma) * self.z[i] + gamma * new if i in self.z else new
            z = np.stack([self.z[i] for i in rows])
        self.xs.step([np.tensordot(slope(z), jacobian(x), axes=z.ndim) + direct(x)])
        return z
