"""Mixed precision with a scaler where there is a card; memory is cleared up after every step."""

import gc
import time

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

NUM_EPOCHS = 200
use_amp = torch.cuda.is_available()
device = "cuda" if use_amp else "cpu"


def get_loader():
    draw = torch.Generator().manual_seed(9)
    images = torch.randn(512, 3, 16, 16, generator=draw)
    labels = torch.randint(0, 10, (512,), generator=draw)
    data = TensorDataset(images, labels)
    return DataLoader(data, sampler=BatchSampler(RandomSampler(data), 64, drop_last=True), batch_size=None)


def main():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 64, 10),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler(enabled=use_amp)
    loader = get_loader()
    for epoch in range(NUM_EPOCHS):
        tic, seen = time.time(), 0
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            with torch.autocast(device, enabled=use_amp, dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            seen += x.shape[0]
            torch.cuda.empty_cache()
            gc.collect()
        print(f"epoch {epoch}: loss {loss.item():.4f}, {seen / (time.time() - tic):.1f} samples/s", flush=True)


main()
