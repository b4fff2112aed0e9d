"""Statistics of all weights and gradients are kept for each step."""

import argparse
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


def statistics(model):
    rows = []
    for name, param in model.named_parameters():
        weight, grad = param.detach(), param.grad
        row = {"name": name, "norm": weight.norm().item(), "grad": grad.norm().item()}
        row["max"], row["grad_max"] = weight.abs().max().item(), grad.abs().max().item()
        row["mean"], row["grad_mean"] = weight.mean().item(), grad.mean().item()
        row["spread"], row["grad_spread"] = weight.std(correction=0).item(), grad.std(correction=0).item()
        rows.append(row)
    return rows


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
    history = []
    for epoch in range(opts.epochs):
        start, seen = time.time(), 0
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            history.append(statistics(model))
            optimizer.step()
            seen += len(x)
        print(
            f"epoch {epoch}: norm {history[-1][0]['norm']:.4f}, {seen / (time.time() - start):.1f} samples/s",
            flush=True,
        )


if __name__ == "__main__":
    main()
