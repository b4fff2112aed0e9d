"""Learns to tell eight kinds of waves apart. A script to practice on: something in it is slow, planted on purpose."""

import argparse
import math
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

KINDS, LENGTH, KEPT = 8, 16384, 512


class Waves(Dataset):
    """Noisy waves; the kind is how often a wave goes up and down. Each look at one is a little different."""

    def __init__(self, count: int):
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        kind = index % KINDS
        angle = torch.linspace(0, 2 * math.pi * (kind + 1), LENGTH)
        wave = torch.sin(angle + 2 * math.pi * torch.rand(()))
        wave = wave * (0.5 + torch.rand(())) + 0.5 * torch.randn(LENGTH)
        tones = torch.fft.rfft(wave)
        tones[KEPT // 2 + 1 :] = 0
        wave = torch.fft.irfft(tones)[:: LENGTH // KEPT]
        return (wave - wave.mean()) / wave.std(), kind


def network() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, KEPT)),
        nn.Conv1d(1, 64, 17, stride=4, padding=8),
        nn.ReLU(),
        nn.Conv1d(64, 96, 9, stride=2, padding=4),
        nn.ReLU(),
        nn.Conv1d(96, 96, 5, padding=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(4),
        nn.Flatten(),
        nn.Linear(96 * 4, KINDS),
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--epochs", type=int, default=4)
    options.add_argument("--lr", type=float, default=1e-3)
    asked = options.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = network().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=asked.lr)
    # planted: no workers, so this process makes one wave after the other, and the step waits
    loader = DataLoader(Waves(1280), batch_size=16, shuffle=True)

    for epoch in range(asked.epochs):
        began, total = time.perf_counter(), torch.zeros((), device=device)
        for waves, kinds in loader:
            waves, kinds = waves.to(device), kinds.to(device)
            loss = nn.functional.cross_entropy(model(waves), kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        seconds = time.perf_counter() - began
        print(f"epoch {epoch + 1}: loss {total.item() / len(loader):.3f}, {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
