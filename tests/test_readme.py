"""The README's Python runs as it stands, its blocks one after another."""

import re
from pathlib import Path

import torch

README = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_blocks_run() -> None:
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), names)
    assert len(BLOCKS) >= 2
    assert isinstance(names["optimizer"], torch.optim.Optimizer)
