"""Bounds and limits of the theorems by direct formulas (see docs/theory.md); ``c`` is a dict of constants."""

import math


def eta_caps(c, gamma, tracking):
    """The three limits of eta in ``thm:2``; the bound of the tracking error halves the first two."""
    L, k = c["L"], 2 if tracking else 1
    return (
        gamma * math.sqrt(c["c_l"] / c["c_u"] ** 3) / (2 * k * L),
        1 / (k * math.sqrt(2) * L * c["c_u"]),
        c["c_l"] / (2 * L * c["c_u"] ** 2),
    )


def gamma_cap(c):
    growth = c["sigma2"] * c["c"]
    return min(1.0, c["c_l"] / (8 * c["c_u"] * growth)) if growth else 1.0


def first_error(c):
    return c["sigma2"] * (1 + c["c"] * 2 * c["L"] * c["delta_f"])


def constant(c, T, eta, gamma):
    r = c["c_u"] / c["c_l"]
    of_objective = 4 * c["delta_f"] / (eta * c["c_l"] * (T + 1))
    return of_objective + 2 * r * first_error(c) / (gamma * (T + 1)) + 4 * gamma * c["sigma2"] * r


def constant_tracking(c, T, eta, gamma):
    r = c["c_u"] / c["c_l"]
    inner = first_error(c) / (gamma * (T + 1)) + 2 * gamma * c["sigma2"] + 3 / (4 * r) * constant(c, T, eta, gamma)
    return 4 / 3 * inner


def decreasing(c, T, gamma_0, rho):
    gammas = [min(1.0, gamma_0 / math.sqrt(t + 1)) for t in range(T + 2)]
    r, squares = c["c_u"] / c["c_l"], math.fsum(g**2 for g in gammas[1:])
    inner = 4 * c["delta_f"] / c["c_l"] + 2 * r * rho * (first_error(c) + 2 * c["sigma2"] * squares)
    return inner / ((T + 1) * rho * gammas[-1])


def stage(c, epsilon):
    """gamma, eta and T of the stage of ``thm:min_PL`` that starts at epsilon."""
    r, mu = c["c_u"] / c["c_l"], c["mu"]
    gamma = min(gamma_cap(c), mu * epsilon / (24 * r * c["sigma2"]))
    eta = min(eta_caps(c, gamma, True))
    carried = max(4.0, 22 / 9 * mu / r)
    return gamma, eta, max(12 * carried * r / (mu * gamma), 6 / (mu * eta * c["c_l"]))


def minmax_caps(c, gamma, eta_y, p):
    kappa, scale = c["L_f"] / c["lam"], math.sqrt(c["c_l"] / c["c_u"] ** 3)
    L_F = c["L_f"] * (1 + kappa)
    return {
        "eta_y": c["lam"] / (p * c["L_f"] ** 2),
        "eta_x": min(
            scale * eta_y * c["lam"] / (48 * c["L_f"] * kappa),
            scale * gamma / (8 * L_F),
            c["c_l"] / (2 * L_F * c["c_u"] ** 2),
        ),
    }


def minmax(c, T, eta_x, eta_y, gamma, p):
    r, lam, L2, sigma2 = c["c_u"] / c["c_l"], c["lam"], c["L_f"] ** 2, c["sigma2"]
    first = sigma2 + L2 * c["delta_y"]
    return (
        2 * c["delta_f"] / (eta_x * c["c_l"] * T)
        + 2 * r * first / (gamma * T)
        + 8 * r * gamma * sigma2
        + 40 * p * r * L2 * c["delta_y"] / (eta_y * lam * T)
        + 80 * p * r * L2 * eta_y * sigma2 / lam
    )


def neumann_terms(c, T):
    return math.ceil(c["C_gyy"] / (2 * c["lam"]) * math.log(64 * math.sqrt(T + 1) * c["C_gxy"] ** 2 / c["lam"] ** 2))


def bilevel(c, T, eta_x, eta_y, gamma, k):
    """``thm:5``, the bound of SMB."""
    r, lam, sigma2 = c["c_u"] / c["c_l"], c["lam"], c["sigma2"]
    f2, x2 = c["C_fy"] ** 2, c["C_gxy"] ** 2
    C_0 = 2 * c["L_fx"] ** 2 + 6 / lam**2 * (
        f2 * c["L_gxy"] ** 2 + f2 * x2 * c["L_gyy"] ** 2 / lam**2 + c["L_fy"] ** 2 * x2
    )
    h2 = (k / c["C_gyy"]) ** 2
    V = 2 * sigma2 + 6 * h2 * (sigma2 * (f2 + sigma2) + x2 * (4 * (f2 + sigma2) + sigma2))
    bias = x2 * f2 / lam**2 * (1 - lam / c["C_gyy"]) ** (2 * k)
    D_0 = V + 2 * C_0 * c["delta_y"] + 2 * bias
    inner = 2 * D_0 / (gamma * T) + 2 * gamma * V + 16 * bias
    inner += 32 * C_0 * c["delta_y"] / (eta_y * lam * T) + 64 * C_0 * eta_y * sigma2 / lam
    return 2 * c["delta_f"] / (eta_x * c["c_l"] * T) + r * inner
