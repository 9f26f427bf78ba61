"""Projections of random points against numpy."""

import numpy as np
import torch

from semaopt import projections
from tests.replay.draws import deviation
from tests.replay.plain import sets as plain


def box(draw):
    y, (lo, hi) = 2 * draw.normal(3, 4), np.sort(draw.normal(2, 3, 4), 0)
    lo, hi = draw.pick([(lo, hi), (float(lo.min()), hi), (float(lo.min()), np.inf), (-np.inf, float(hi.max()))])
    bounds = (torch.tensor(z) if isinstance(z, np.ndarray) else z for z in (lo, hi))
    return deviation([projections.Box(*bounds)(torch.tensor(y))], [plain.box(y, lo, hi)])


def ball(draw):
    y, radius, center = 2 * draw.normal(3, 4), draw.rate(0.1, 20), draw.pick([0.0, 0.5, draw.normal(4)])
    ours = torch.tensor(center) if isinstance(center, np.ndarray) else center
    return deviation([projections.Ball(radius, ours)(torch.tensor(y))], [plain.ball(y, radius, center)])


def simplex(draw):
    y, total, dim = 2 * draw.normal(3, 4), draw.rate(0.1, 20), draw.pick([None, 0, 1, -1])
    expected = plain.simplex(y, total) if dim is None else np.apply_along_axis(plain.simplex, dim, y, total)
    return deviation([projections.Simplex(total, dim)(torch.tensor(y))], [expected])


def spectral_ball(draw):
    y, radius = draw.normal(2, *draw.pick([(3, 4), (4, 1), (1, 3), (3, 3)])), draw.rate(0.1, 5)
    expected = np.stack([plain.spectral_ball(part, radius) for part in y])
    return deviation([projections.SpectralBall(radius)(torch.tensor(y))], [expected])


CASES = {"Box": box, "Ball": ball, "Simplex": simplex, "SpectralBall": spectral_ball}
