"""Train a network for the AUC with skorch, inside scikit-learn's tools, in about 10 seconds.

    python examples/skorch_auc.py

The loss has variables of its own, so it is the criterion. Param groups name the dual one: AUCMinMax calls it y.
Needs skorch and scikit-learn (pip install skorch 'semaopt[experiments]').
"""

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetBinaryClassifier
from skorch.callbacks import LRScheduler
from torch import nn

import semaopt


def probabilities(scores):
    """Return the two columns that scikit-learn expects; they rank well and are not calibrated."""
    p = scores.sigmoid()
    return torch.stack([1 - p, p], dim=1)


def main():
    torch.set_num_threads(1)  # the model is small
    torch.manual_seed(0)
    X, y = load_breast_cancer(return_X_y=True)
    X = X.astype("float32")
    net = NeuralNetBinaryClassifier(
        nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 1)),
        criterion=semaopt.losses.AUCMinMax,
        criterion__prior=float(y.mean()),
        optimizer=semaopt.PDAda,
        optimizer__lr=1e-3,
        optimizer__dual_lr=1e-2,
        optimizer__param_groups=[("y", {"role": "dual"}), ("*", {"role": "primal"})],
        callbacks=[LRScheduler("CosineAnnealingLR", T_max=20)],
        predict_nonlinearity=probabilities,
        batch_size=32,
        max_epochs=20,
        iterator_train__shuffle=True,
        train_split=None,
        verbose=0,
    )
    pipeline = make_pipeline(StandardScaler(), net)
    scores = cross_val_score(pipeline, X, y, cv=5, scoring="roc_auc")
    print(f"AUC of 5 folds: {scores.mean():.4f} +- {scores.std():.4f}")


if __name__ == "__main__":
    main()
