"""Two networks with an optimizer each, and a checkpoint after every step."""

import os
import tempfile
import time

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

n_epochs = 200
device = "cuda" if torch.cuda.is_available() else "cpu"
folder = tempfile.mkdtemp()


def make_loader(count, width, batch):
    data = TensorDataset(torch.randn(count, width))
    return DataLoader(data, sampler=BatchSampler(RandomSampler(data), batch, drop_last=True), batch_size=None)


torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 64)).to(device)
critic = nn.Sequential(nn.Linear(64, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1)).to(device)
opt_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
opt_d = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
bce = nn.BCEWithLogitsLoss()
real_loader = make_loader(2048, 64, 64)
noise_loader = make_loader(2048, 32, 64)

for epoch in range(n_epochs):
    start, seen = time.time(), 0
    for i, ((real,), (noise,)) in enumerate(zip(real_loader, noise_loader)):
        real, noise = real.to(device), noise.to(device)
        fake = generator(noise)

        opt_d.zero_grad()
        right = critic(real)
        wrong = critic(fake.detach())
        loss_d = bce(right, torch.ones_like(right)) + bce(wrong, torch.zeros_like(wrong))
        loss_d.backward()
        opt_d.step()

        opt_g.zero_grad()
        judged = critic(fake)
        loss_g = bce(judged, torch.ones_like(judged))
        loss_g.backward()
        opt_g.step()

        state = {"generator": generator.state_dict(), "critic": critic.state_dict(), "step": i}
        state |= {"opt_g": opt_g.state_dict(), "opt_d": opt_d.state_dict()}
        torch.save(state, os.path.join(folder, "last.pt"))
        seen += len(real)
    rate = seen / (time.time() - start)
    print(f"epoch {epoch}: {loss_d.item():.3f} {loss_g.item():.3f}, {rate:.1f} samples/s", flush=True)
