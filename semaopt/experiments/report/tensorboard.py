"""The curves of final runs as TensorBoard's scalars."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

from semaopt.experiments.files import OutputError, digest
from semaopt.experiments.results.model import Results


class BoardError(OutputError):
    """The folder for TensorBoard cannot be written."""

    option = "--tensorboard"


def write(results: Results, folder: Path) -> None:
    """One folder ``experiment/method/seed-digest`` for each run; those that are there already hold the same curves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TensorBoard's own imports
        from torch.utils.tensorboard import SummaryWriter
    for finding in results.findings:
        for final in finding.finals:
            for seed, run in zip(finding.seeds, final.runs, strict=True):
                place = folder / finding.name / final.method.name / f"seed{seed}-{digest(run.curves)[:8]}"
                if place.is_dir() and any(place.iterdir()):
                    continue
                try:
                    with SummaryWriter(str(place)) as writer:
                        for metric, curve in run.curves.items():
                            for epoch, value in enumerate(curve, start=1):
                                if math.isfinite(value):
                                    writer.add_scalar(metric, value, epoch)
                except OSError as error:
                    raise BoardError(f"{place}: cannot be written ({error.strerror}); choose another folder") from error
