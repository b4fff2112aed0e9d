"""Nothing is wrong here: data lie in tensors, batches are large, one call does the work of a step."""

import time

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

EPOCHS = 200
cuda = torch.cuda.is_available()
device = "cuda" if cuda else "cpu"
width, batch = (8192, 4096) if cuda else (1024, 512)

torch.manual_seed(0)
torch.set_float32_matmul_precision("high")
x = torch.randn(16384 if cuda else 2048, 256, device=device)
data = TensorDataset(x, (x[:, :10].argmax(1)))
batches = BatchSampler(RandomSampler(data), batch, drop_last=True)
loader = DataLoader(data, sampler=batches, batch_size=None)
model = nn.Sequential(
    nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
    nn.Linear(width, 10),
).to(device)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

for epoch in range(EPOCHS):
    start, seen, total = time.time(), 0, torch.zeros((), device=device)
    for inputs, labels in loader:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=cuda):
            loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
        seen += len(inputs)
    mean = total.item() / len(loader)
    print(f"epoch {epoch}: loss {mean:.4f}, {seen / (time.time() - start):.1f} samples/s", flush=True)
