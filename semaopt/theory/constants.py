"""The constants of a problem that the theorems need, validated, and the constants that follow from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any

from semaopt import scalings
from semaopt._validation import is_real, require, validate_bounds, validate_integer_field


def _meaning(text: str, default: Any = None) -> Any:
    return field(default=default, metadata={"meaning": text})


@dataclass(frozen=True, kw_only=True)
class Constants:
    r"""The constants of a problem, its oracle and a scaling, with the paper's symbols.

    Pass those that your theorem needs. An error names the missing ones and their meaning.

    Minimization (``ass:1``, ``ass:2``): the gradient of :math:`F` is ``L``-Lipschitz, :math:`F(x_0) - F_* \le`
    ``delta_f``, the unbiased oracle satisfies :math:`E|O(x) - \nabla F(x)|^2 \le \sigma^2(1 + c|\nabla F(x)|^2)`, and
    the scaling satisfies ``c_l`` :math:`\le s \le` ``c_u`` (:meth:`scaled` takes the bounds from a scaling).

    >>> c = semaopt.theory.Constants(L=2.0, sigma2=1.0, delta_f=3.0)
    >>> c.delta_0                              # E|v_1 - grad F(x_0)|^2 <= sigma^2 (1 + c 2 L delta_f)
    1.0
    >>> semaopt.theory.Constants(L_f=1.0, lam=0.1, sigma2=1.0, delta_f=3.0).L_F    # L_f (1 + kappa)
    11.0
    """

    L: float | None = _meaning("the Lipschitz constant of grad F (L_F in the paper)")
    sigma2: float | None = _meaning("sigma^2, a bound of the oracle's variance where grad F = 0")
    c: float = _meaning("the growth of the variance: E|O - grad F|^2 <= sigma2 (1 + c |grad F|^2)", 0.0)
    delta_f: float | None = _meaning("a bound of F(x_0) - min F")
    c_l: float = _meaning("the lower bound of the scaling s = 1/(sqrt(u) + G0)", 1.0)
    c_u: float = _meaning("the upper bound of the scaling s = 1/(sqrt(u) + G0)", 1.0)
    estimator_error: float | None = _meaning("a bound of E|v_1 - grad F(x_0)|^2 that is smaller than delta_0")
    mu: float | None = _meaning("the PL constant of F: |grad F|^2 >= 2 mu (F - min F)")
    lam: float | None = _meaning(
        "lambda: f(x, .) is lambda-strongly concave (or lambda-PL); g(x, .) lambda-strongly convex"
    )
    L_f: float | None = _meaning("the Lipschitz constant of the gradient of f in (x, y)")
    delta_y: float | None = _meaning("a bound of |y_0 - y*(x_0)|^2")
    L_fx: float | None = _meaning("the Lipschitz constant of the gradient of f in x, jointly in (x, y)")
    L_fy: float | None = _meaning("the Lipschitz constant of the gradient of f in y, jointly in (x, y)")
    L_gy: float | None = _meaning("the Lipschitz constant of the gradient of g in y")
    L_gxy: float | None = _meaning("the Lipschitz constant of the mixed second derivative g_xy")
    L_gyy: float | None = _meaning("the Lipschitz constant of the second derivative g_yy")
    C_fy: float | None = _meaning("a bound of the norm of the gradient of f in y")
    C_gxy: float | None = _meaning("a bound of the spectral norm of g_xy")
    C_gyy: float | None = _meaning("a bound of every sample of g_yy: 0 <= O_gyy <= C_gyy I")
    dim_y: int | None = _meaning("the dimension of y (SBMA averages a dim_y x dim_y matrix)")

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if value is None and f.default is None:
                continue
            meaning = f.metadata["meaning"]
            if f.name == "dim_y":
                validate_integer_field(self, "dim_y", f"it is {meaning}")
                continue
            ok = is_real(value) and 0 <= float(value) < math.inf
            require(ok, f.name, value, "must be a finite number >= 0", f"it is {meaning}")
            ok = float(value) > 0 or f.name in _MAY_BE_ZERO
            require(ok, f.name, value, "must be positive", f"it is {meaning}")
            object.__setattr__(self, f.name, float(value))
        validate_bounds("(c_l, c_u)", (self.c_l, self.c_u))
        for small, large, why in _ORDER:
            a, b = getattr(self, small), getattr(self, large)
            # Constants that are equal in exact arithmetic may differ by rounding.
            ok = a is None or b is None or a <= b * (1 + 1e-12)
            require(ok, small, a, f"must be at most {large}={b}", why)
        both = self.L_f is not None and self.C_gxy is not None
        require(
            not both,
            "L_f",
            self.L_f,
            "must not be combined with C_gxy: L_f belongs to min-max, C_gxy to bilevel problems",
            "pass one of them",
        )

    def need(self, theorem: str, *names: str) -> None:
        """Raise an error that names every missing constant of ``names`` and its meaning."""
        missing = [name for name in names if getattr(self, name) is None]
        if missing:
            meanings = "; ".join(f"{name}, {MEANING[name]}" for name in missing)
            arguments = ", ".join(f"{name}=..." for name in missing)
            raise ValueError(f"{theorem} needs {meanings}. Pass Constants(..., {arguments}).")

    def get(self, name: str) -> float:
        """Return a constant; raise if it is missing."""
        value = getattr(self, name)
        if value is None:
            self.need("this formula", name)
        return float(value)

    def scaled(self, scaling: str | scalings.BuiltIn, G: float) -> Constants:
        """Return a copy with ``c_l, c_u`` of a row of Table 2, for gradients bounded by ``G``.

        ``G`` is a bound of every coordinate of every stochastic gradient; for Adam+, of its Euclidean norm.

        >>> c = semaopt.theory.Constants(L=1.0).scaled(semaopt.scalings.Adam(g0=1.0), G=3.0)
        >>> c.c_l, c.c_u
        (0.25, 1.0)
        """
        row = scalings.resolve(scaling)
        if not isinstance(row, scalings.BuiltIn):
            raise TypeError(f"scaling={scaling!r}: its bounds are not in Table 2. Pass Constants(c_l=..., c_u=...).")
        require(
            is_real(G) and 0 < G < math.inf,
            "G",
            G,
            "must be a finite number > 0",
            "it is a bound of the gradients; try 1.0",
        )
        c_l, c_u = row.bounds(float(G))
        return replace(self, c_l=c_l, c_u=c_u)

    @property
    def ratio(self) -> float:
        """The factor c_u / c_l by which the scaling enlarges the bounds."""
        return self.c_u / self.c_l

    @property
    def growth(self) -> float:
        """The product sigma^2 c: the variance is at most sigma^2 + growth |grad F|^2."""
        return self.get("sigma2") * self.c

    @property
    def delta_0(self) -> float:
        r"""A bound of :math:`E|v_1 - \nabla F(x_0)|^2`, the error of the first sample.

        It is :math:`\sigma^2(1 + c\,2LD_F)`, since :math:`|\nabla F|^2 \le 2L(F - F_*)` for every smooth F.
        """
        if self.estimator_error is not None:
            return self.estimator_error
        if self.growth == 0:
            return self.get("sigma2")
        return self.get("sigma2") + self.growth * 2 * self.get("L") * self.get("delta_f")

    @property
    def kappa(self) -> float:
        """The condition number L_f / lambda of a min-max problem."""
        return self.get("L_f") / self.get("lam")

    @property
    def L_y(self) -> float:
        r"""The Lipschitz constant of y*(x): kappa in a min-max problem, C_gxy / lambda in a bilevel one."""
        return self.kappa if self.L_f is not None else self.get("C_gxy") / self.get("lam")

    @property
    def C_0(self) -> float:
        r"""The constant of :math:`|\nabla F(x, y) - \nabla F(x, y')|^2 \le C_0|y - y'|^2` (``lem:sbo_var_1``).

        .. math::
            C_0 = 2L_{fx}^2 + \frac{6C_{fy}^2L_{gxy}^2}{\lambda^2} + \frac{6C_{fy}^2C_{gxy}^2L_{gyy}^2}{\lambda^4}
            + \frac{6L_{fy}^2C_{gxy}^2}{\lambda^2}
        """
        lam2, c_fy2, c_gxy2 = self.get("lam") ** 2, self.get("C_fy") ** 2, self.get("C_gxy") ** 2
        return (
            2 * self.get("L_fx") ** 2
            + 6 * c_fy2 * self.get("L_gxy") ** 2 / lam2
            + 6 * c_fy2 * c_gxy2 * self.get("L_gyy") ** 2 / lam2**2
            + 6 * self.get("L_fy") ** 2 * c_gxy2 / lam2
        )

    @property
    def L_F(self) -> float:
        r"""The Lipschitz constant of grad F: ``L`` if given, otherwise computed from the other constants.

        Min-max: :math:`L_f(1+\kappa)`. Bilevel: :math:`\sqrt{C_0(1+L_y^2)}` (in the paper's ``lem:sbo_var_1``, L_F is
        the square of this).
        """
        if self.L is not None:
            return self.L
        if self.L_f is not None:
            return self.L_f * (1 + self.kappa)
        return math.sqrt(self.C_0 * (1 + self.L_y**2))


MEANING: dict[str, str] = {f.name: f.metadata["meaning"] for f in fields(Constants)}

_MAY_BE_ZERO = frozenset(
    {"sigma2", "c", "estimator_error", "delta_y", "L_fx", "L_fy", "L_gxy", "L_gyy", "C_fy", "C_gxy"}
)

#: (smaller, larger, reason)
_ORDER = (
    ("mu", "L", "|grad F|^2 <= 2 L (F - min F) holds for every L-smooth F, so mu cannot exceed L"),
    (
        "lam",
        "L_f",
        "the gradient of a lambda-strongly concave or lambda-PL f has a Lipschitz constant >= lambda",
    ),
    ("lam", "L_gy", "the gradient of a lambda-strongly convex g has a Lipschitz constant >= lambda"),
    ("lam", "C_gyy", "the mean of the samples of g_yy is at least lambda I"),
)
