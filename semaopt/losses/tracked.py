r"""The engine of the compositional losses: moving averages of inner values, one for each training example.

A compositional loss is :math:`\frac1n\sum_i f(E[g_i(x)])`. The gradient of f at the value of one batch is biased, so
each example i keeps an average of its inner values, which starts at the first one:

.. math::
    z_i \leftarrow (1-\gamma) z_i + \gamma\, g_i(x; \text{batch}), \qquad \gamma = 1 - \mathtt{inner\_beta},
    \qquad \text{gradient } J_g(x; \text{batch})^\top \nabla f(z) .

This is the step of :class:`semaopt.SCMA` as a module, so one ``backward()`` gives the gradient to any optimizer:

>>> loss = semaopt.losses.AveragePrecision(size=4)
>>> scores, labels, index = torch.zeros(3, requires_grad=True), torch.tensor([1, 0, 0]), torch.tensor([3, 0, 1])
>>> loss(scores, labels, index).backward()
>>> loss.z[3], loss.z[0]                                     # NaN: not visited yet
(tensor([0.3333, 1.0000]), tensor([nan, nan]))

A loss is a pair (g, f). Its ``forward`` computes g from the batch and passes it to :meth:`Tracked.average`, which
returns a tensor with the value of z and the derivative of g. The result is f of that tensor.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from semaopt._validation import require, validate_beta, validate_integer
from semaopt.losses._auc_objective import is_eager

#: Rows of a buffer: one index, or one index for each of its dimensions.
Rows = Tensor | tuple[Tensor, ...] | slice
#: Types of devices without float64.
WITHOUT_FLOAT64 = ("mps",)


class Tracked(nn.Module):
    """Base class of the losses that keep moving averages.

    Args:
        size: number of training examples; None for a loss that is only evaluated or used with :class:`semaopt.SCMA`.
        shape: shape of the inner value of one example.
        inner_beta: momentum of the averages in [0, 1).
        process_group: if given, scores are gathered and every rank computes the loss of the joint batch of all ranks.
            Averages and gradients then equal those of one process, provided that gradients are averaged over the
            ranks, as in DDP, and that all ranks have the same batch size. By default each rank uses its own batch and
            keeps the averages of the examples that it has seen; see :meth:`synchronize`. Then keep the loss outside of
            the module that DDP wraps, or construct DDP with ``forward_sync_buffers=False``: DDP copies the buffers of
            rank 0 to all ranks before each forward pass. Losses in training raise an error if that has happened.
        device: device of the averages.
        logarithms: whether the averages are stored as logarithms.

    The averages are a buffer :attr:`z`, in float32, or in float64 for logarithms, whose absolute errors are relative
    errors of the averages. They are NaN for an example that was not visited yet, and one that has overflowed counts as
    not visited. They are saved with the ``state_dict`` and move with the module. In evaluation mode or under
    ``no_grad`` they are neither read nor changed: the loss depends on the batch alone, and no index is needed.
    """

    z: Tensor | None
    writer: Tensor
    #: Names of the buffers that hold averages.
    averages: ClassVar[tuple[str, ...]] = ("z",)
    #: Whether a loss that has a closed form of its gradient uses it; results agree to rounding. Set it to False for
    #: second derivatives (``create_graph=True``).
    closed_form: bool = True
    #: What to do about an index outside of the averages.
    _size_remedy: ClassVar[str] = "Construct the loss with size=len(train)."

    def __init__(
        self,
        size: int | None,
        shape: tuple[int, ...] = (),
        *,
        inner_beta: float = 0.9,
        process_group: Any = None,
        device: Any = None,
        logarithms: bool = False,
    ) -> None:
        super().__init__()
        validate_beta("inner_beta", inner_beta)
        self.inner_beta, self.process_group, self.logarithms = float(inner_beta), process_group, logarithms
        z = None
        if size is not None:
            size = validate_integer("size", size, "Pass len(train), the number of training examples.")
            dtype = self._precision(torch.empty(0, device=device).device)
            z = torch.full((size, *shape), math.nan, dtype=dtype, device=device)
        self.register_buffer("z", z)
        #: Rank that wrote the averages last. DDP overwrites it together with them.
        self.register_buffer("writer", torch.tensor(-1, device=device), persistent=False)
        self._rank: int | None = None

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Forget all averages. Call it after ``to_empty`` on a loss that was constructed on the meta device."""
        for name in self.averages:
            if (z := getattr(self, name, None)) is not None:
                z.fill_(math.nan)
        self.writer.fill_(-1)
        self._rank = None

    def average(self, g: Tensor, rows: Rows, name: str = "z") -> Tensor:
        """Update the averages of ``rows`` with the inner values ``g``; return them with the derivative of ``g``."""
        buffer = self._buffer(name)
        return g if buffer is None else self.update(buffer, g, rows) + (g - g.detach())

    def average_log(self, log_g: Tensor, rows: Rows, name: str = "z") -> Tensor:
        """Update the averages like :meth:`average`, with all values as logarithms; return the logarithm of z."""
        buffer = self._buffer(name)
        if buffer is None:
            return log_g
        new = self.update_log(buffer, log_g, rows)  # in float64
        ratio = (log_g.detach() - new).exp()  # g/z: the derivative of log z is the derivative of g, divided by z
        return new + ratio * (log_g - log_g.detach())

    @torch.no_grad()
    def update(self, buffer: Tensor, g: Tensor, rows: Rows) -> Tensor:
        """Set z <- (1-gamma) z + gamma g, or g at the first visit, and return it.

        An average that is not finite starts again. If an example has several, they do so together.
        """
        old = buffer[rows].to(g.dtype)
        visited = old.isfinite() if old.dim() == 1 else old.isfinite().all(-1, keepdim=True)
        new = torch.where(visited, torch.lerp(old, g, 1 - self.inner_beta), g)
        buffer[rows] = new.to(buffer.dtype).clone()  # else compiled code may alias the result and the buffer
        return new

    @torch.no_grad()
    def update_log(self, buffer: Tensor, log_g: Tensor, rows: Rows) -> Tensor:
        """Do as :meth:`update` for logarithms, in the precision of the buffer."""
        dtype = torch.promote_types(buffer.dtype, log_g.dtype)
        old, new, gamma = buffer[rows].to(dtype), log_g.detach().to(dtype), 1 - self.inner_beta
        if gamma < 1:
            mixed = torch.where(new < old, log_mix(old, new, gamma), log_mix(new, old, 1 - gamma))
            new = torch.where(self._visited(old), mixed, new)
        buffer[rows] = new.to(buffer.dtype).clone()  # else compiled code may alias the result and the buffer
        return new

    @torch.no_grad()
    def synchronize(self, process_group: Any = None) -> None:
        """Merge the averages of all ranks, for example before saving.

        An example that one rank has visited gets that rank's average; one that several ranks have visited gets their
        mean (if logarithms are stored, its logarithm). Use it with a sampler that gives each rank examples of its own,
        such as :class:`semaopt.samplers.ClassBalanced`.
        """
        for name in self.averages:
            buffer: Tensor | None = getattr(self, name, None)
            if buffer is not None:
                visited = self._visited(buffer)
                total, count = torch.where(visited, buffer, 0.0), visited.to(buffer.dtype)
                if self.logarithms:
                    high = torch.where(visited, buffer, -math.inf)
                    torch.distributed.all_reduce(high, torch.distributed.ReduceOp.MAX, group=process_group)
                    total = torch.where(visited, (buffer - high).expm1(), 0.0)
                torch.distributed.all_reduce(total, group=process_group)
                torch.distributed.all_reduce(count, group=process_group)
                mean = total / count
                mean = high + mean.log1p() if self.logarithms else mean
                buffer.copy_(torch.where(count > 0, mean, math.nan))

    def gather(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors of all ranks, concatenated; only this rank's part has a gradient."""
        group = self.process_group
        if group is None:
            return tensors
        rank, world = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
        joined = []
        for x in tensors:
            x = x.float() if x.dtype == torch.bool else x  # noqa: PLW2901  # gloo gathers no booleans
            parts = [torch.empty_like(x, requires_grad=False) for _ in range(world)]
            torch.distributed.all_gather(parts, x.detach().contiguous(), group=group)
            parts[rank] = x
            joined.append(torch.cat(parts))
        return tuple(joined)

    def joint(self, value: Tensor) -> Tensor:
        """Scale the gradient of a joint loss: ranks average their gradients, each of which covers its own part."""
        if self.process_group is None:
            return value
        world = torch.distributed.get_world_size(self.process_group)
        return value + (world - 1) * (value - value.detach())

    def rows(self, index: Tensor | None, n: int) -> Tensor:
        """Return the validated index of n examples. Without averages the index is not used and may be None."""
        if self._buffer("z") is None:
            return torch.empty(n, dtype=torch.long) if index is None else index
        assert self.z is not None
        ok = isinstance(index, Tensor) and index.dtype in (torch.int64, torch.int32) and index.numel() == n
        got = tuple(index.shape) if isinstance(index, Tensor) else index
        remedy = "Let the data set return the position of each example, and pass loss(scores, labels, index)."
        require(ok, "index", got, f"must be a tensor of {n} integers, the examples' positions in the data set", remedy)
        assert isinstance(index, Tensor)
        rows = index.reshape(-1).to(self.z.device, torch.long)
        if n > 0 and not torch.compiler.is_compiling():
            lowest, highest = torch.aminmax(rows)
            ends = int(lowest), int(highest)
            inside = ends[0] >= 0 and ends[1] < len(self.z)
            require(inside, "index", ends, f"must lie in 0..{len(self.z) - 1}", self._size_remedy)
        return rows

    def _uses_closed_form(self) -> bool:
        """Return whether the gradient is computed in closed form: in training, without gathering or transforms."""
        return self.closed_form and self._tracks() and self.process_group is None and is_eager()

    def _tracks(self) -> bool:
        return self.training and torch.is_grad_enabled() and self.z is not None

    def _refuse_overwritten(self) -> None:
        """Raise if DDP has copied the averages of rank 0 to this rank since its last batch."""
        own = self.process_group is None and self._tracks() and not torch.compiler.is_compiling()
        if not own or number_of_ranks() == 1:
            return
        if self._rank is not None and self.writer.item() != self._rank:
            raise RuntimeError(
                f"{type(self).__name__}: DDP has overwritten the averages of rank {self._rank} with those of another "
                "rank, because it copies the buffers of the module that it wraps. Pass process_group="
                "torch.distributed.group.WORLD to the loss, keep the loss outside of the wrapped module, or construct "
                "DDP with forward_sync_buffers=False"
            )
        self._rank = torch.distributed.get_rank()
        self.writer.fill_(self._rank)

    def _buffer(self, name: str) -> Tensor | None:
        """Return the averages to update, or None in evaluation mode and under ``no_grad``."""
        if not (self.training and torch.is_grad_enabled()):
            return None
        if self.z is None:
            raise RuntimeError(
                f"{type(self).__name__} has no averages; construct it with size=len(train), or call eval() first"
            )
        buffer: Tensor = getattr(self, name)
        return buffer

    def _visited(self, z: Tensor) -> Tensor:
        """Return which averages are not missing. Logarithms beyond the range of float32 count as overflowed."""
        return (z.float() if self.logarithms else z).isfinite()

    def _precision(self, device: torch.device) -> torch.dtype:
        """Return the dtype of the averages on this device."""
        return torch.float64 if self.logarithms and device.type not in WITHOUT_FLOAT64 else torch.float32

    def _apply(self, fn: Any, recurse: bool = True) -> Tracked:
        """Move or cast the module; the averages keep at least their precision, other buffers at least float32."""
        before = {name: z for name, z in self.named_buffers(recurse=False) if z.is_floating_point()}
        if self.logarithms and fn(torch.empty(0, device="cpu")).device.type in WITHOUT_FLOAT64:
            for name, z in before.items():
                setattr(self, name, z.float())
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, old in before.items():
            new = getattr(self, name)
            least = self._precision(new.device) if name in self.averages else torch.float32
            if new.dtype.itemsize < least.itemsize:
                setattr(self, name, old.to(least).to(new.device))
        return self


def number_of_ranks() -> int:
    """Return the number of processes that train together."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if distributed else 1


def log_mean_exp(x: Tensor, dim: int, excluded: Tensor | None = None) -> Tensor:
    """Return the logarithm of the mean of exp(x) over ``dim``, which is kept; entries x near 0 keep their digits.

    Args:
        x: at least one entry per mean.
        dim: dimension of the mean.
        excluded: which entries do not count; they must not be the largest.

    >>> log_mean_exp(torch.tensor([1e-10, 3e-10]), 0)
    tensor([2.0000e-10])
    """
    high = x.detach().amax(dim, keepdim=True)  # the value does not depend on it
    excess = (x - high).expm1()
    if excluded is None:
        return high + excess.mean(dim, keepdim=True).log1p()
    counts = (~excluded).sum(dim, keepdim=True)
    return high + (excess.masked_fill(excluded, 0.0).sum(dim, keepdim=True) / counts).log1p()


def log_mix(high: Tensor, low: Tensor, weight: float) -> Tensor:
    """Return log((1 - weight) exp(high) + weight exp(low)) for a weight in (0, 1)."""
    return high + (weight * (low - high).expm1()).log1p()


def full_precision(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors in float32 or, if they have it, float64."""
    return tuple(x.to(torch.promote_types(x.dtype, torch.float32)) for x in tensors)


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which operations on the device of ``x`` keep their precision."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


class KnownGradient(torch.autograd.Function):
    """A value whose gradient with respect to the scores was computed along with it."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, value: float | Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient, ctx.dtype = gradient, scores.dtype
        dtype = torch.promote_types(scores.dtype, torch.float32)
        if isinstance(value, Tensor):
            return value.to(dtype, copy=True)
        return torch.tensor(value, dtype=dtype, device=scores.device)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True
            raise RuntimeError(
                "create_graph=True: the closed form of the gradient has no second derivative. Set loss.closed_form = "
                "False before the forward pass, so that autograd computes both"
            )
        # Cast last: entries too small for half precision may fit after g, the factor of a GradScaler.
        return (ctx.gradient * g).to(ctx.dtype), None, None
