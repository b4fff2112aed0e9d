import time

import torch
from torch import nn

from rows.data import loader, table

EPOCHS = 200


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 128), nn.Tanh(), nn.Linear(128, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    batches = loader(table(), batch_size=512)
    for epoch in range(EPOCHS):
        start, seen = time.time(), 0
        for x, y in batches:
            loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(x)
        print(f"epoch {epoch}: loss {loss.item():.4f}, {seen / (time.time() - start):.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
