"""AUCClassifier against scikit-learn's classifiers on the KEEL sets: mean test AUC, win rates, and fit times.

    python benchmarks/classifiers.py --out classifiers.jsonl                       # development half, 3 seeds
    python benchmarks/classifiers.py --methods AUC "AUC[lr=3e-3,patience=30]" MLP  # options in brackets

Data and report are those of benchmarks/imbalanced.py. Results that are in the file ``--out`` are not computed again.
Times are processor times of one thread. "AUC, 50 epochs" and "MLP" train the same layers (64, 64) for 50 epochs of
batches of 32, without a validation part, so their times can be compared.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from imbalanced import Key, keel_names, load, read, report, table
from imbalanced_methods import parsed
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier

from semaopt.integrations.sklearn import AUCClassifier

EQUAL: dict[str, Any] = {"max_iter": 50, "batch_size": 32, "n_iter_no_change": 50}
METHODS = ["AUC", "AUC, 50 epochs", "MLP", "MLP, its defaults", "logistic regression"]


def classifier(method: str, seed: int, n: int) -> Any:
    name, options = parsed(method)
    options = {key: int(v) if isinstance(v, float) and v.is_integer() else v for key, v in options.items()}
    if name == "logistic regression":
        return LogisticRegression(class_weight="balanced", max_iter=1000, **options)
    if name == "MLP":
        return MLPClassifier((64, 64), random_state=seed, **{**EQUAL, "batch_size": min(32, n), **options})
    if name == "MLP, its defaults":
        return MLPClassifier(random_state=seed, **options)
    if name == "AUC, 50 epochs":
        options = {"validation_fraction": 0, "max_epochs": 50, **options}
    return AUCClassifier(random_state=seed, **options)


def compute(job: Key) -> dict[str, Any]:
    row = dict(zip(("set", "method", "fold", "seed", "tuned"), job, strict=True))
    split = load(row["set"], row["fold"])
    made = classifier(row["method"], row["seed"], len(split.b))
    start = time.process_time()
    made.fit(split.a.numpy(), split.b.numpy())
    seconds = time.process_time() - start
    auroc = roc_auc_score(split.test_b, made.predict_proba(split.test_a.numpy())[:, 1])
    return {**row, "auroc": auroc, "seconds": seconds, "n": len(split.b)}


def times(rows: list[dict[str, Any]], mine: str) -> str:
    """Median over sets of the ratio of the mean fit times."""
    values = table(rows, [mine, "MLP"], "seconds")
    if not len(values):
        return ""
    low, middle, high = np.quantile(values[:, 0] / values[:, 1], [0.1, 0.5, 0.9])
    return f"fit time, {mine} / MLP: median {middle:.2f}, 10% {low:.2f}, 90% {high:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=["development", "test"], default="development")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("classifiers.jsonl"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    names, folds = keel_names(options.half), range(2)
    jobs = [
        (name, method, k, seed, False) for seed in seeds for name in names for method in options.methods for k in folds
    ]
    done = read(options.out)
    todo = [job for job in jobs if job not in done]
    with options.out.open("a") as file:
        for k, job in enumerate(todo, 1):
            done[job] = compute(job)
            file.write(json.dumps(done[job]) + "\n")
            file.flush()
            if k % 100 == 0:
                print(f"{k} of {len(todo)} fits", flush=True)
    rows = [done[job] for job in jobs]
    print("\n".join(report(rows, options.methods, "auroc", options.methods)))
    print("\n".join(times(rows, mine) for mine in ("AUC", "AUC, 50 epochs") if mine in options.methods))


if __name__ == "__main__":
    main()
