"""The message-passing network of the paper's experiments on molecules."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from semaopt.experiments.data.batches import MoleculeBatch
from semaopt.experiments.data.errors import DataError, unknown
from semaopt.experiments.data.featurize import ATOM_FEATURES, BOND_FEATURES
from semaopt.experiments.data.task import Task
from semaopt.experiments.models import messages
from semaopt.experiments.models.errors import wrong_inputs
from semaopt.experiments.models.readout import Readout

#: The same network computed in different ways; "plain" is the slow one that reads like the definition.
IMPLEMENTATIONS = {"fast": messages.by_kind, "general": messages.by_feature, "plain": messages.by_edge}


class MPNN(nn.Module):
    r"""Edge network, GRU and attention, after the Keras example that the paper used.

    The state of an atom starts as its features with zeros up to 64 units. Four times,
    :math:`h_i \leftarrow \mathrm{GRU}(m_i, h_i)` with the messages :math:`m_i = \sum_j A(f_{ij})^\top h_j` over bonded
    atoms and the atom itself. Then a transformer encoder, the mean over the atoms, a dense layer and one linear score.
    With the defaults it has 290,561 parameters.

    Args:
        task: what it is for; refused unless it holds molecules.
        units: of an atom's state.
        steps: of message passing.
        heads: of attention, each with keys of size ``key``.
        key: see ``heads``.
        wide: units of the encoder's feed-forward layer and of the dense layer.
        implementation: "fast", "general" (for edges with any features) or "plain" (a kernel for each edge).

    References:
        Gilmer et al., Neural Message Passing for Quantum Chemistry, 2017, https://arxiv.org/abs/1704.01212;
        A. Kensert, https://keras.io/examples/graph/mpnn-molecular-graphs/ (2021). Its mean is taken over the atoms
        alone, as in the example's first version; the score is linear, where the example has a sigmoid.
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
            raise DataError(f"units={units!r}: must be at least {ATOM_FEATURES}, the features of an atom; try 64")
        self.units, self.steps, self.implementation = units, steps, implementation
        self.edge = nn.Linear(BOND_FEATURES, units * units)
        self.gru = nn.GRUCell(units, units)
        self.readout = Readout(units, heads, key, wide, plain=implementation == "plain")
        self.dense = nn.Linear(units, wide)
        self.score = nn.Linear(wide, 1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As Keras starts them: Glorot's uniform kernels, an orthogonal recurrent one, biases 0, norms 1 and 0."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.xavier_uniform_(self.gru.weight_ih)
        nn.init.orthogonal_(self.gru.weight_hh)
        nn.init.zeros_(self.gru.bias_ih)
        nn.init.zeros_(self.gru.bias_hh)
        # Keras holds the kernels of attention as (units, heads, key) and (heads, key, units), takes them for
        # convolutions, and so counts units * (heads + key) and heads * (key + units) as what goes in and out.
        heads, key = self.readout.heads, self.readout.key
        for layer, fans in (
            (self.readout.qkv, self.units * (heads + key)),
            (self.readout.mix, heads * (key + self.units)),
        ):
            bound = (6 / fans) ** 0.5
            nn.init.uniform_(layer.weight, -bound, bound)

    def forward(self, batch: MoleculeBatch) -> Tensor:
        """One score for each molecule, in the order they were asked for."""
        h = pad(batch.atoms, (0, self.units - batch.atoms.shape[1]))
        message = IMPLEMENTATIONS[self.implementation](batch, self.edge)
        for _ in range(self.steps):
            h = self.gru(message(h), h)
        scores = self.score(torch.relu(self.dense(self.readout(h, batch)))).squeeze(-1)
        return torch.empty_like(scores).index_copy(0, batch.order, scores)
