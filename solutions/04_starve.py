# %% title [markdown]
# # 4. Starve: does the step wait for data?
#
# About 20 minutes. At the end you can say whether a training job waits for its data, how much faster it could get
# at most if it did not, and which single change to try first. You make that change, and prove that it helped.
#
# Everything is measured on the machine in front of you. Without a card the training runs on the CPU, with a
# network small enough for it. A number from anywhere else says where it comes from.
#
# The chapter follows the AICR Training Workshop 2, "Optimizing GPU usage on AICR", by Northeastern University
# Research Computing, presented by Arsalan Akhter. What that workshop states stands here beside what you measure.
#
# Run the cells one after the other, with Shift+Enter.

# %% setup
import time

import numpy as np
import torch
from IPython.display import display
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from gpuworkshop.course import exercise, lesson, predict, progress, quiz, replay
from gpuworkshop.instruments import starve
from gpuworkshop.loop import climb
from gpuworkshop.workloads import pictures
from gpuworkshop.workloads.config import Job, TrainConfig

# No card in this session? A launcher can borrow one just to measure:
# launcher = ("srun", "--gres=gpu:1", "--cpus-per-task=8")
launcher = ()
job = Job("card" if launcher or torch.cuda.is_available() else "tiny")
chapter = lesson.begin()

# %% idea [markdown] minutes=1
# ## The idea
#
# A factory turns one load of material into goods in 8 ms. The truck that brings the next load takes 50 ms. The
# factory stands still most of the time, and nothing is wrong with it. A faster factory would only stand still
# for longer.
#
# In training the factory is the step: forward, backward, update. The truck is the **DataLoader**: the part of
# PyTorch that reads and batches data and hands it to the GPU (a *card*, in this course). A step that waits for it is
# *starved*. From outside you see low **GPU utilization**: the share of the last second in which the GPU ran any work
# at all.

# %% first-guess [markdown] minutes=2
# ## Guess, then measure
#
# The job: read JPEG files, decode and crop them one by one, and train a network on batches of 32. The loader has
# PyTorch's default settings, and so `num_workers` is 0.

# %% guess-wait
predict.guess("04-wait", "Which share of the time does the step wait for data?", "%", 0, 100)

# %% two-timings [markdown]
# The workshop's diagnostic is two timings: the loader alone, then forward and backward alone, on a batch that is
# there already. If the loader takes longer, the job is data bound, and a change to the model brings little. Here it
# is in plain PyTorch, simplified: pictures are resized instead of cropped, and a small network stands in. In a script
# of your own, the optimizer's step belongs to the step; and a short loader may end before you have counted to 50.

# %% dataset
px = job.sizes.pictures.px
device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cpu":
    torch.set_num_threads(1)  # two threads on busy cores wait for each other; do the same where you measure on a CPU


class JpegFiles(Dataset):
    """Decodes one picture at a time, as most training scripts do."""

    def __init__(self, files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        picture = Image.open(self.files[index]).convert("RGB").resize((px, px))
        return torch.from_numpy(np.array(picture)).permute(2, 0, 1) / 255


with chapter.bar("drawing the pictures, once") as bar:
    files = pictures.training_set(job.sizes.pictures.count, progress=bar).files

# %% time-loader
loader = DataLoader(JpegFiles(files), batch_size=32, shuffle=True)  # num_workers=0
batches = iter(loader)
count = 50 if device == "cuda" else 8

began = time.perf_counter()
for _ in range(count):
    batch = next(batches)
loader_ms = 1000 * (time.perf_counter() - began) / count

print(f"The loader alone: {loader_ms:.1f} ms a batch")

# %% time-step
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, stride=2, padding=1),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.Conv2d(8, 16, 3, stride=2, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(16, 8),
).to(device)
batch, labels = batch.to(device), torch.randint(8, (32,), device=device)
wait_for_card = torch.cuda.synchronize if device == "cuda" else lambda: None

for _ in range(count):  # warm up
    nn.functional.cross_entropy(model(batch), labels).backward()
wait_for_card()

began = time.perf_counter()
for _ in range(count):
    nn.functional.cross_entropy(model(batch), labels).backward()
wait_for_card()  # without this line only the launches are timed
step_ms = 1000 * (time.perf_counter() - began) / count

print(f"Forward and backward alone: {step_ms:.1f} ms a batch")

# %% two-timings-together
together = loader_ms + step_ms
print(f"With 0 workers the two add up: {together:.1f} ms a batch, {loader_ms / together:.0%} of it in the loader.")
print(f"If the loader cost nothing: at most {together / step_ms:.1f} times as fast.")

# %% side-by-side [markdown]
# With workers the two run side by side, and the slower one sets the pace.

# %% measured-properly [markdown] minutes=2
# ## The question again, with an answer to trust
#
# Two timings are quick, and often they are enough. But each ran once, nothing says how much the next run would
# differ, and nothing says how much a better loader could bring. `starve` measures three things in turn, many times:
#
# - **now**: the run as it is;
# - **data ceiling**: the same step on real batches that lie on the device already, the loader stopped;
# - **loader alone**.
#
# Each number comes with its 95% interval, as `±7%` or as `13.0 to 14.0`. Two runs are compared in pairs, one right
# after the other, and the ratio is taken in each pair. So a ratio can be sharp while both rates swing. *Faster*
# means: the interval excludes 1, and the effect is above 3%. Otherwise it says *no real difference*, and how small an
# effect would have been seen.
#
# It runs in a process of its own, so that this notebook holds no card meanwhile.

# %% starve
with chapter.bar("starve") as bar:
    naive = starve.run(job=job, launcher=launcher, progress=bar)
starve.report(naive)

# %% read-starve [markdown]
# How to read it:
#
# - **headroom** is data ceiling / now, and no change to the loader can bring more. The number with "<=" is the upper
#   end of its interval. Where it is near 1, leave the loader alone.
# - **loader wait** is the share of the time that the training process spends in `next(batches)`. With a card it is
#   the **stall**: the share in which the card is idle because of that.
# - In the picture, *data work* is what the device still does to a batch, such as copying it. *slowed* is how much
#   longer the step takes beside the loader than without it.
# - The two must tell the same story. A step that waits for 90% of the time works for 10%, so without the waiting it
#   would be 10 times as fast. If the headroom is larger, the rest is *slowed*: the step itself gets faster too. Where
#   more than 10% of the time stays unexplained, the verdict is "unknown".
# - **Data limits** does not mean that the loader is the larger part. With 0 workers also a loader that takes half as
#   long as the step is a third of the time, and one worker can hide it. It means that a better loader can pay. A
#   change of the step may pay more: with similar shares, measure both.
# - Noise can let the headroom lie on both sides. Then the waiting decides, where its whole interval lies on one: what
#   is not spent on data cannot be gained. *Loader alone* must say so, too, before data are called the limit.
# - **Not judged** means that both intervals are too wide. Then *loader alone* still says much: many times as fast as
#   *now*, and the loader is not the limit.
# - Workers share the work and do not reduce it: N of them bring at most N times. Where the headroom is far more than
#   your CPUs, the fix says so: do the work once, or move it.
# - The two timings above were of simpler work, and each ran once. That is why they differ from these.

# %% compare-wait
predict.compare("04-wait", naive.wait_percent, naive.origin)

# %% effect-starved
lesson.effect("without the waiting, the step would be faster", naive.headroom)

# %% claim-utilization [markdown]
# The workshop states: utilization below 60% almost always points to the data pipeline.

# %% claim-utilization-measured
print(naive.origin)
print(f"The step works {1 - naive.wait_share:.0%} of the time. The limit: {naive.limit}.")

# %% quiz-wasted [markdown] minutes=2
# ## Check your picture

# %% ask-wasted-share
quiz.ask("04_starve", "wasted-share")

# %% ask-what-can-help
quiz.ask("04_starve", "what-can-help")

# %% workers [markdown] minutes=3
# ## How many workers?
#
# `num_workers` is the number of processes that load batches beside the training process. With 0, the training
# process itself decodes every picture, between two steps. The workshop's rule is to start at CPUs - 1, never at 0.
#
# The sweep tries several numbers, up to the CPUs of this session, all in turn.

# %% guess-workers
question = f"With 0 workers it was {naive.real}. What will the best number reach?"
predict.guess("04-workers", question, "images/s", 1, 100_000)

# %% sweep
with chapter.bar("sweep") as bar:
    sweep = starve.run_sweep(job=job, launcher=launcher, progress=bar)
starve.report(sweep)

# %% compare-workers
predict.compare("04-workers", sweep.best.rate, sweep.origin)

# %% ask-one-worker
quiz.ask("04_starve", "one-worker")

# %% read-sweep [markdown]
# - **One worker usually brings little.** One process decoded before, and one decodes now. Only the short step moves
#   beside it, and every batch must be handed over. On two CPUs the rule gives 1, so the sweep goes one further: two
#   workers decode side by side, if both CPUs are free.
# - **With more it flattens.** Workers share the CPUs with each other and with the step. Once the loader keeps up with
#   the step, one more worker has nothing to bring, and too many can cost something.
# - The rule is where to start. The sweep is the answer: the smallest number that does as well as the best.

# %% effect-workers
lesson.effect("workers make training faster", sweep.best.against_zero)

# %% claim-workers [markdown]
# The workshop states: `num_workers` from 0 to 4 or more, one line, is its biggest single win, and often takes
# utilization from 20% to 60-80%. Set beside it how much of the data ceiling a run reaches: the less the step waits,
# the more often a card has a kernel on it.

# %% claim-workers-measured
before, after = (point.rate.value / sweep.ceiling.value for point in (sweep.measured[0], sweep.best))
print(sweep.origin)
change = f"0 to {sweep.best.workers} workers" if sweep.best.workers else "No number of workers did better than 0"
print(f"{change}: {before:.0%} to {after:.0%} of the data ceiling.")

# %% sweep-recorded [markdown]
# The same sweep on a machine with a card and more CPUs, as a recording:

# %% recorded-sweep
replay.picture("sweep")

# %% settings [markdown] minutes=1
# ## The four settings
#
# | setting | what it does | where to start |
# |:--|:--|:--|
# | `num_workers` | processes that load in parallel | CPUs - 1, then a sweep |
# | `pin_memory` | batches in page-locked memory: faster to copy to a card | on with a card |
# | `persistent_workers` | the workers stay from one epoch to the next | on with workers |
# | `prefetch_factor` | batches that each worker loads ahead | 2 or more; `None` without workers |

# %% ask-need-workers
quiz.ask("04_starve", "need-workers")

# %% exercise-knobs [markdown] minutes=4
# ## Exercise 1: the call

# %% card-knobs
knobs = exercise.open("04_starve", "knobs")
display(knobs)


# %% answer-knobs
def make_loader(dataset, batch_size, workers):
    """A shuffled DataLoader whose settings suit `workers` and this machine."""
    ### BEGIN SOLUTION
    return DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=True,
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
        persistent_workers=workers > 0,
        prefetch_factor=2 if workers > 0 else None,
    )
    ### END SOLUTION


# %% check-knobs
knobs.check(make_loader)  # stuck? knobs.hint()

# %% prove [markdown]
# ## Proof, on objects of your own
#
# `starve.compare(old, new, step)` takes any two loaders and your step, and runs them in turn. `starve.measure(loader,
# step)` finds the limit of one. Both work in a script of yours as they do here; `step(batch)` is one whole training
# step on a batch that is on the device. To prove a change of the step, give the same loader twice:
# `starve.compare(loader, loader, old_step, after_step=new_step)`. What comes out is the gain of the whole step,
# loader and all. Here the loader that you wrote is held against the one from the beginning:


# %% own-step
def step(batch):
    loss = nn.functional.cross_entropy(model(batch), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# %% own-comparison
written = make_loader(JpegFiles(files), 32, 2)
if isinstance(written, DataLoader):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with chapter.bar("old and new in turn"):
        print("2 workers against 0:", starve.compare(loader, written, step))
else:
    print("First write the call above.")
model = batch = labels = optimizer = None

# %% exercise-ladder [markdown] minutes=4
# ## Exercise 2: one rung up
#
# More workers spread the work over more CPUs: N of them bring at most about N times. Where the headroom is far above
# that, the work itself must become less. Time one `dataset[0]`, and leave out one line after the other, to see what
# costs. Then: **whatever comes out the same in every epoch can be done once; what is random stays where it is.**
# Doing it once costs time and room, once, and pays after some epochs. The report says how long it took.
#
# For pictures, that makes these rungs:
#
# 1. **more workers**, as far as the CPUs go: `start.with_(workers=2)`
# 2. **decode once**, store the pictures as `uint8`, and crop them on the device:
#    `start.with_(data_path="pre-decoded")`
# 3. **decode on the card**, if there is one: `start.with_(data_path="card-decode")`
# 4. **fewer, larger files** on a fast disk, where it is the reading that takes long
#
# `start` is the run that you measured above. Choose one of the first two; with a card, also the third. A faster run
# must still learn: what you chose is also held against `start` by its loss on pictures that it never trained on,
# after the same number of samples.

# %% card-ladder
ladder = exercise.open("04_starve", "ladder")
display(ladder)

# %% answer-ladder
start = TrainConfig()
### BEGIN SOLUTION
mine = start.with_(data_path="pre-decoded")
### END SOLUTION

# %% check-ladder
trial = ...  # filled in by the lines below
if mine is not ...:
    with chapter.bar("trial") as bar:
        trial = climb.try_one(start, mine, job, launcher=launcher, progress=bar)
ladder.check(trial)  # stuck? ladder.hint()

# %% assert-both tags=["solution-only"]
assert knobs.check(make_loader).done
assert ladder.check(trial).done

# %% on-a-card [markdown] minutes=1
# ## The whole ladder, on a card
#
# The same naive start on a card, as a recording: its mark names the card and the day. Below it stands a recording of
# `gpuworkshop loop`: one change after the other, each measured in turn with the run before it. Not all of its changes
# are about data: BF16 and the batch are chapter 5, the loop itself is chapter 7.

# %% recorded-starve
replay.show("starve")

# %% recorded-loop
replay.picture("loop")

# %% one-more [markdown]
# One more question: how all this looks from outside.

# %% ask-loaded
quiz.ask("04_starve", "loaded-not-running")

# %% take-away [markdown]
# ## To take away
#
# 1. Time the loader alone and the step alone. With 0 workers they add up, so that even the smaller one counts; with
#    workers the slower one sets the pace, and only that one counts.
# 2. Headroom is the most that any loader can bring. Where it is near 1, leave the loader alone.
# 3. Sweep the workers up to your CPUs. If that does not suffice, do once what is the same in every epoch. One change
#    at a time, and old against new in turn.

# %% done
progress.chapter("04_starve")

# %% cost
chapter.cost(naive, launcher)

# %% free-card
lesson.free_card()
