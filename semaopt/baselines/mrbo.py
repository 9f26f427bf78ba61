"""MRBO: the momentum-based recursive bilevel optimizer."""

from __future__ import annotations

from typing import Any, ClassVar

from semaopt.baselines.sustain import SUSTAIN
from semaopt.hypergradient.inverses import NeumannSeries


class MRBO(SUSTAIN):  # one level deeper than other methods: it differs in one line only
    r"""The recursions of :class:`SUSTAIN` with the whole Neumann series as h.

    .. math::
        d^y_t &= O_{gy}(x_t, y_t) + (1 - a_t)\,\bigl(d^y_{t-1} - O_{gy}(x_{t-1}, y_{t-1})\bigr) \\
        d^x_t &= O_F(x_t, y_t) + (1 - a_t)\,\bigl(d^x_{t-1} - O_F(x_{t-1}, y_{t-1})\bigr), \qquad
            O_F = O_{fx} - O_{gxy} h\, O_{fy} \\
        y_{t+1} &= \Pi_Y[y_t - \eta_y (t+1)^{-1/3}\, d^y_t], \qquad x_{t+1} = x_t - \eta_x (t+1)^{-1/3}\, d^x_t

    with :math:`a_t = a\,(t+1)^{-2/3}`. **The closures take the number of a sample**: ``outer(i)``, ``inner(i)``.

    Args:
        upper, lower, lr, lower_lr, lower_weight_decay, project, process_group, on_nonfinite: as in
            :class:`semaopt.SMB`; ``group["lr"]`` holds eta unchanged.
        inverse: h; None stands for :class:`semaopt.hypergradient.NeumannSeries`. It must not keep a vector between
            steps.
        weight, samples, seed: as in :class:`SUSTAIN`.

    Reference: Yang, Ji and Liang, "Provably faster algorithms for bilevel optimization", NeurIPS 2021.

    >>> x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([0.0]))
    >>> optimizer = semaopt.baselines.MRBO(upper=[x], lower=[y], lr=0.1, lower_lr=0.5,
    ...                                    inverse=semaopt.hypergradient.NeumannSeries(terms=3, bound=1.0))
    >>> optimizer.step(lambda i: y.square().sum() / 2, lambda i: (y - x).square().sum() / 2)    # i is not used
    tensor(0.)
    >>> y.data
    tensor([0.5000])
    """

    default_inverse: ClassVar[type[Any]] = NeumannSeries
