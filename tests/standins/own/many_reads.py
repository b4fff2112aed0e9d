"""A classifier that counts its hits one by one in each step."""

import time

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

epochs = 200
batch_size = 256
lr = 1e-3
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

torch.manual_seed(0)
x, y = torch.randn(4096, 64), torch.randint(0, 16, (4096,))
train_set = TensorDataset(x, y)
batches = BatchSampler(RandomSampler(train_set), batch_size, drop_last=True)
train_loader = DataLoader(train_set, sampler=batches, batch_size=None)

net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 16)).to(device)
optimizer = torch.optim.AdamW(net.parameters(), lr=lr)
criterion = nn.CrossEntropyLoss()

for epoch in range(epochs):
    began = time.time()
    correct, count, by_class = 0, 0, [0] * 16
    for step, (inputs, labels) in enumerate(train_loader):
        inputs, labels = inputs.to(device), labels.to(device)
        outputs = net(inputs)
        loss = criterion(outputs, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        predicted = outputs.argmax(dim=1)
        for guess, truth in zip(predicted, labels):
            if guess.item() == truth.item():
                correct += 1
            by_class[guess.item()] += 1
            count += 1
    speed = count / (time.time() - began)
    print(f"epoch {epoch}: accuracy {correct / count:.3f}, {speed:.1f} samples/s", flush=True)
