"""Learn features of digits without labels: global contrastive loss with small batches, in about 20 seconds.

    python examples/contrastive.py

Two random views of each image (shifted by up to a pixel, with noise) should get similar features, and views of other
images different ones. The usual loss sees only the negatives of its batch. The global loss keeps a moving average
over the whole data set for each image. A nearest-neighbour classifier on the learned features measures their quality.
On this small data set both losses reach about the same accuracy. Needs scikit-learn (pip install
'semaopt[experiments]').
"""

import argparse
import statistics

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

import semaopt
from semaopt.problems.cleaning import load_digits

TEMPERATURE = 0.2


def view(a):
    """Shift each image by up to one pixel in each direction and add noise."""
    images = nn.functional.pad(a.view(-1, 8, 8), (1, 1, 1, 1))
    shifts = torch.randint(3, (len(a), 2))
    rows = torch.arange(8)
    index = torch.arange(len(a))[:, None, None]
    shifted = images[index, (shifts[:, :1] + rows)[:, :, None], (shifts[:, 1:] + rows)[:, None, :]]
    return shifted.flatten(1) + 0.1 * torch.randn_like(a)


class InBatch(nn.Module):
    """The usual contrastive loss: the negatives are the other images of the batch."""

    def forward(self, first, second, index):
        similarities = normalize(first, dim=1) @ normalize(second, dim=1).T / TEMPERATURE
        target = torch.arange(len(first))
        return (cross_entropy(similarities, target) + cross_entropy(similarities.T, target)) / 2


def accuracy(features, labels, test_features, test_labels):
    """Return the accuracy of a five-nearest-neighbour classifier."""
    similarities = normalize(test_features, dim=1) @ normalize(features, dim=1).T
    return (labels[similarities.topk(5).indices].mode(1).values == test_labels).float().mean().item()


def run(method, batch_size, epochs, seed):
    """Train one encoder and return the accuracy of nearest neighbours in its feature space."""
    a, b = load_digits()
    order = torch.randperm(len(b), generator=torch.Generator().manual_seed(0))
    a, b = a[order], b[order]
    train, test = a[:1200], a[1200:]
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
    if method == "global":
        loss = semaopt.losses.GlobalContrastive(size=len(train), temperature=TEMPERATURE)
    else:
        loss = InBatch()
    optimizer = semaopt.ASA(encoder.parameters(), lr=1e-3)
    for _ in range(epochs):
        for index in torch.randperm(len(train)).split(batch_size):
            optimizer.zero_grad()
            loss(encoder(view(train[index])), encoder(view(train[index])), index).backward()
            optimizer.step()
    with torch.no_grad():
        return accuracy(encoder(train), b[:1200], encoder(test), b[1200:])


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the model is small
    for method in ("in-batch", "global"):
        found = []
        for seed in range(options.seeds):
            found.append(run(method, options.batch_size, options.epochs, seed))
            print(f"{method:9s} seed {seed}   nearest-neighbour accuracy {found[-1]:.4f}", flush=True)
        print(f"{method:9s} mean     nearest-neighbour accuracy {statistics.mean(found):.4f}", flush=True)


if __name__ == "__main__":
    main()
