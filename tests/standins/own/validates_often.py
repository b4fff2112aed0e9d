"""A trainer with callbacks that runs its whole validation after every few steps."""

import time

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

MAX_EPOCHS = 200
EVAL_EVERY = 1


def whole_batches(data, size, shuffle):
    order = RandomSampler(data) if shuffle else SequentialSampler(data)
    return DataLoader(data, sampler=BatchSampler(order, size, drop_last=False), batch_size=None)


class Callback:
    def on_step_end(self, trainer):
        pass


class Validation(Callback):
    def on_step_end(self, trainer):
        if trainer.step % EVAL_EVERY == 0:
            trainer.log["val_loss"] = trainer.evaluate()


class Trainer:
    def __init__(self, model, train_data, val_data, callbacks):
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = model.to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
        self.train_loader = whole_batches(train_data, 256, shuffle=True)
        self.val_loader = whole_batches(val_data, 256, shuffle=False)
        self.callbacks, self.log, self.step = callbacks, {}, 0

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        losses = [self.loss(batch) for batch in self.val_loader]
        self.model.train()
        return torch.stack(losses).mean().item()

    def loss(self, batch):
        inputs, targets = (part.to(self.device) for part in batch)
        return nn.functional.cross_entropy(self.model(inputs), targets)

    def train(self):
        for epoch in range(MAX_EPOCHS):
            start, seen = time.time(), 0
            for batch in self.train_loader:
                loss = self.loss(batch)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.step += 1
                seen += len(batch[0])
                for callback in self.callbacks:
                    callback.on_step_end(self)
            rate = seen / (time.time() - start)
            print(f"epoch {epoch}: loss {loss.item():.3f}, {self.log}, {rate:.1f} samples/s", flush=True)


def make(count, seed):
    draw = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(count, 128, generator=draw), torch.randint(0, 10, (count,), generator=draw))


if __name__ == "__main__":
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    Trainer(network, make(4096, 7), make(8192, 8), [Validation()]).train()
