"""Large batches go to the card from ordinary memory, and the step waits for them (shows on a card)."""

import time

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

EPOCHS = 200
BATCH = 256
device = "cuda" if torch.cuda.is_available() else "cpu"


class Volumes(Dataset):
    def __init__(self, count=2048):
        self.x = torch.randn(count, 1, 48, 48, 48)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, rows):
        return self.x[rows[0] : rows[0] + len(rows)]


data = Volumes()
rows = BatchSampler(RandomSampler(range(len(data) - BATCH)), BATCH, drop_last=True)
loader = DataLoader(data, sampler=rows, batch_size=None, num_workers=2, persistent_workers=True)
model = nn.Sequential(nn.AvgPool3d(4), nn.Flatten(), nn.Linear(12**3, 256), nn.ReLU(), nn.Linear(256, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)

for epoch in range(EPOCHS):
    start, seen = time.time(), 0
    for x in loader:
        x = x.to(device, non_blocking=True)
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += len(x)
    value = loss.item()
    print(f"epoch {epoch}: loss {value:.4f}, {seen / (time.time() - start):.1f} samples/s", flush=True)
