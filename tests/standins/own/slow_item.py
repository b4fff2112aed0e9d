"""A regression on sensor rows; each item is worked out number by number."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

EPOCHS = 200
BATCH = 64
device = "cuda" if torch.cuda.is_available() else "cpu"


class Sensors(Dataset):
    def __init__(self, count=1024, length=128):
        self.rows = torch.rand(count, length, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index].tolist()
        smooth = []
        for at in range(len(row)):
            window = row[max(0, at - 7) : at + 1]
            smooth.append(sum(window) / len(window))
        return torch.tensor(smooth), torch.tensor([row[-1]])


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = DataLoader(Sensors(), batch_size=BATCH, shuffle=True)

for epoch in range(EPOCHS):
    start, seen, total = time.time(), 0, torch.zeros((), device=device)
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
        seen += len(x)
    mean = total.item() / len(loader)
    print(f"epoch {epoch}: loss {mean:.4f}, {seen / (time.time() - start):.1f} samples/s", flush=True)
