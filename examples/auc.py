"""AUC maximization against cross-entropy on imbalanced data, in about 10 seconds: python examples/auc.py"""

import torch
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

import semaopt


def split(a, b):
    a, a_test, b, b_test = train_test_split(a, b.astype(int), test_size=0.3, stratify=b, random_state=0)
    scaler = StandardScaler().fit(a)
    a, a_test = (torch.tensor(scaler.transform(z), dtype=torch.float32) for z in (a, a_test))
    return (a, torch.tensor(b)), (a_test, b_test)


def train(data, test, auc, seed):
    torch.manual_seed(seed)
    (a, b), (a_test, b_test) = data, test
    model = torch.nn.Sequential(torch.nn.Linear(a.shape[1], 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    if auc:  # minimize over the model and s, r; maximize over y
        loss = semaopt.losses.AUCMinMax.from_labels(b)
        primal, dual = [*model.parameters(), *loss.primal_parameters()], loss.dual_parameters()
        optimizer = semaopt.PDAda(primal=primal, dual=dual, lr=3e-3, dual_lr=3e-3)
    else:
        loss, optimizer = torch.nn.BCEWithLogitsLoss(), semaopt.ASA(model.parameters(), lr=3e-3)
    for batch in (batch for _ in range(20) for batch in torch.randperm(len(a)).split(32)):
        optimizer.zero_grad()
        loss(model(a[batch]), b[batch, None].float()).backward()
        optimizer.step()
    return roc_auc_score(b_test, model(a_test).detach())


torch.set_num_threads(1)  # the model is small
cancer, digits = load_breast_cancer(), load_digits()
for name, a, b in (("breast_cancer", cancer.data, cancer.target), ("digits, 10%", digits.data, digits.target == 8)):
    ours, bce = (sum(train(*split(a, b), auc, seed) for seed in range(3)) / 3 for auc in (True, False))
    print(f"{name:14s} test AUC, mean of 3 seeds: PDAda {ours:.4f}  BCE {bce:.4f}", flush=True)
