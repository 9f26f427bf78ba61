"""A study that takes a second, and someone who watches it."""

from semaopt.experiments.study import Study, conduct
from semaopt.experiments.tuning import Grid

STUDY = Study(
    epochs=3,
    batch=512,
    hidden=8,
    tuning_seeds=(100, 101),
    final_seeds=(0, 1, 2),
    grid=Grid(lr=(3e-3, 1e-2), g0=(1e-7,)),
    rounds=1,
    together=3,
)


class Watcher:
    """Remembers what it was told; ``stop_after`` runs it is interrupted, as by Ctrl-C."""

    def __init__(self, stop_after=None):
        self.planned = self.finished = self.runs = 0
        self.said = []
        self.stop_after = stop_after

    def plan(self, points):
        self.planned += points

    def done(self, points):
        self.finished += points
        self.runs += 1
        if self.runs == self.stop_after:
            raise KeyboardInterrupt

    def say(self, text):
        self.said.append(text)


def go(out, *studies, watch=None, workers=1):
    watch = watch or Watcher()
    return conduct(studies or (STUDY,), out, watch, scale="tiny", command="semaopt reproduce", workers=workers)
