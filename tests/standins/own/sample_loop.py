"""A class that trains; its loss goes through the samples of a batch one by one."""

import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


def ranking_loss(scores, targets, margin=0.2):
    losses = []
    for i in range(len(scores)):
        right = scores[i, targets[i]]
        others = torch.cat([scores[i, : targets[i]], scores[i, targets[i] + 1 :]])
        losses.append(F.relu(margin + others - right).mean())
    return torch.stack(losses).mean()


class Trainer:
    def __init__(self, epochs=200, batch_size=128, width=256):
        self.device = "cuda:0" if torch.cuda.is_available() else "cpu"
        self.epochs = epochs
        self.model = nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Linear(width, 50)).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        draw = torch.Generator().manual_seed(3)
        x = torch.randn(2048, 64, generator=draw)
        data = TensorDataset(x, torch.randint(0, 50, (2048,), generator=draw))
        self.loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), batch_size, False), batch_size=None)

    def training_step(self, batch):
        x, y = (part.to(self.device) for part in batch)
        return ranking_loss(self.model(x), y)

    def fit(self):
        for epoch in range(self.epochs):
            start, seen = time.time(), 0
            for batch in self.loader:
                loss = self.training_step(batch)
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                self.optimizer.step()
                seen += len(batch[0])
            rate = seen / (time.time() - start)
            print(f"epoch {epoch}: loss {loss.item():.4f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    Trainer().fit()
