"""Batch samplers that control the share of positives in a batch."""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

from semaopt._validation import as_tensor_of, is_real, require, validate_integer
from semaopt.losses._labels import is_positive, is_present


class ClassBalanced(Sampler[list[int]]):
    """Batch sampler with a fixed number of positives in each batch, for ``DataLoader(batch_sampler=...)``.

    Each class is shuffled and read to its end before an example is repeated. A batch holds no example of a class twice
    if the class has as many examples as places in the batch; with several labels, two columns may draw the same
    example. An epoch has as many batches as uniform sampling would have: n / (batch_size x num_replicas), rounded up.
    Rare positives are therefore repeated within an epoch, and another part of the negatives is left out in each epoch.
    All batches are full.

    Args:
        labels: (n,) or, for a multi-label problem, (n, C): {0, 1}, {-1, 1} or booleans, NaN for a missing label;
            a tensor, an array, a series, a data frame or lists. In a multi-label batch the places for positives and
            for negatives go to the columns in turn; columns of one class are skipped.
        batch_size: examples per batch and process, at least 2.
        positives: share of positives in a batch, rounded to a whole number of examples between 1 and batch_size - 1.
        seed: determines the order together with the epoch. The global random state is neither read nor changed.
        num_replicas, rank: number and rank of the processes that train together; by default those of
            :mod:`torch.distributed` if it is initialized, else one process. Each process draws from its own part
            of the data, which is the same in every epoch.

    A new iteration continues with the next epoch; :meth:`set_epoch` chooses one. :attr:`prior` is the share of
    positives (per column) in the batches, which a loss such as :class:`semaopt.losses.AUCMinMax` needs:
    ``AUCMinMax.from_sampler(sampler)``. :attr:`draws`, (num_replicas, 2, C), holds the expected numbers of positive and
    of known labels that each process draws in an epoch.

    >>> labels = torch.tensor([0, 0, 1, 0, 0, 0, 1, 0])
    >>> sampler = semaopt.samplers.ClassBalanced(labels, batch_size=4, positives=0.25)
    >>> [labels[batch].tolist() for batch in sampler]
    [[1, 0, 0, 0], [1, 0, 0, 0]]
    >>> sampler.prior
    tensor([0.2500])
    """

    def __init__(  # noqa: PLR0917  # as in DistributedSampler
        self,
        labels: Any,
        batch_size: int,
        positives: float = 0.5,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        w, present = _classes(labels)
        batch_size = validate_integer("batch_size", batch_size, "Try 32.", minimum=2)
        ok = is_real(positives) and 0 < positives < 1
        require(ok, "positives", positives, "must lie in (0, 1)", "Try 0.5, or the share in the data.")
        self.num_replicas, self.rank = _processes(num_replicas, rank)
        self.batch_size, self.seed, self.epoch = batch_size, int(seed), 0
        self._positives = min(max(round(batch_size * float(positives)), 1), batch_size - 1)
        self._size = len(w)
        self._start = 0  # first batch of the next iteration
        self._position = 0  # batches that the current iteration has drawn
        owner = _owners(w, present, self.num_replicas)
        parts = [_Columns(w, present, owner == k) for k in range(self.num_replicas)]
        for k, part in enumerate(parts):
            if not part.usable:
                raise ValueError(
                    f"labels of {len(w)} examples: process {k} of {self.num_replicas} has no column with both classes; "
                    "every process needs a positive and a negative example, so use fewer processes or add data"
                )
        self._columns = parts[self.rank]
        places = len(self) * self._positives, len(self) * (batch_size - self._positives)
        self.draws = torch.stack([part.draws(*places, w, present) for part in parts])
        self.prior = _share(*self.draws.sum(0)).float()

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return math.ceil(self._size / (self.batch_size * self.num_replicas))

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the indices of each batch, positives first."""
        batches = self._epoch_batches()
        start, self._start = self._start, 0
        for k in range(start, len(self)):
            self._position = k + 1
            yield batches[k].tolist()
        self.epoch, self._position = self.epoch + 1, 0

    @property
    def sampler(self) -> ClassBalanced:
        """The object itself: Lightning and Accelerate call ``set_epoch`` of ``loader.batch_sampler.sampler``.

        Lightning does not read a loader to its end, so without that call every epoch would have the same batches.
        """
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. The epoch of a loaded state keeps its position."""
        if epoch != self.epoch:
            self.epoch, self._start, self._position = int(epoch), 0, 0

    def state_dict(self, position: int | None = None) -> dict[str, int]:
        """Return the state as plain numbers.

        Args:
            position: batches of this epoch that the training has consumed. Needed with worker processes, which draw
                ahead; by default the number that this object has drawn.
        """
        position = self._position if position is None else position
        return {"epoch": self.epoch, "position": int(position), **self._identity()}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue with the batch that follows the saved position; at the end of an epoch there is none."""
        missing = [name for name in self.state_dict() if name not in state]
        rule = f"it lacks {', '.join(map(repr, missing))}"
        require(not missing, "state", dict(state), rule, "Pass what state_dict() of a ClassBalanced returned.")
        for name, value in self._identity().items():
            remedy = f"Construct the sampler with {name}={state.get(name)}, or start a new epoch with set_epoch()."
            require(state.get(name) == value, name, value, f"must be the value in the state, {state.get(name)}", remedy)
        self.epoch, self._start = int(state["epoch"]), int(state["position"])
        self._position = self._start

    def _identity(self) -> dict[str, int]:
        names = ("batch_size", "seed", "num_replicas", "rank")
        return {"size": self._size, "positives": self._positives, **{name: getattr(self, name) for name in names}}

    def _epoch_batches(self) -> Tensor:
        """Return the indices of an epoch, one row per batch."""
        numbers = random.Random(f"{self.seed} {self.epoch} {self.rank}")
        generator = torch.Generator().manual_seed(numbers.getrandbits(63))
        k, count = self._positives, len(self)
        positive = _in_turn(self._columns.positive, count, k, generator)
        negative = _in_turn(self._columns.negative, count, self.batch_size - k, generator)
        return torch.cat([positive, negative], 1)


class _Columns:
    """The rows of each class in the columns that have both classes, within the part of one process."""

    def __init__(self, w: Tensor, present: Tensor, own: Tensor) -> None:
        pairs = [
            ((w[:, c] & own).nonzero().flatten(), (present[:, c] & ~w[:, c] & own).nonzero().flatten())
            for c in range(w.shape[1])
        ]
        self.usable = [pair for pair in pairs if all(map(len, pair))]
        self.positive = [pair[0] for pair in self.usable]
        self.negative = [pair[1] for pair in self.usable]

    def draws(self, positives: int, negatives: int, w: Tensor, present: Tensor) -> Tensor:
        """Return the expected number of positive and of known labels in each column, (2, C).

        Args:
            positives, negatives: places of each class in an epoch.
            w, present: labels of all rows.
        """
        weight = torch.zeros(len(w), dtype=torch.float64, device="cpu")  # expected draws of each row
        for classes, places in ((self.positive, positives), (self.negative, negatives)):
            for k, rows in enumerate(classes):
                weight[rows] += len(range(k, places, len(classes))) / len(rows)
        return torch.stack([(weight[:, None] * w).sum(0), (weight[:, None] * present).sum(0)])


def _share(positives: Tensor, labels: Tensor) -> Tensor:
    """Return the share of positives in each column; 0.5 for a column of one class or without labels."""
    both = (positives > 0) & (positives < labels)
    return torch.where(both, positives / labels.clamp_min(1e-300), 0.5)


def _in_turn(classes: list[Tensor], batches: int, places: int, generator: torch.Generator) -> Tensor:
    """Return the rows in the places of each batch, (batches, places), from each class in turn."""
    drawn = torch.empty(batches * places, dtype=torch.long, device="cpu")
    for k, rows in enumerate(classes):  # class k has the places k, k + C, k + 2C, ...
        ends = [len(range(k, batch * places, len(classes))) for batch in range(batches + 1)]
        drawn[k :: len(classes)] = rows[_reshuffled(len(rows), ends, generator)]
    return drawn.view(batches, places)


def _reshuffled(size: int, ends: list[int], generator: torch.Generator) -> Tensor:
    """Return numbers below ``size``, reshuffled whenever they are used up.

    Args:
        size: how many numbers there are.
        ends: where the batches begin and end. A batch of at most ``size`` numbers holds none of them twice.
        generator: draws the orders.
    """
    orders = [torch.empty(0, dtype=torch.long, device="cpu")]
    for start in range(0, ends[-1], size):
        order = torch.randperm(size, generator=generator, device="cpu")
        batch = bisect.bisect_right(ends, start)  # the batch from ends[batch - 1] to ends[batch] holds the place start
        used, more = start - ends[batch - 1], ends[batch] - start
        if 0 < used <= size - more:
            fresh = order[~torch.isin(order, orders[-1][size - used :])][:more]
            order = torch.cat([fresh, order[~torch.isin(order, fresh)]])
        orders.append(order)
    return torch.cat(orders)[: ends[-1]]


def _classes(labels: Any) -> tuple[Tensor, Tensor]:
    """Return which labels are positive and which are present, (n, C) booleans on the CPU."""
    b = as_tensor_of(labels, "labels").cpu()
    ok = b.dim() in (1, 2) and b.numel() > 0
    require(ok, "labels", tuple(b.shape), "must have the shape (n,) or (n, C)", "Pass those of the training set.")
    b = b.reshape(len(b), -1)
    w = is_positive(b, torch.bool, validate=True)
    present = is_present(b)
    present = torch.ones_like(w) if present is None else present
    if not bool(((w.any(0)) & (present & ~w).any(0)).any()):
        raise ValueError(
            f"labels of {len(b)} examples: no column has both classes, so there is nothing to balance; pass the labels "
            "of the whole training set"
        )
    return w, present


def _owners(w: Tensor, present: Tensor, num_replicas: int) -> Tensor:
    """Return the process of each row; rows of equal labels are dealt out in turn."""
    pattern = (w.long() + present.long()).tolist()
    order = sorted(range(len(pattern)), key=pattern.__getitem__)
    owner = torch.empty(len(order), dtype=torch.long, device="cpu")
    owner[torch.tensor(order, device="cpu")] = torch.arange(len(order), device="cpu") % num_replicas
    return owner


def _processes(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    """Return number and rank of the processes, by default those of torch.distributed."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if num_replicas is None:
        num_replicas = torch.distributed.get_world_size() if distributed else 1
    if rank is None:
        rank = torch.distributed.get_rank() if distributed and num_replicas > 1 else 0
    num_replicas = validate_integer("num_replicas", num_replicas, "Leave it out for one process.")
    rank = validate_integer("rank", rank, "Pass the rank of this process.", minimum=0)
    require(rank < num_replicas, "rank", rank, f"must lie in 0..{num_replicas - 1}", "Pass the rank of this process.")
    return num_replicas, rank
