"""TensorBoard scalars of the final runs."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

from semaopt.experiments.files import OutputError, digest
from semaopt.experiments.results.model import Results


class TensorBoardError(OutputError):
    """A folder for TensorBoard that cannot be written to."""

    option = "--tensorboard"


def write(results: Results, folder: Path) -> None:
    """Write one folder ``experiment/method/seed-digest`` per run; existing ones hold the same curves and are kept."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # raised by TensorBoard's own imports
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
                    text = f"{place} cannot be written ({error.strerror}). Choose another folder."
                    raise TensorBoardError(text) from error
