# %% title [markdown]
# # 6. DDP: more than one GPU
#
# About 20 minutes. At the end you can say whether a job pays on more than one card, before you ask for them. You can
# turn a training script into one of several ranks, request the cards so that each is used, and work out what they
# brought.
#
# Without cards the ranks are CPU cores: the method is the same, the numbers are not those of cards.
#
# The chapter follows the AICR Training Workshop 2, "Optimizing GPU usage on AICR", by Northeastern University
# Research Computing, presented by Arsalan Akhter. What that workshop states stands here beside what you measure.

# %% setup
import os
import time

import torch
import torch.distributed as dist
from IPython.display import display
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from gpuworkshop.course import exercise, lesson, place, predict, progress, quiz, replay, several
from gpuworkshop.instruments import scaling, scaling_by_hand
from gpuworkshop.machine.allocation import cpus
from gpuworkshop.workloads import pictures
from gpuworkshop.workloads.config import Job

# No card in this session? A launcher can borrow some just to measure; then set ranks to as many:
# launcher = ("srun", "--gres=gpu:2", "--cpus-per-task=16")
launcher = ()
cards = torch.cuda.device_count()
ranks = cards or 2
job = Job("gpt" if launcher or cards else "gpt-tiny")
chapter = lesson.begin()

# %% idea [markdown] minutes=1
# ## Usually the first thing people reach for
#
# More cards multiply what one card does, its waiting too. Four cards that wait for data waste four times as much. So
# the first question is about one card, and the workshop's **80% rule** answers it:
#
# | one card, measured | what to do |
# |:--|:--|
# | utilization above 80%, compute bound | more cards divide the work |
# | between | measure what limits, and how two would scale |
# | below 60% | fix first; more cards amplify what is wrong |
# | limited by files | it gets worse: all cards want the same files |
# | the model does not fit | several cards are needed, and DDP alone does not help: below |
#
# **DDP** (distributed data parallel) is one model copy per GPU. One process drives each copy; it is called a *rank*.

# %% guess-efficiency
question = f"Here {ranks} ranks will train together, each with a whole batch. How efficient will they be?"
predict.guess("06-efficiency", f"{question} 100 is as many times one alone as there are ranks.", "%", 1, 200)

# %% all-reduce [markdown] minutes=2
# ## How it works
#
# Every rank begins with the same weights and takes other samples. After backward each has a gradient of its own.
# **All-reduce** replaces them by their mean, in every rank. Then all make the same update, and the copies stay equal.
#
# Why the mean? Here are two ranks in one process, in plain PyTorch. The mean of their gradients is the gradient of all
# samples together:

# %% mean-by-hand
model = nn.Linear(4, 1, bias=False)
x, y = torch.randn(2, 8, 4), torch.randn(2, 8, 1)  # eight samples for each of two ranks


def gradient(x, y):
    model.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    return model.weight.grad.clone()


mean = (gradient(x[0], y[0]) + gradient(x[1], y[1])) / 2
together = gradient(x.flatten(0, 1), y.flatten(0, 1))
print("mean of two ranks: ", mean.numpy().round(4))
print("all samples at once:", together.numpy().round(4))

# %% in-ranks [markdown]
# In real ranks two lines take the place of that mean, and `DistributedDataParallel` writes them for you:
#
# ```python
# dist.all_reduce(gradient)            # the sum, in every rank
# gradient /= dist.get_world_size()
# ```
#
# Next, torchrun starts two processes. Each averages by hand, then lets DDP do it.

# %% by-hand
with chapter.bar("two ranks, by hand and by DDP") as bar:
    by_hand = scaling_by_hand.run(2, progress=bar)
display(several.all_reduce(by_hand))
scaling_by_hand.report(by_hand)

# %% costs [markdown]
# All-reduce moves the whole gradient in every step, so its cost grows with the model. DDP begins it while backward
# still runs, a part of the gradient at a time; what is longer than backward is seen. Inside a node NVLink carries it,
# or PCIe where there is no NVLink; between nodes InfiniBand, which is slower. So: one node first.

# %% plain [markdown] minutes=2
# ## A plain script on several cards uses one
#
# Nothing in PyTorch looks for further cards. A plain script with `--gres=gpu:4` gets four and uses one; under torchrun
# it does the same work four times. Neither is an error. Before you ask for four, ask three things in the script:

# %% three-questions
print("torch.distributed is there:", dist.is_available())
print("this process has joined others:", dist.is_initialized())
print("cards that PyTorch sees:", torch.cuda.device_count())  # as many as requested?

# %% witness [markdown]
# The kit asks by running the script as two ranks and watching what they do; the words in a script prove nothing. One
# of your own, in a terminal:
#
# ```
# gpuworkshop scale --ranks 2 -- train.py
# ```
#
# In its table *its world* is the number of ranks that a rank has met, and *collectives* are exchanges among them, such
# as all-reduce. Here first a plain script:

# %% plain-script
plain = """
import torch
from torch import nn

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    loss = model(torch.randn(32, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
with chapter.bar("plain.py as two ranks") as bar:
    seen = several.witness(plain, "plain.py", progress=bar)
display(seen)

# %% twin [markdown]
# Then its twin, in which the ranks meet, and the model is wrapped. It exchanges once a step, and at the start:

# %% twin-script
twin = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group()
model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    loss = model(torch.randn(32, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
with chapter.bar("twin.py as two ranks") as bar:
    seen = several.witness(twin, "twin.py", progress=bar)
display(seen)

# %% request [markdown] minutes=2
# ## The request
#
# One node, one task, and torchrun makes one rank for each card. CPUs = (workers + 1) x ranks, because every rank has a
# loader of its own. The last line trains the kit's network; `gpuworkshop job write -- train.py` writes one for yours.

# %% script
here = place.site()
several.request(here)

# %% traps [markdown]
# Two changes to it that Slurm takes without a word. `gpuworkshop job check FILE` does not. The first starts a plain
# script instead of torchrun:

# %% trap-plain
several.plain(here)

# %% trap-tasks [markdown]
# The second asks for one task a card, and leaves `srun torchrun` as it is. It runs as long as nobody writes `srun` in
# front. What happens then? Answer first, then open what the check says.

# %% ask-n-by-n
quiz.ask("06_ddp", "n-by-n")

# %% trap-tasks-checked
several.folded(several.multiplied(here))

# %% scaling [markdown] minutes=3
# ## What do more ranks bring?
#
# **Scaling efficiency** = throughput / (GPUs x throughput of one). The workshop's bands: above 80% it pays, 70 to 80%
# is acceptable, below 70% communication or I/O is the limit, and one goes back to one card.
#
# Say which efficiency you mean:
#
# - **weak**: every rank has the whole batch. More work in the same time, and a larger batch in all.
# - **strong**: the ranks share the batch. The same work in less time, and less work for each between two all-reduces.
#
# `scaling.run` measures both in one launch: one rank alone, all ranks, and all ranks without all-reduce, in turn.

# %% scale
with chapter.bar("worlds in turn") as bar:
    scaled = scaling.run(job=job, ranks=ranks, launcher=launcher, plan=several.plan(job), progress=bar)
scaling.report(scaled)

# %% compare-efficiency
predict.compare("06-efficiency", scaled.world("weak").efficiency, scaled.origin)

# %% effect-scaling
several.effect(scaled)

# %% read-scale [markdown]
# How to read it:
#
# - An interval that reaches over two bands is told as both. This was a short measurement; `gpuworkshop scale` takes
#   more time.
# - **Without all-reduce** is the floor: what lies between it and one alone is not communication. Ranks share CPUs,
#   memory and files. What lies between it and the weak world is all-reduce that nothing hides.
# - Every step waits for the slowest rank. The last table names it, if one is slower than the others.
# - With a single card there is a single rank: then the report says what DDP costs where nobody is to be talked to.
#
# The same on cards, as a recording, where this version of the kit has one:

# %% recorded-scale
replay.show("scale")

# %% small [markdown] minutes=2
# ## Two jobs that do not scale
#
# **The model that is too small.** All-reduce takes a fixed time besides the time for its bytes, and so does every
# launch. Where a step takes a few milliseconds, that is a large share of it. Look at *strong* above: each rank has a
# part of an already small batch, and as much to exchange as before. Strong scaling ends there for any model; a small
# one begins there.
#
# **The starved job.** More ranks bring no files and no disk, and CPUs only if you ask for them. A job that waits for
# its loader is as fast as its loader, so the loaders of two ranks tell what two ranks would do. Each gets as many
# workers as this session has CPUs, as people do who copy `num_workers` from the script for one card:

# %% starved
workers = min(cpus().count, 16)
with chapter.bar("drawing a few pictures, once") as bar:
    files = pictures.training_set(32 * workers, progress=bar).files


class JpegFiles(Dataset):
    def __len__(self):
        return len(files)

    def __getitem__(self, index):
        return pictures.square(64, files[index]).copy()


def loaders(count):
    return [DataLoader(JpegFiles(), 8, num_workers=workers, persistent_workers=True) for _ in range(count)]


def images_a_second(loaders):
    list(zip(*loaders, strict=True))  # starts the workers
    began = time.perf_counter()
    list(zip(*loaders, strict=True))  # a batch of each, until all are through
    return len(loaders) * len(files) / (time.perf_counter() - began)


with chapter.measuring():
    one, two = images_a_second(loaders(1)), images_a_second(loaders(2))
print(f"one loader: {one:.0f} images/s; two at once: {two:.0f} images/s together")
print(f"two starved ranks would reach {two / (2 * one):.0%} of twice one")

# %% read-starved [markdown]
# Near 50% the second brings nothing: the CPUs were all taken. This ran once, and nothing says how much the next run
# would differ; `gpuworkshop scale --workers N` measures the whole job in turn. On a file server that several cards read
# from it is the same, and everybody else reads from it too.

# %% fewest [markdown]
# ## The fewest cards that do
#
# - **The model does not fit one card.** DDP copies the model, so every copy is as large. What helps is *sharding*:
#   each card keeps a part. In PyTorch it is FSDP. This course names it and does not teach it.
# - **It fits.** Then first what makes one card faster: data, precision, batch. The workshop states: many jobs that took
#   four A100s fit two B200s, or one with BF16; models of 70 billion weights and more may need two. Not measurable here,
#   because it needs those cards; what BF16 brings on this one, chapter 5 measured.
# - **It is your own job.** Some minutes on one card and on two, with the same batch for each rank, and the samples/s of
#   your own log: those of two over twice those of one are the weak efficiency.
# - **It fits, and one card is saturated.** Two, measured; then four, measured. Stop where the efficiency leaves its
#   band. A card that brings half is somebody else's whole card.

# %% ask-efficiency
quiz.ask("06_ddp", "efficiency")

# %% ask-does-not-fit
quiz.ask("06_ddp", "does-not-fit")

# %% exercise-ddp [markdown] minutes=4
# ## Exercise 1: from one rank to several
#
# This function trains on one device. `device_of(local_rank)` names the device of a rank: its card, or the CPU where
# there is none.


# %% train-alone
def device_of(local_rank):
    return f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu"


def train_alone(dataset, epochs):
    """Train on one device, and tell the loss of each epoch."""
    device = device_of(0)
    model = nn.Linear(8, 1).to(device)
    loader = DataLoader(dataset, batch_size=8, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")


x = torch.randn(48, 8)
train_alone(TensorDataset(x, x.sum(1, keepdim=True)), epochs=3)

# %% card-ddp
ddp = exercise.open("06_ddp", "ddp")
display(ddp)


# %% answer-ddp
def train_ddp(dataset, epochs):
    """The same as one of the ranks that torchrun started. The imports of the first cell are there, and device_of."""
    ### BEGIN SOLUTION
    dist.init_process_group()
    device = device_of(int(os.environ["LOCAL_RANK"]))
    model = DistributedDataParallel(nn.Linear(8, 1).to(device))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}")
    dist.destroy_process_group()
    ### END SOLUTION


# %% check-ddp
judged = ddp.check(train_ddp)  # it starts two ranks: some seconds
display(judged)  # stuck? ddp.hint()

# %% exercise-decide [markdown] minutes=3
# ## Exercise 2: one card, more cards, or fix first
#
# Four jobs, measured on one card and on two. The numbers are made up for this exercise. Every batch is at its knee.
#
# | | `galaxies` | `scans` | `letters` | `proteins` |
# |:--|--:|--:|--:|--:|
# | GPU utilization, one card | 97% | 41% | 86% | 99% |
# | stall | 1% | 55% | 2% | 1% |
# | precision | BF16 | BF16 | BF16 | FP32 |
# | of the FLOP/s that a large product reaches | 68% | 21% | 47% | 14% |
# | BF16 on one card, measured against FP32 | in use | in use | in use | 2.3x |
# | two cards, weak efficiency | 93% | 58% | 62% | 91% |
# | of a step in all-reduce that nothing hides | 4% | 3% | 35% | 6% |
#
# The decisions: `"one card"`, `"more cards"`, `"fix first"`.

# %% card-decide
decide = exercise.open("06_ddp", "decide")
display(decide)

# %% answer-decide
# One decision for each job.
### BEGIN SOLUTION
mine = {
    "galaxies": "more cards",
    "scans": "fix first",
    "letters": "one card",
    "proteins": "fix first",
}
### END SOLUTION

# %% check-decide
decide.check(mine)  # stuck? decide.hint()

# %% assert-both tags=["solution-only"]
assert judged.done
assert decide.check(mine).done

# %% take-away [markdown]
# ## To take away
#
# 1. One card first. Above 80% and compute bound, more cards divide the work; below 60% they multiply the waste.
# 2. Cards that are asked for are not used by themselves: ranks must meet, and a script that was watched is proof. One
#    task a node, CPUs = (workers + 1) x ranks, and torchrun makes the ranks.
# 3. Efficiency is throughput over ranks times one alone, and says weak or strong. Below 70%, back to fewer.

# %% done
progress.chapter("06_ddp")

# %% cost
chapter.cost(scaled, launcher)

# %% free-card
lesson.free_card()
