"""Pictures kept compressed, decompressed each time they are asked for, cropped at random."""

import argparse
import time
import zlib

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self, count, size=96):
        draw = torch.Generator().manual_seed(2)
        pictures = torch.randint(0, 48, (count, 3, size, size), dtype=torch.uint8, generator=draw)
        self.files = [zlib.compress(one.numpy().tobytes()) for one in pictures]
        self.labels = torch.randint(0, 10, (count,), generator=draw)
        self.size = size

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        data = bytearray(zlib.decompress(self.files[index]))
        picture = torch.frombuffer(data, dtype=torch.uint8).view(3, self.size, self.size)
        top, left = torch.randint(0, self.size - 64, (2,)).tolist()
        return picture[:, top : top + 64, left : left + 64].float() / 48, self.labels[index]


def train_one_epoch(model, loader, optimizer, criterion, device):
    model.train()
    seen = 0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        seen += images.size(0)
    return seen, loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Sequential(
        nn.Conv2d(3, 16, 7, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 10),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    dataset = Pictures(1024)
    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=args.workers, drop_last=True)
    for epoch in range(args.epochs):
        start = time.time()
        seen, loss = train_one_epoch(model, loader, optimizer, criterion, device)
        print(f"epoch {epoch}: loss {loss:.4f}, {seen / (time.time() - start):.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
