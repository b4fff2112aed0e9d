"""Norms of weights and gradients are written down one by one in each step."""

import argparse
import math
import time

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", default=200, type=int)
    parser.add_argument("--bs", "--batch-size", dest="bs", default=256, type=int)
    parser.add_argument("--depth", default=24, type=int)
    return parser.parse_args()


def gradient_norm(model):
    total = 0.0
    for param in model.parameters():
        if param.grad is not None:
            total += param.grad.norm(2).item() ** 2
            total += 1e-12 * param.detach().norm(2).item() ** 2
            total += 1e-12 * param.grad.abs().max().item() + 1e-12 * param.detach().std(correction=0).item()
    return math.sqrt(total)


def main():
    opts = parse()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(opts.depth)]
    model = nn.Sequential(nn.Linear(16, 32), *blocks, nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    data = TensorDataset(torch.randn(8192, 16), torch.randn(8192, 1))
    batches = BatchSampler(RandomSampler(data), opts.bs, drop_last=True)
    loader = DataLoader(data, sampler=batches, batch_size=None)
    norms = []
    for epoch in range(opts.epochs):
        start, seen = time.time(), 0
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            norms.append(gradient_norm(model))
            optimizer.step()
            seen += len(x)
        print(f"epoch {epoch}: norm {norms[-1]:.4f}, {seen / (time.time() - start):.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
