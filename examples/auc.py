"""AUC maximization against cross-entropy on imbalanced data: python examples/auc.py (needs scikit-learn)."""

import torch
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

import semaopt


def split(a, b):
    a, a_test, b, b_test = train_test_split(a, b.astype(int), test_size=0.3, stratify=b, random_state=0)
    scale = StandardScaler().fit(a)
    a, a_test = (torch.tensor(scale.transform(z), dtype=torch.float32) for z in (a, a_test))
    return (a, torch.tensor(b)), (a_test, b_test)


def train(data, test, auc, seed):
    torch.manual_seed(seed)
    (a, b), (a_test, b_test) = data, test
    model = torch.nn.Sequential(torch.nn.Linear(a.shape[1], 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    if auc:  # min over the model and s, r; max over y
        loss = semaopt.losses.AUCMinMax.from_labels(b)
        primal, dual = [*model.parameters(), *loss.primal_parameters()], loss.dual_parameters()
        optimizer = semaopt.PDAda(primal=primal, dual=dual, lr=3e-3, dual_lr=0.03)
    else:
        loss = torch.nn.BCEWithLogitsLoss()
        optimizer = semaopt.ASA(model.parameters(), lr=3e-3)
    for part in (part for _ in range(20) for part in torch.randperm(len(a)).split(32)):
        optimizer.zero_grad()
        loss(model(a[part]), b[part, None].float()).backward()
        optimizer.step()
    return roc_auc_score(b_test, model(a_test).detach())


cancer, digits = load_breast_cancer(), load_digits()
for name, a, b in (("breast_cancer", cancer.data, cancer.target), ("digits, 10%", digits.data, digits.target == 8)):
    ours, bce = (sum(train(*split(a, b), auc, seed) for seed in range(3)) / 3 for auc in (True, False))
    print(f"{name:14s} test AUC, mean of 3 seeds: PDAda {ours:.4f}  BCE {bce:.4f}")
