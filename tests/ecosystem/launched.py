"""Train ASA and PDAda under Accelerate and save the result: ``accelerate launch launched.py FILE``.

With one process a batch has 16 examples, with two each process has 8 of them.
"""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import semaopt

SIZE = 16


def models(labels):
    """Return a module of (inputs, labels) that computes the loss, and its optimizer, for each method."""
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1)) for _ in range(2)]
    both = semaopt.losses.WithLoss(layers[0], semaopt.losses.AUCMinMax.from_labels(labels)).double()
    pdada = semaopt.PDAda(both.primal_parameters(), both.dual_parameters(), lr=0.02, dual_lr=0.05)
    plain = layers[1].double()
    return {"PDAda": (both, pdada), "ASA": (plain, semaopt.ASA(plain.parameters(), lr=0.02, weight_decay=0.1))}


def main(path):
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(128, 5, generator=generator, dtype=torch.float64)
    b = (a[:, 0] + 0.3 * a[:, 1] > 0.5).double()
    loader = DataLoader(TensorDataset(a, b), batch_size=SIZE // accelerator.num_processes)
    result = {"processes": torch.tensor(accelerator.num_processes)}
    for name, (given, method) in models(b).items():
        # Accelerate steps a schedule once per process.
        decay = semaopt.schedules.Stagewise(method, every=8 * accelerator.num_processes, factor=0.5)
        module, optimizer, batches, schedule = accelerator.prepare(given, method, loader, decay)
        for _ in range(3):
            for inputs, labels in batches:
                out = module(inputs, labels) if name == "PDAda" else module(inputs)
                value = out if name == "PDAda" else torch.nn.functional.mse_loss(out[:, 0], labels)
                accelerator.backward(value)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        result |= {f"{name} {key}": x for key, x in given.state_dict().items()}
        result[f"{name} rates"] = torch.tensor([[float(g["lr"]), g["betas"][0]] for g in method.param_groups])
    if accelerator.is_main_process:
        torch.save(result, path)
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1])
