"""Compare AUC maximization and ranking losses with LibAUC and with cross-entropy, in one process on one thread.

    python benchmarks/minmax.py [--only speed ranking loss auc] [--sets breast_cancer ...] [--quick] [--out minmax.json]

speed   time of a step and of a whole iteration, MLP d-64-64-1, batch 32
ranking time of a whole iteration with the ranking losses that LibAUC also has, same network and batch
loss    forward time of the losses at batch 1,024
auc     test AUC after equal epochs over 5 seeds; each method is tuned on a validation split, from a grid of 9 points
        that is extended, up to 18 points, while its best value lies on an edge

Times are CPU times of the thread, which other programs hardly affect: medians over interleaved repeats. Ratios are
medians of the ratios within a repeat. LibAUC is optional:
``pip install --no-deps libauc`` (and numpy, scikit-learn, tqdm) into the environment of this benchmark. The LIBSVM sets
a9a and ijcnn1 are read from $SEMAOPT_DATA/libsvm. Whatever is missing is skipped with the reason.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import math
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_svmlight_file
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

import semaopt

try:
    from libauc.losses.auc import AUCMLoss
    from libauc.optimizers.pesg import PESG

    WHY_NO_PESG = ""
except ImportError as error:
    WHY_NO_PESG = f"{error}; pip install --no-deps libauc"


@dataclass(frozen=True)
class Contestant:
    """A method; ``make(model, prior, **options)`` returns its loss (of scores and labels) and optimizer."""

    name: str
    make: Callable[..., tuple[Callable[[Tensor, Tensor], Tensor], torch.optim.Optimizer]]
    grid: dict[str, tuple[float, ...]]


def primal_dual(kind: type) -> Callable:
    def make(model, prior, lr=1e-3, dual_lr=0.1):
        auc = semaopt.losses.AUCMinMax(prior)
        primal = [*model.parameters(), *auc.primal_parameters()]
        return auc, kind(primal=primal, dual=auc.dual_parameters(), lr=lr, dual_lr=dual_lr)

    return make


def pesg(mode: str) -> Callable:
    def make(model, prior, lr=0.1, epoch_decay=2e-3):
        auc = AUCMLoss(margin=1.0)  # version v1; the prior is counted in each batch by default
        optimizer = PESG(model.parameters(), loss_fn=auc, lr=lr, mode=mode, epoch_decay=epoch_decay, verbose=False)
        return lambda scores, labels: auc(
            torch.sigmoid(scores), labels
        ), optimizer  # the sigmoid is part of its tutorials

    return make


def cross_entropy(kind: type) -> Callable:
    def make(model, prior, lr=1e-3, weight_decay=0.0):
        return nn.BCEWithLogitsLoss(), kind(model.parameters(), lr=lr, weight_decay=weight_decay)

    return make


def contestants() -> list[Contestant]:
    """Return all methods, each with a grid of nine points around its usual values."""
    duals, decays = (0.01, 0.1, 1.0), (0.0, 1e-4, 1e-3)
    found = [
        Contestant("PDAda", primal_dual(semaopt.PDAda), {"lr": (1e-3, 3e-3, 1e-2), "dual_lr": duals}),
        Contestant("PDSM", primal_dual(semaopt.PDSM), {"lr": (0.03, 0.1, 0.3), "dual_lr": duals}),
        Contestant(
            "BCE + torch Adam", cross_entropy(torch.optim.Adam), {"lr": (1e-3, 3e-3, 1e-2), "weight_decay": decays}
        ),
        Contestant("BCE + torch SGD", cross_entropy(torch.optim.SGD), {"lr": (0.03, 0.1, 0.3), "weight_decay": decays}),
    ]
    if not WHY_NO_PESG:
        references = (2e-4, 2e-3, 2e-2)
        found[2:2] = [
            Contestant("PESG sgd", pesg("sgd"), {"lr": (0.03, 0.1, 0.3), "epoch_decay": references}),
            Contestant("PESG adam", pesg("adam"), {"lr": (1e-3, 3e-3, 1e-2), "epoch_decay": references}),
        ]
    return found


def mlp(inputs: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))


# ---- time ------------------------------------------------------------------------------------------------------------


def interleaved(jobs: dict[str, Callable[[], object]], repeats: int, calls: int) -> dict[str, list[float]]:
    """Return microseconds per call for each repeat; every repeat runs all jobs one after another."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for repeat in range(repeats + 1):
        for name, job in jobs.items():
            start = time.thread_time()
            for _ in range(calls):
                job()
            if repeat > 0:  # the first repeat is a warm-up
                times[name].append((time.thread_time() - start) / calls * 1e6)
    return times


def ratio(times: dict[str, list[float]], name: str, reference: str) -> float:
    return statistics.median(a / b for a, b in zip(times[name], times[reference], strict=True))


def speed(repeats: int) -> dict:
    a, b = torch.randn(32, 30), (torch.rand(32) < 0.3).float()[:, None]
    steps, iterations = {}, {}
    for contestant in contestants():
        model = mlp(30, seed=0)
        loss, optimizer = contestant.make(model, b.mean().item())

        def iterate(model=model, loss=loss, optimizer=optimizer):
            optimizer.zero_grad()
            loss(model(a), b).backward()
            optimizer.step()

        iterate()
        steps[contestant.name], iterations[contestant.name] = optimizer.step, iterate
    return {"step": interleaved(steps, repeats, 50), "iteration": interleaved(iterations, repeats, 25)}


#: Ours and LibAUC's: name of our loss and its options, name of their loss and its optimizer.
RANKING = {
    "average precision": ("AveragePrecision", {}, "AveragePrecisionLoss", "SOAP"),
    "mean average precision, 5 labels": ("MeanAveragePrecision", {}, "meanAveragePrecisionLoss", "SOTAs"),
    "partial AUC, KL": ("PartialAUC", {}, "pAUC_DRO_Loss", "SOPAs"),
    "partial AUC, CVaR": ("PartialAUC", {"method": "cvar"}, "pAUC_CVaR_Loss", "SOPA"),
    "partial AUC, two-way KL": ("PartialAUC", {"min_tpr": 0.5, "positive_temperature": 1.0}, "tpAUC_KL_Loss", "SOTAs"),
    "partial AUC, two-way CVaR": ("PartialAUC", {"method": "cvar", "min_tpr": 0.5}, "tpAUC_CVaR_loss", "STACO"),
}


SIZE, BATCH = 1000, 32
Loss = Callable[[Tensor], Tensor]


def ranking_losses(name: str) -> tuple[Loss, Loss, int]:
    """Return our loss and LibAUC's for an entry of RANKING, as functions of the model's output, and its number of
    columns."""
    from libauc import losses

    ours, options, theirs, _ = RANKING[name]
    index, columns = torch.arange(BATCH) * 7, 5 if "labels" in name else 1
    b = torch.stack([torch.arange(BATCH) % 2] * columns, 1)  # half of the batch is positive
    many = {"num_labels": columns} if columns > 1 else {}
    length = {"data_length": SIZE} if theirs == "tpAUC_CVaR_loss" else {"data_len": SIZE}
    length |= {"pos_len": 100} if theirs == "pAUC_CVaR_Loss" else {}
    mine = getattr(semaopt.losses, ours)(SIZE, **many, **options)
    libauc = getattr(losses.auc, theirs)(**length, **many, device="cpu")
    labels = b if columns > 1 else b[:, 0]
    return lambda h: mine(h, labels, index), lambda h: libauc(h.sigmoid(), b, index), columns


def gain_losses(top_k: int | None) -> tuple[Loss, Loss, int]:
    """Return the NDCG losses for a batch of four queries with eight items, of which four are relevant."""
    from libauc.losses.ranking import NDCGLoss

    relevance, query = torch.tensor([3.0, 2, 1, 1, 0, 0, 0, 0]).repeat(SIZE // 8), torch.arange(SIZE) // 8
    mine = semaopt.losses.NDCG(relevance, query, top_k=top_k)
    libauc = NDCGLoss(SIZE, SIZE // 8, 8, 4, topk=top_k or -1, device="cpu")
    index = torch.arange(BATCH)
    batch = {
        "rating": relevance[:BATCH].view(4, 8),
        "num_pos_items": torch.full((4,), 4),
        "ideal_dcg": mine.ideal[:4],
        "user_id": torch.arange(4),
        "user_item_id": index.view(4, 8),
    }
    return lambda h: mine(h, relevance[:BATCH], index), lambda h: libauc(h.sigmoid().view(4, 8), batch), 1


def contrastive_losses() -> tuple[Loss, Loss, int]:
    """Return the losses of 16 pairs of views with 16 features."""
    from libauc.losses.contrastive import GCLoss_v1

    with contextlib.redirect_stdout(io.StringIO()):
        libauc = GCLoss_v1(N=SIZE, tau=0.1, device="cpu")
    mine, index = semaopt.losses.GlobalContrastive(SIZE, form="views"), torch.arange(BATCH // 2)
    return lambda h: mine(*h.chunk(2), index), lambda h: libauc(*h.chunk(2), index), 16


def ranking_speed(repeats: int) -> dict:
    """Time whole iterations: ours with ASA, LibAUC's with its optimizer."""
    from libauc import optimizers

    a, jobs = torch.randn(BATCH, 30), {}
    pairs = {name: (*ranking_losses(name), kind) for name, (*_, kind) in RANKING.items()}
    pairs["NDCG"] = *gain_losses(None), "SONG"
    pairs["NDCG, top 3"] = *gain_losses(3), "SONG"
    pairs["contrastive, views"] = *contrastive_losses(), "SogCLR"
    for name, (mine, theirs, columns, kind) in pairs.items():
        for who, loss in (("semaopt", mine), ("LibAUC", theirs)):
            model = nn.Sequential(*mlp(30, seed=0)[:-1], nn.Linear(64, columns))
            if who == "semaopt":
                optimizer = semaopt.ASA(model.parameters())
            else:
                device = {
                    "verbose": False,
                    "device": torch.device("cpu"),
                    "mode": "adamw" if kind == "SogCLR" else "adam",
                }
                optimizer = getattr(optimizers, kind)(model.parameters(), loss_fn=None, lr=1e-3, **device)

            def iterate(model=model, loss=loss, optimizer=optimizer):
                optimizer.zero_grad()
                loss(model(a)).backward()
                optimizer.step()

            jobs[f"{name}: {who}"] = iterate
    return interleaved(jobs, repeats, 25)


def loss_forward(repeats: int, n: int = 1024) -> dict:
    scores, labels = torch.randn(n, 1, requires_grad=True), (torch.rand(n, 1) < 0.1).float()
    auc, bce = semaopt.losses.AUCMinMax.from_labels(labels), nn.BCEWithLogitsLoss()
    jobs = {"AUCMinMax": lambda: auc(scores, labels), "BCEWithLogits": lambda: bce(scores, labels)}
    if not WHY_NO_PESG:
        libauc = AUCMLoss()
        jobs["LibAUC AUCMLoss"] = lambda: libauc(torch.sigmoid(scores), labels)
    return interleaved(jobs, repeats, 20)


def print_times(title: str, times: dict[str, list[float]], references: list[str]) -> None:
    print(f"\n{title}: median us" + "".join(f", ratio to {name}" for name in references))
    for name, values in times.items():
        ratios = "".join(f"{ratio(times, name, reference):8.2f}" for reference in references)
        print(f"  {name:18s}{statistics.median(values):10.1f}{ratios}")


def print_pairs(times: dict[str, list[float]]) -> None:
    print("\nranking iteration, MLP 30-64-64-1, batch 32: median us of ours, of LibAUC's, ratio")
    for name in dict.fromkeys(key.split(":")[0] for key in times):
        pair = f"{name}: semaopt", f"{name}: LibAUC"
        medians = "".join(f"{statistics.median(times[one]):10.1f}" for one in pair)
        print(f"  {name:34s}{medians}{ratio(times, *pair):8.2f}")


# ---- quality ---------------------------------------------------------------------------------------------------------


def libsvm(name: str):
    root = os.environ.get("SEMAOPT_DATA")
    files = [] if root is None else [Path(root, "libsvm", name), Path(root, "libsvm", f"{name}.t")]
    if root is None or not all(file.exists() for file in files):
        raise FileNotFoundError(
            f"{name} and {name}.t not found; put them into the folder libsvm of $SEMAOPT_DATA ({root})"
        )
    width = {"a9a": 123, "ijcnn1": 22}[name]
    (a, b), (at, bt) = (load_svmlight_file(str(file), n_features=width) for file in files)
    return a.toarray(), (b > 0).astype(int), at.toarray(), (bt > 0).astype(int)


def splits(name: str, seed: int) -> list[Tensor]:
    """Return training, validation and test features, then labels; uses the official test files if there are any."""
    if name in ("a9a", "ijcnn1"):
        a, b, at, bt = libsvm(name)
    else:
        bunch = load_breast_cancer() if name == "breast_cancer" else load_digits()
        b = bunch.target if name == "breast_cancer" else (bunch.target == 8).astype(int)
        a, at, b, bt = train_test_split(bunch.data, b, test_size=0.2, stratify=b, random_state=seed)
    a, av, b, bv = train_test_split(a, b, test_size=0.25, stratify=b, random_state=seed)
    scale = StandardScaler().fit(a)
    features = [torch.tensor(scale.transform(z), dtype=torch.float32) for z in (a, av, at)]
    return [*features, *(torch.tensor(z, dtype=torch.float32)[:, None] for z in (b, bv, bt))]


def train(contestant: Contestant, options: dict, data: list[Tensor], seed: int, epochs: int) -> tuple[float, float]:
    """Train and return the AUC on the validation and the test part."""
    a, av, at, b, bv, bt = data
    model = mlp(a.shape[1], seed)
    loss, optimizer = contestant.make(model, b.mean().item(), **options)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for part in torch.randperm(len(a), generator=generator).split(32):
            optimizer.zero_grad()
            loss(model(a[part]), b[part]).backward()
            optimizer.step()
    with torch.no_grad():
        scores = [model(z).nan_to_num(0.0) for z in (av, at)]
    return roc_auc_score(bv, scores[0]), roc_auc_score(bt, scores[1])


BUDGET = 18


def edges(grid: dict[str, list[float]], best: dict[str, float]) -> dict[str, float]:
    """Return the next value outside the grid for every best value on an edge, except for 0."""
    outside = {}
    for key, values in grid.items():
        if best[key] == values[-1]:
            outside[key] = values[-1] ** 2 / values[-2]
        elif best[key] == values[0] > 0:
            outside[key] = values[0] ** 2 / values[1]
    return outside


def tune(contestant: Contestant, data: list[Tensor], seed: int, epochs: int) -> tuple[dict[str, float], int, list[str]]:
    """Return the best configuration by validation AUC, the number of trials, and the axes still on an edge."""
    grid, tried = {key: list(values) for key, values in contestant.grid.items()}, {}
    while True:
        for values in itertools.product(*grid.values()):
            if values not in tried:
                tried[values] = train(contestant, dict(zip(grid, values, strict=True)), data, seed, epochs)[0]
        best = dict(zip(grid, max(tried, key=tried.get), strict=True))
        outside = edges(grid, best)
        wider = {key: sorted({*values, outside.get(key, values[0])}) for key, values in grid.items()}
        if not outside or math.prod(map(len, wider.values())) > BUDGET:
            return best, len(tried), list(outside)
        grid = wider


def quality(name: str, epochs: int, seeds: int) -> dict:
    """Tune on the split and initialization of seed 100, then run fresh seeds."""
    tuning, fresh = splits(name, 100), [splits(name, seed) for seed in range(seeds)]
    results = {}
    for contestant in contestants():
        best, tried, edge = tune(contestant, tuning, 100, epochs)
        aucs = [train(contestant, best, data, seed, epochs)[1] for seed, data in enumerate(fresh)]
        results[contestant.name] = {"test": aucs, "chosen": best, "tried": tried, "on the edge": edge}
        chosen = ", ".join(f"{key}={value:.2g}" for key, value in best.items())
        note = f" ({tried} trials{', edge: ' + ', '.join(edge) if edge else ''})"
        mean, deviation = statistics.mean(aucs), statistics.stdev(aucs)
        print(f"  {contestant.name:18s}{mean:8.4f} +- {deviation:.4f}   {chosen}{note}", flush=True)
    return results


EPOCHS = {"breast_cancer": 20, "digits": 20, "a9a": 2, "ijcnn1": 2}


def quality_if_found(name: str, seeds: int) -> dict | None:
    print(f"\n{name}: test AUC after {EPOCHS[name]} epochs, {seeds} seeds")
    try:
        return quality(name, EPOCHS[name], seeds)
    except FileNotFoundError as error:
        print(f"  skipped: {error}")
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ["speed", "ranking", "loss", "auc"]
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--sets", nargs="+", choices=list(EPOCHS), default=list(EPOCHS))
    parser.add_argument(
        "--quick", action="store_true", help="a smoke test: fewer repeats, two seeds, the two small sets"
    )
    parser.add_argument("--out", type=Path, help="write all numbers as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Input data has no positive sample", category=UserWarning)
    repeats, seeds = (5, 2) if options.quick else (40, 5)
    record: dict = {"torch": torch.__version__, "machine": platform.processor() or platform.machine(), "threads": 1}
    if WHY_NO_PESG:
        print(f"skipped PESG: {WHY_NO_PESG}")
    references = [] if WHY_NO_PESG else ["PESG sgd", "PESG adam"]
    if "speed" in options.only:
        record["speed"] = speed(repeats)
        for part, times in record["speed"].items():
            print_times(f"{part}, MLP 30-64-64-1, batch 32", times, [*references, "BCE + torch SGD"])
    if "ranking" in options.only and not WHY_NO_PESG:
        record["ranking"] = ranking_speed(repeats)
        print_pairs(record["ranking"])
    if "loss" in options.only:
        record["loss"] = loss_forward(repeats)
        print_times("loss forward, batch 1,024", record["loss"], ["BCEWithLogits"])
    if "auc" in options.only:
        chosen = [name for name in options.sets if not options.quick or EPOCHS[name] > 2]
        record["auc"] = {name: quality_if_found(name, seeds) for name in chosen}
    if options.out:
        options.out.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
