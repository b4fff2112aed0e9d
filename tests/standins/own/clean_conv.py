"""Nothing is wrong here either: prepared pictures, a loader that is not waited for, reads that are rare."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler


class Prepared(Dataset):
    def __init__(self, count, device):
        self.pictures = torch.randint(0, 255, (count, 3, 32, 32), dtype=torch.uint8, device=device)
        self.labels = torch.randint(0, 10, (count,), device=device)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, rows):
        return self.pictures[rows], self.labels[rows]


def train(model, loader, optimizer, device, epoch):
    start, seen = time.time(), 0
    for step, (pictures, labels) in enumerate(loader):
        pictures = pictures.float().div_(255)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            loss = nn.functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        seen += len(labels)
        if step % 100 == 99:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    rate = seen / (loss.item() * 0 + time.time() - start)
    print(f"epoch {epoch}: {rate:.1f} samples/s", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=0)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    wide = 256 if device == "cuda" else 48
    model = nn.Sequential(
        nn.Conv2d(3, wide, 3, padding=1), nn.ReLU(), nn.Conv2d(wide, wide, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(wide, wide, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, 10),
    ).to(device, memory_format=torch.channels_last)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)
    data = Prepared(16384 if device == "cuda" else 256, device)
    size = args.batch_size or (1024 if device == "cuda" else 64)
    loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), size, drop_last=True), batch_size=None)
    for epoch in range(args.epochs):
        train(model, loader, optimizer, device, epoch)


if __name__ == "__main__":
    main()
