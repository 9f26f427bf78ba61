"""AUC maximization against cross-entropy on imbalanced data: python examples/auc.py (needs scikit-learn, takes seconds)."""

import torch
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

import semaopt


def split(a, b):
    a, at, b, bt = train_test_split(a, b, test_size=0.3, stratify=b, random_state=0)
    scale = StandardScaler().fit(a)
    return *(torch.tensor(scale.transform(z), dtype=torch.float32) for z in (a, at)), torch.tensor(b), bt


def train(a, b, at, bt, auc, seed, epochs=20):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(a.shape[1], 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    if auc:  # min over the model and s, r; max over y
        loss = semaopt.losses.AUCMinMax.from_labels(b)
        primal, dual = [*model.parameters(), *loss.primal_parameters()], loss.dual_parameters()
        optimizer = semaopt.PDAda(primal=primal, dual=dual, lr=3e-3, dual_lr=0.03)
    else:
        loss = torch.nn.BCEWithLogitsLoss()
        optimizer = semaopt.ASA(model.parameters(), lr=3e-3)
    for part in (part for _ in range(epochs) for part in torch.randperm(len(a)).split(32)):
        optimizer.zero_grad()
        loss(model(a[part]), b[part, None].float()).backward()
        optimizer.step()
    return roc_auc_score(bt, model(at).detach()[:, 0])


digits, cancer = load_digits(), load_breast_cancer()
for name, a, b in (("breast_cancer", cancer.data, cancer.target), ("digits, 10%", digits.data, digits.target == 8)):
    a, at, b, bt = split(a, b.astype(int))
    aucs = [[train(a, b, at, bt, auc, seed) for seed in range(3)] for auc in (True, False)]
    print(f"{name:14s} test AUC, mean of 3 seeds: PDAda {sum(aucs[0]) / 3:.4f}  BCE {sum(aucs[1]) / 3:.4f}")
