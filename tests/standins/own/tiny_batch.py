"""A small network on rows, with its settings in a dict."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CONFIG = {
    "epochs": 200,
    "batch_size": 4,
    "lr": 3e-4,
    "width": 128,
    "layers": 8,
    "device": "cuda" if torch.cuda.is_available() else "cpu",
}


class Table(Dataset):
    def __init__(self):
        draw = torch.Generator().manual_seed(5)
        self.x = torch.randn(2048, 32, generator=draw)
        self.y = torch.randn(2048, 1, generator=draw)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def build(config):
    layers = [nn.Linear(32, config["width"]), nn.ReLU()]
    for _ in range(config["layers"]):
        layers += [nn.Linear(config["width"], config["width"]), nn.LayerNorm(config["width"]), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(config["width"], 1))


def run(config):
    torch.manual_seed(0)
    model = build(config).to(config["device"])
    opt = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    loader = DataLoader(
        Table(),
        batch_size=config["batch_size"],
        shuffle=True,
    )
    for epoch in range(config["epochs"]):
        t0, n = time.time(), 0
        for x, y in loader:
            x, y = x.to(config["device"]), y.to(config["device"])
            pred = model(x)
            loss = (pred - y).pow(2).mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
            n += len(x)
        print(f"epoch {epoch}: loss {loss.item():.4f}, {n / (time.time() - t0):.1f} samples/s", flush=True)


run(CONFIG)
