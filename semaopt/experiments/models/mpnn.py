"""The message-passing network of the paper's experiments on molecules."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from semaopt.experiments.data.errors import DataError, unknown
from semaopt.experiments.data.featurize import ATOM_FEATURES, BOND_FEATURES
from semaopt.experiments.data.molecule_batches import MoleculeBatch
from semaopt.experiments.data.task import Task
from semaopt.experiments.models import messages
from semaopt.experiments.models.errors import wrong_inputs
from semaopt.experiments.models.readout import Readout

#: Implementations of the same network; "plain" is the slow one that follows the definition.
IMPLEMENTATIONS = {"fast": messages.by_kind, "general": messages.by_feature, "plain": messages.by_edge}


class MPNN(nn.Module):
    r"""Edge network, GRU and attention, after the Keras example that the paper used.

    The initial state of an atom is its features, padded with zeros to 64 units. Four updates :math:`h_i \leftarrow
    \mathrm{GRU}(m_i, h_i)` follow, with the messages :math:`m_i = \sum_j A(f_{ij})^\top h_j` over bonded atoms and
    the atom itself. Then follow a transformer encoder, the mean over the atoms, a dense layer and one linear score.
    With the defaults it has 290,561 parameters.

    Args:
        task: the data, which must be molecules.
        units: the size of an atom's state.
        steps: the number of message passing steps.
        heads: the number of attention heads.
        key: the size of the keys of a head.
        wide: the units of the encoder's feed-forward layer and of the dense layer.
        implementation: "fast", "general" (for any edge features) or "plain" (one kernel per edge).

    References:
        Gilmer et al., Neural Message Passing for Quantum Chemistry, 2017, https://arxiv.org/abs/1704.01212;
        A. Kensert, https://keras.io/examples/graph/mpnn-molecular-graphs/ (2021). The mean excludes padding, as in the
        first version of the example; the score is linear, while the example has a sigmoid.
    """

    def __init__(
        self,
        task: Task | None = None,
        *,
        units: int = 64,
        steps: int = 4,
        heads: int = 8,
        key: int = 64,
        wide: int = 512,
        implementation: str = "fast",
    ) -> None:
        super().__init__()
        if task is not None and task.kind != "molecules":
            raise wrong_inputs("mpnn", "molecules", task)
        if implementation not in IMPLEMENTATIONS:
            raise DataError(unknown("implementation", implementation, IMPLEMENTATIONS))
        if units < ATOM_FEATURES:
            raise DataError(
                f"units={units!r} is invalid: it must be at least {ATOM_FEATURES}, the number of atom features. Try 64."
            )
        self.units, self.steps, self.implementation = units, steps, implementation
        self.edge = nn.Linear(BOND_FEATURES, units * units)
        self.gru = nn.GRUCell(units, units)
        self.readout = Readout(units, heads, key, wide, plain=implementation == "plain")
        self.dense = nn.Linear(units, wide)
        self.score = nn.Linear(wide, 1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize as Keras does: Glorot uniform kernels, orthogonal recurrent kernel, biases 0, norms 1 and 0."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.xavier_uniform_(self.gru.weight_ih)
        nn.init.orthogonal_(self.gru.weight_hh)
        nn.init.zeros_(self.gru.bias_ih)
        nn.init.zeros_(self.gru.bias_hh)
        # Keras stores attention kernels as (units, heads, key) and (heads, key, units) and computes their fans as for
        # convolutions: units * (heads + key) and heads * (key + units).
        heads, key = self.readout.heads, self.readout.key
        for layer, fans in (
            (self.readout.qkv, self.units * (heads + key)),
            (self.readout.mix, heads * (key + self.units)),
        ):
            bound = (6 / fans) ** 0.5
            nn.init.uniform_(layer.weight, -bound, bound)

    def forward(self, batch: MoleculeBatch) -> Tensor:
        """Return one score per molecule, in the order of the request."""
        h = pad(batch.atoms, (0, self.units - batch.atoms.shape[1]))
        message = IMPLEMENTATIONS[self.implementation](batch, self.edge)
        for _ in range(self.steps):
            h = self.gru(message(h), h)
        scores = self.score(torch.relu(self.dense(self.readout(h, batch)))).squeeze(-1)
        return torch.empty_like(scores).index_copy(0, batch.order, scores)
