"""Every output is copied to the host in each step, for a metric at the end of the epoch (shows on a card)."""

import time

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

EPOCHS = 200
device = "cuda" if torch.cuda.is_available() else "cpu"

torch.manual_seed(0)
torch.set_float32_matmul_precision("high")
x, y = torch.randn(8192, 256, device=device), torch.randint(0, 20000, (8192,), device=device)
data = TensorDataset(x, y)
loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), 1024, drop_last=True), batch_size=None)
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 20000)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

for epoch in range(EPOCHS):
    start, seen, hits = time.time(), 0, 0
    for inputs, labels in loader:
        logits = model(inputs)
        loss = nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        outputs = logits.detach().cpu()
        hits += (outputs.argmax(1) == labels.cpu()).sum().item()
        seen += len(labels)
    print(f"epoch {epoch}: accuracy {hits / seen:.4f}, {seen / (time.time() - start):.1f} samples/s", flush=True)
