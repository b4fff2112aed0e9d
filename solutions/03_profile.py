# %% title [markdown]
# # 3. Profile: where does the time of a step go?
#
# About 20 minutes. At the end you can profile twenty steps of a training job, read the table from its top row down,
# tell the four signs of a waste from each other, and name the first thing to change.
#
# What can be measured on this machine is measured here. What needs a card is shown as a recording where there is
# none, with the name of the card and the day. Each job with something planted in it says so, and shows its lines.
#
# The chapter follows the AICR Training Workshop 2, "Optimizing GPU usage on AICR", by Northeastern University
# Research Computing, presented by Arsalan Akhter. What that workshop states stands here beside what you measure.

# %% setup
import itertools
import tempfile
import time
from pathlib import Path

import torch
from IPython.display import display
from torch import nn
from torch.profiler import ProfilerActivity, record_function
from torch.utils.data import DataLoader, TensorDataset

from gpuworkshop.course import calls, exercise, lesson, predict, progress, quiz, replay, rungs, signs
from gpuworkshop.instruments import profile

# No card in this session? A launcher can borrow one for the cell `planted`:
# launcher = ("srun", "--gres=gpu:1", "--cpus-per-task=8")
launcher = ()
card = torch.cuda.is_available()
device = "cuda" if card else "cpu"
if not card:
    torch.set_num_threads(1)  # two threads on busy cores wait for each other
chapter = lesson.begin()

# %% idea [markdown] minutes=1
# ## The idea
#
# A shop is full from morning to evening, and sells little. Somebody stands at the door for an hour and writes down
# what everybody does, minute by minute: most of the day the only cashier looks for change in the back room. Nobody
# would have guessed it, and it takes one line of the list to see it.
#
# A **profiler** does that for a training step: it says where the time went. The list is long, and most of it does not
# matter. **Read the top row, fix one thing, and profile again.**

# %% rungs [markdown] minutes=1
# ## Four rungs
#
# | rung | tool | what it answers |
# |:--|:--|:--|
# | **system** | `nvidia-smi`, `nvitop` (chapter 2) | is the card busy? |
# | **framework** | the PyTorch profiler (this chapter) | which operator, or which part of my script? |
# | **timeline** | Nsight Systems | every CPU thread, kernel and copy, in order; also between cards |
# | **kernel** | Nsight Compute | is this one kernel limited by memory or by computing? |
#
# Most problems show on the first two rungs. Climb only when the one below does not answer.

# %% first-guess [markdown] minutes=3
# ## Guess, then measure: one call, or ten thousand
#
# A layer is to be applied to ten thousand samples. Both of these do it, on the same tensor, and compute the same:

# %% two-ways
model = nn.Linear(64, 64).to(device)
samples = torch.randn(10_000, 64, device=device)


def one_call():
    return model(samples)


def ten_thousand_calls():
    return [model(sample) for sample in samples]


# %% guess-calls
predict.guess("03-calls", "How many times as long do the ten thousand calls take?", "times", 1, 100_000)

# %% time-both
wait_for_card = torch.cuda.synchronize if card else lambda: None

with torch.no_grad():
    for way in (one_call, ten_thousand_calls):
        way()  # warm up
        wait_for_card()
        began = time.perf_counter()
        way()
        wait_for_card()  # without this line only the launches are timed
        print(f"{1000 * (time.perf_counter() - began):8.2f} ms  {way.__name__}")

# %% in-turn [markdown]
# Each ran once. The next cell runs them in turn, again and again, and gives the ratio with its 95% interval. Below it
# stands what the workshop states.

# %% measure-calls
with chapter.bar("calls") as bar:
    called = calls.measure(ten_thousand_calls, one_call, progress=bar)
calls.report(called)

# %% compare-calls
predict.compare("03-calls", called.times, called.origin)

# %% effect-calls
lesson.effect("one call is faster than ten thousand", called.faster, "Look at the recording below.")

# %% calls-recorded [markdown]
# The same lines on a card, as a recording:

# %% recorded-calls
replay.show("calls")

# %% read-calls [markdown]
# The arithmetic is the same. What differs is what stands around it: each call goes through Python, looks up the
# operator, makes a tensor for its result and, with a card, **launches** a kernel. That costs some microseconds,
# whatever the size of the kernel. So **never loop over samples.**
#
# A timing says that something is slow. It does not say what. That is what the profile is for.

# %% profile-section [markdown] minutes=3
# ## Profile twenty steps
#
# Here is a small training job, all of it in memory. `record_function` puts a **label** of yours around lines of the
# script: it costs next to nothing, and the table will have a row for it.

# %% job
pictures = torch.randn(1024, 3, 32, 32)
classes = torch.randint(8, (1024,))
loader = DataLoader(TensorDataset(pictures, classes), batch_size=32, shuffle=True)

network = nn.Sequential(
    nn.Conv2d(3, 32, 3, stride=2, padding=1),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.Conv2d(32, 64, 3, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(64, 8),
).to(device)
optimizer = torch.optim.AdamW(network.parameters())


def train_step(batch):
    """One training step on a batch that is on the device."""
    images, labels = batch
    with record_function("forward"):
        loss = nn.functional.cross_entropy(network(images), labels)
    with record_function("backward"):
        loss.backward()
    with record_function("update"):
        optimizer.step()
        optimizer.zero_grad()


# %% profile
with chapter.bar("profile") as bar:
    seen = profile.measure(loader, train_step, workload="a small network, in memory", progress=bar)
profile.report(seen)

# %% read-table [markdown]
# How to read it:
#
# - **CUDA total** is the time on the card of all that the row launched, and **CPU total** its time on the host.
#   **Self CPU** is the same without what the row calls: a row that only calls others has a large total and a small
#   self. Where there is no card, CUDA is "n/a", which is not 0.
# - **Read the top row first.** The table is ordered by the rows' own time, on the card if there is one. A row's
#   share of it is the most that a change to that row can bring.
# - **Calls** says how often, over all profiled steps together, and **a step** how often in each. Self time divided by
#   calls is what one call takes. A few microseconds, and hundreds of calls a step, is a loop somewhere, whatever the
#   row is called. With or without a card.
# - **Only PyTorch has rows.** NumPy, PIL and plain Python in your step have none: they are empty in the host's lane.
#   So what the lane leaves empty can be work, too. *Between calls* is Python on its way from one call to the next.
#   *No operator* are the longer pauses: other code of yours, or a process that waited for a CPU core because others
#   used it. Where they are much, a finding says *in no row*. Put a label around the lines that you suspect.
# - **Your labels** tell you which part of your script it was, with all that is in it, rows or none.
# - **The timeline** is one step of middle length, the host above and the card below. What is empty in the card's
#   lane is a gap.
# - **A profiled step is not your step.** The recording itself takes time, and it stretches many small calls most. So
#   the kit runs the same steps without the profiler, too, and that is the step time to tell others.
#
# Twenty steps are enough: the steps of a training job are alike. Where each makes thousands of calls, fewer are, and
# the trace stays small. The workshop states that 10 to 20 do, and that 20 to 50 are representative. Never profile a
# whole run: the trace would have gigabytes.

# %% ask-step-time
quiz.ask("03_profile", "which-step-time")

# %% signs [markdown] minutes=4
# ## Four signs
#
# | sign | what it says | first change |
# |:--|:--|:--|
# | **gaps** between the kernels | the card is idle, the CPU is too slow | ask what the host did instead |
# | large **copies**, `aten::copy_` | data is carried or converted | keep it on the card, pin memory, convert once |
# | **CPU total far above CUDA total** | work that is not on the card | `.to(device)`: the model, and the batch |
# | **DataLoader** on top of the CPU times | the data pipeline | chapter 4 |
#
# What the host did during a gap decides about it. It was in the DataLoader: chapter 4. It was launching: fewer and
# larger calls. It waited for the card: fewer `.item()` and `.cpu()`.
#
# Without a card there are no gaps to see. There *many small calls* is the finding that names a loop: operators that do
# little more than be called. Where several rows have nearly the same number of calls, they are the body of one loop.
#
# Each sign is planted in a job below. Three of them only a card can show: they are measured on yours, in a process
# of its own, or shown as recordings.

# %% planted
on_card = {}
clock = lesson.begin() if launcher else chapter  # a borrowed card is held only here
if card or launcher:
    with clock.bar("planted jobs") as bar:
        on_card = signs.run(launcher=launcher, progress=bar)

# %% sign-gaps [markdown]
# ### 1. Gaps
#
# The loop from the beginning, in a training step. Look at the calls, at the length of the median kernel, and at what
# is empty in the card's lane.

# %% lines-gaps
signs.lines("gaps")

# %% show-gaps
signs.shown("gaps", on_card)

# %% ask-gaps
quiz.ask("03_profile", "small-gaps")

# %% ask-busy
quiz.ask("03_profile", "busy-when-late")

# %% waits [markdown]
# Gaps have a second cause in scripts: **the host waits for the card.** A line that needs a value in Python, such as
# `loss.item()`, lets the host wait until the card is through. Only then the next launches are made, and until they
# arrive the card has nothing to do. Every hundredth step that costs nothing; in every step it can cost a lot.

# %% ask-waits
quiz.ask("03_profile", "host-waits")

# %% sign-copies [markdown]
# ### 2. Copies
#
# Between host and card a tensor travels far slower than within the card's own memory, and ordinary host memory is
# *pageable*: it is copied once more on its way. Pinned memory is not (chapter 4).

# %% lines-copies
signs.lines("copies")

# %% show-copies
signs.shown("copies", on_card)

# %% conversions [markdown]
# A CPU has no other memory to carry things to. What it does have is the same row for the same reason: a batch that is
# converted and laid out anew in every step, although that could be done once. This one is measured here, on the CPU:

# %% lines-conversions
signs.lines("conversions")

# %% show-conversions
with chapter.bar("conversions") as bar:
    converted = signs.measure("conversions", "cpu", progress=bar)
signs.report(converted)

# %% sign-elsewhere [markdown]
# ### 3. Work on the CPU
#
# A tensor that was not moved stays on the CPU, and so does everything that is computed with it. PyTorch says nothing
# as long as all parts of an operation are in the same place.

# %% lines-elsewhere
signs.lines("elsewhere")

# %% show-elsewhere
signs.shown("elsewhere", on_card)

# %% sign-loader [markdown]
# ### 4. The DataLoader
#
# Measured here, with a card or without.

# %% lines-loader
signs.lines("loader")

# %% show-loader
with chapter.bar("loader") as bar:
    loaded = signs.measure("loader", progress=bar)
signs.report(loaded, "loader")

# %% read-loader [markdown]
# With a card this sign is also the most common reason for gaps. A training of a large network that waits for its
# pictures, on a card, as a recording:

# %% recorded-loader
replay.picture("profile")

# %% ask-top-wait
quiz.ask("03_profile", "waiting-on-top")

# %% exercise-tables [markdown] minutes=3
# ## Exercise 1: five profiles
#
# Five jobs, made up for this exercise. Of each profile you see how busy the card was, and the two top rows; times in
# ms, over 20 steps.
#
# | job | card busy | row | CUDA total | CPU total | calls |
# |:--|--:|:--|--:|--:|--:|
# | `photos` | 9% | `DataLoader` | 0 | 3,410 | 20 |
# | | | `aten::convolution_backward` | 212 | 31 | 1,060 |
# | `faces` | 3% | `aten::mkldnn_convolution` | 0 | 2,890 | 1,060 |
# | | | `aten::copy_` | 61 | 74 | 40 |
# | `masks` | 91% | `aten::copy_` | 1,830 | 1,901 | 240 |
# | | | `aten::cudnn_convolution` | 240 | 35 | 1,060 |
# | `letters` | 21% | `aten::addmm` | 480 | 2,140 | 200,000 |
# | | | `aten::gelu` | 310 | 1,220 | 100,000 |
# | `night` | 98% | `aten::item` | 0 | 3,620 | 40 |
# | | | `aten::convolution_backward` | 2,310 | 122 | 1,060 |
#
# Bottlenecks: `"gaps"` (launches too many and too small), `"copies"`, `"cpu"` (work that is not on the card),
# `"loader"`, `"none"` (the card is at work). The fixes:
#
# - `"batch"`: fewer and larger calls, for a whole batch
# - `"keep"`: keep the tensors on the card
# - `"move"`: move the model and its input to the card
# - `"feed"`: a faster data pipeline
# - `"leave"`: change nothing about the host

# %% card-tables
tables = exercise.open("03_profile", "tables")
display(tables)

# %% answer-tables
# A bottleneck and a fix for each, such as ("copies", "keep").
### BEGIN SOLUTION
mine = {
    "photos": ("loader", "feed"),
    "faces": ("cpu", "move"),
    "masks": ("copies", "keep"),
    "letters": ("gaps", "batch"),
    "night": ("none", "leave"),
}
### END SOLUTION

# %% check-tables
tables.check(mine)  # stuck? tables.hint()

# %% exercise-batched [markdown] minutes=4
# ## Exercise 2: one call for the batch
#
# This loss has two things planted: it calls the model once for each image, and it reads each loss. The check runs
# forward and backward with it and with yours, in turn, on a small model of its own.


# %% slow
def slow_loss(model, images, classes):
    """The mean loss over a batch of images."""
    total, seen = 0, []
    for image, label in zip(images, classes, strict=True):
        loss = nn.functional.cross_entropy(model(image[None]), label[None])
        seen.append(loss.item())
        total = total + loss
    return total / len(images)


# %% card-batched
batched = exercise.open("03_profile", "batched")
display(batched)


# %% answer-batched
def fast_loss(model, images, classes):
    """The same loss with the same gradients, from one call of the model."""
    ### BEGIN SOLUTION
    return nn.functional.cross_entropy(model(images), classes)
    ### END SOLUTION


# %% check-batched
batched.check(fast_loss)  # stuck? batched.hint()

# %% assert-both tags=["solution-only"]
assert tables.check(mine).done
assert batched.check(fast_loss).done

# %% batch-job [markdown] minutes=1
# ## A trace from a batch job
#
# A batch job has no notebook. It writes its trace to a file, and you open that file here afterwards. These are the
# lines for a script, in plain PyTorch. The schedule waits for 2 steps, warms up for 3 and records 20: the loop
# must make at least 25, or no trace is written.

# %% in-a-script
trace_file = Path(tempfile.mkdtemp()) / "trace.json"

on = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * card

with torch.profiler.profile(
    activities=on,
    schedule=torch.profiler.schedule(wait=2, warmup=3, active=20, repeat=1),
    record_shapes=True,
) as profiler:
    for images, labels in itertools.islice(loader, 25):
        train_step((images.to(device), labels.to(device)))
        profiler.step()  # tells the profiler that a step is over

profiler.export_chrome_trace(str(trace_file))

# %% open-trace
signs.report(profile.read(trace_file))

# %% trace-elsewhere [markdown]
# In a terminal the same is `gpuworkshop profile trace.json`. The file also opens in any trace viewer, with every
# single call. Keep it on scratch: twenty steps of a large network are 50 MB, less when gzipped.

# %% next-rungs [markdown]
# ## When that does not answer
#
# The lines for the two rungs above, for a command of your own. Let it make 50 to 100 steps: the files of a whole run
# have gigabytes. Copy them to your laptop, where their viewers are. `torch.cuda.nvtx.range("forward")` is the label
# that the timeline shows. The kernel to look at is the top one of your profile; without a card, of the recording.

# %% nsight
rungs.lines("python train.py", seen if seen.sums.cards else replay.load("profile"))

# %% where [markdown]
# ## Where to profile
#
# The workshop states that a job under half an hour needs no `sbatch`. What the site says, as far as somebody stated it:

# %% habit
rungs.habit()

# %% take-away [markdown]
# ## To take away
#
# 1. Twenty steps, the top row, one change, and again twenty steps. The step's time comes from steps without profiler.
#    Whether the change helped, a comparison in turn says: `starve.compare`, in chapter 4.
# 2. Gaps, copies, work on the CPU, the DataLoader: each has its own first change. Ask of a gap what the host did.
# 3. One call for the batch. A loop over samples pays for every launch, and a faster card does not help.

# %% done
progress.chapter("03_profile")

# %% cost
clock.cost(next(iter(on_card.values())) if launcher else seen, launcher)

# %% free-card
model = samples = network = optimizer = profiler = images = labels = way = None
lesson.free_card()
