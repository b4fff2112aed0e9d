import torch
from torch.utils.data import DataLoader, TensorDataset


def table(count=8192, width=16):
    draw = torch.Generator().manual_seed(12)
    x = torch.randn(count, width, generator=draw)
    return TensorDataset(x, x.sum(1, keepdim=True))


def loader(data, batch_size, shuffle=True):
    return DataLoader(data, batch_size=batch_size, shuffle=shuffle, drop_last=True)
