"""A language model in FP32, where matrix units could do more (shows on a card)."""

import time

import torch
from torch import nn

STEPS_PER_EPOCH = 20
EPOCHS = 200
VOCAB = 8192
big = torch.cuda.is_available()
device = "cuda" if big else "cpu"
block_size, batch_size, n_embd, n_layer = (512, 32, 1024, 8) if big else (64, 8, 256, 2)

data = torch.randint(0, VOCAB, (1_000_000,), generator=torch.Generator().manual_seed(13))


def get_batch():
    ix = torch.randint(len(data) - block_size - 1, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in ix])
    return x.to(device), y.to(device)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(batch, length, 3, width // 64, 64).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(VOCAB, n_embd), nn.Embedding(block_size, n_embd)
        self.blocks = nn.ModuleList(Block(n_embd) for _ in range(n_layer))
        self.head = nn.Linear(n_embd, VOCAB, bias=False)

    def forward(self, idx):
        x = self.embed(idx) + self.place.weight[: idx.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x)


torch.manual_seed(0)
model = GPT().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
for epoch in range(EPOCHS):
    start = time.time()
    for _ in range(STEPS_PER_EPOCH):
        xb, yb = get_batch()
        logits = model(xb)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), yb.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    value = loss.item()
    rate = STEPS_PER_EPOCH * batch_size / (time.time() - start)
    print(f"epoch {epoch}: loss {value:.4f}, {rate:.1f} samples/s", flush=True)
