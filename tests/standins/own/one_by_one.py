"""A module with training_step and a closure for the optimizer; the encoder sees one sentence at a time."""

import time

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

max_epochs = 200


class Matcher(nn.Module):
    def __init__(self, vocabulary=500, width=64):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, 5)

    def encode(self, sentence):
        _, hidden = self.rnn(self.embed(sentence))
        return hidden[-1]

    def forward(self, sentences):
        encoded = []
        for sentence in sentences:
            encoded.append(self.encode(sentence.unsqueeze(0)))
        return self.out(torch.cat(encoded))

    def training_step(self, batch):
        sentences, labels = batch
        return nn.functional.cross_entropy(self(sentences), labels)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3)

    def train_dataloader(self):
        draw = torch.Generator().manual_seed(10)
        words = torch.randint(0, 500, (512, 12), generator=draw)
        data = TensorDataset(words, torch.randint(0, 5, (512,), generator=draw))
        return DataLoader(data, sampler=BatchSampler(RandomSampler(data), 32, drop_last=True), batch_size=None)


def fit(module, device):
    module.to(device)
    optimizer, loader = module.configure_optimizers(), module.train_dataloader()
    for epoch in range(max_epochs):
        start, seen = time.time(), 0
        for batch in loader:
            batch = [part.to(device) for part in batch]

            def closure():
                optimizer.zero_grad()
                loss = module.training_step(batch)
                loss.backward()
                return loss

            loss = optimizer.step(closure)
            seen += len(batch[0])
        print(f"epoch {epoch}: loss {loss.item():.4f}, {seen / (time.time() - start):.1f} samples/s", flush=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    fit(Matcher(), "cuda" if torch.cuda.is_available() else "cpu")
