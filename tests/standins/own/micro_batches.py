"""A small language model that adds up the gradients of many tiny batches for each step."""

import argparse
import time

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=2)
parser.add_argument("--accum_steps", type=int, default=16)
parser.add_argument("--epochs", type=int, default=200)
parser.add_argument("--lr", type=float, default=1e-3)
args = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
VOCAB, CONTEXT = 128, 16


class Tokens(Dataset):
    def __init__(self, length=24000):
        self.text = torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(6))

    def __len__(self):
        return 768

    def __getitem__(self, i):
        chunk = self.text[i * 16 : i * 16 + CONTEXT + 1]
        return chunk[:-1], chunk[1:]


class Model(nn.Module):
    def __init__(self, width=64, layers=2):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCAB)
        self.mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT, device=device)

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens), mask=self.mask))


torch.manual_seed(0)
model = Model().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
loader = DataLoader(Tokens(), batch_size=args.batch_size, shuffle=True, drop_last=True)

for epoch in range(args.epochs):
    start, seen = time.perf_counter(), 0
    for i, (tokens, targets) in enumerate(loader):
        tokens, targets = tokens.to(device), targets.to(device)
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()) / args.accum_steps
        loss.backward()
        if (i + 1) % args.accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
        seen += tokens.size(0)
    rate = seen / (time.perf_counter() - start)
    print(f"epoch {epoch}: loss {loss.item() * args.accum_steps:.4f}, {rate:.1f} samples/s", flush=True)
