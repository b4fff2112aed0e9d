"""A stream of JSON lines, parsed while training."""

import json
import random
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

EPOCHS = 200
BATCH_SIZE = 128
WORKERS = 0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def make_lines(count):
    draw = random.Random(11)
    for number in range(count):
        events = [{"t": draw.random(), "kind": draw.choice("abcd"), "value": draw.random()} for _ in range(64)]
        yield json.dumps({"id": number, "events": events, "label": draw.randrange(4)})


class Events(IterableDataset):
    def __init__(self, lines):
        self.lines = lines

    def __iter__(self):
        info = get_worker_info()
        lines = self.lines if info is None else self.lines[info.id :: info.num_workers]
        for line in lines:
            record = json.loads(line)
            yield torch.tensor([event["value"] for event in record["events"]]), record["label"]


net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
lines = list(make_lines(2048))
loader = DataLoader(Events(lines), batch_size=BATCH_SIZE, num_workers=WORKERS, persistent_workers=WORKERS > 0)

for epoch in range(EPOCHS):
    start, seen = time.time(), 0
    for values, labels in loader:
        values, labels = values.to(device), labels.to(device)
        loss = nn.functional.cross_entropy(net(values), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += len(labels)
    print(f"epoch {epoch}: loss {loss.item():.4f}, {seen / (time.time() - start):.1f} samples/s", flush=True)
