# %% title [markdown]
# # 2. Watch: is the card busy, and with what?
#
# About 20 minutes. At the end you can read the two numbers that every monitor of a GPU shows, put a job on a map made
# of both, and choose what to try first from its place there. You also know what neither of the two numbers says.
#
# What can be measured on this machine is measured here. What needs a card is shown as a recording where there is
# none, with the name of the card and the day.
#
# The chapter follows the AICR Training Workshop 2, "Optimizing GPU usage on AICR", by Northeastern University
# Research Computing, presented by Arsalan Akhter. What that workshop states stands here beside what you measure.

# %% setup
import time

import torch
from IPython.display import display

from gpuworkshop.course import exercise, lesson, predict, progress, quiz, replay, watched
from gpuworkshop.instruments import watch
from gpuworkshop.instruments.watch_live import live
from gpuworkshop.workloads import pictures, train
from gpuworkshop.workloads.config import Job, TrainConfig

# No card in this session? A launcher can borrow one for the cell `busy`:
# launcher = ("srun", "--gres=gpu:1", "--cpus-per-task=8")
launcher = ()
card = torch.cuda.is_available()
job = Job("card" if card else "tiny")
chapter = lesson.begin()

# %% idea [markdown] minutes=1
# ## The idea
#
# A large kitchen has a hundred stoves and a pantry. Through the keyhole you can see two things: whether *any* stove
# is on, and how full the pantry is. A cook who boils one egg all day keeps the first number at 100%. A pantry filled
# to the ceiling says that somebody means to cook, and nothing about whether anybody does.
#
# A monitor looks at a GPU (a *card*, in this course) through that keyhole:
#
# - **GPU utilization**: the share of the driver's last sampling window, a fraction of a second, in which at least one
#   kernel was on the card. A kernel is a program that runs on the card.
# - **GPU memory**: how full the card's own memory is. Model and batch live there.
#
# They are the two numbers that are most often taken for each other, and they do not depend on each other.

# %% second-terminal [markdown] minutes=2
# ## A second terminal
#
# Open a terminal on the same node (File, New, Terminal) and leave it open beside the notebook for the whole course.
# Type one of these there:
#
# ```
# nvidia-smi              # one look
# watch -n 1 nvidia-smi   # a look each second; Ctrl-C ends it
# nvitop                  # live, with each process; q ends it
# ```
#
# If the job runs on another node, go there first: `srun --jobid=JOB --overlap --pty bash`.
#
# `nvitop` shows for each process how much of the card it uses, and how memory, power and temperature move.
# In what `nvidia-smi` prints, *GPU-Util* is the utilization, and *Memory-Usage* is memory in use and in all. Leave
# aside what some tools call *memory utilization*: it is the share of time in which the memory was read or written,
# not how full it is.
#
# The workshop's example shows 84% utilization and 12% of the memory: healthy, with room for a far bigger batch.

# %% first-guess [markdown] minutes=2
# ## Guess, then watch
#
# The job trains a network on JPEG pictures, with PyTorch's default loader. Without a card the same lines train a
# small network on the CPU, in one thread. The number to guess is then the share of this session's CPUs in use.

# %% guess-busy
what = "GPU utilization" if card else "the share of this session's CPUs that is in use"
predict.guess("02-busy", f"While the job trains, what will be {what}?", "%", 0, 100)

# %% build
with chapter.bar("drawing the pictures, once") as bar:
    pictures.training_set(job.sizes.pictures.count, progress=bar)
training = train.build(TrainConfig(), job)
seconds = 20 if card else 8

# %% watch [markdown]
# `Watch` looks five times a second, from a thread of its own, while the lines below it run. `live` draws what it
# sees, and `seen.batches` reports how long the loop waits for its next batch: the *loader wait*.

# %% watch-training
with chapter.bar("watch"), watch.Watch(what="training, with its loader") as seen:
    live(seen)
    images, end = 0, time.monotonic() + seconds
    for batch in seen.batches(train.endless(training.loader)):
        loss = training.step(*training.prepare(batch))
        images += len(batch[1])
        if time.monotonic() > end:
            break
    loss.item()  # wait for what is still on its way

print(f"{images / seconds:,.0f} images/s")

# %% report-training
with_loader = seen.result
watch.report(with_loader)

# %% compare-busy
predict.compare("02-busy", with_loader.busy_percent, with_loader.origin)

# %% same-step [markdown]
# Now the same step without the loader: one batch, which is on the device already, again and again. It learns
# nothing new. It shows what the step could do if it never had to wait.

# %% watch-resident
ready = training.prepare(batch)

with chapter.bar("watch"), watch.Watch(what="the same step, without the loader") as seen:
    live(seen)
    images, end = 0, time.monotonic() + seconds / 2
    while time.monotonic() < end:
        loss = training.step(*ready)
        images += len(batch[1])
    loss.item()

print(f"{images / (seconds / 2):,.0f} images/s")

# %% side-by-side
resident = seen.result
watched.side_by_side({"with the loader": with_loader, "without it": resident})

# %% read-watch [markdown]
# Set the table beside the two throughputs.
#
# - **With a card**, utilization tells the two runs apart: low while the step waits, high when it does not. The
#   workshop states that below 50% something is wrong.
# - **Without a card** there is only the CPU to look at, and decoding pictures keeps a CPU as busy as training does.
#   Both run in one thread here, and one thread fills one CPU at most: with two CPUs that is 50%.
#   What tells the runs apart is the loader wait, and the throughput. *Busy* and *getting on* are two things.
#
# On a card they are two things as well; a later section shows how far apart they can be. A reading that was not
# available is "n/a". It is never 0, and no mean counts it.

# %% axes [markdown] minutes=2
# ## Two axes
#
# Utilization goes across and memory goes up.
#
# | place | utilization, memory | what it says | what to try |
# |:--|:--|:--|:--|
# | **top left** | low, high | loaded, not running | the data pipeline (chapter 4) |
# | **bottom left** | low, low | doing nothing | does the code use the card? if not, give it back |
# | **bottom right** | high, low | good throughput, memory to spare | a bigger batch (chapter 5) |
# | **top right** | high, high | the target: 80 to 100%, and 70 to 90% | leave both; ask what 100% hides |
#
# The two numbers are independent, so a fix for the wrong one makes the job worse:
#
# - Top left, and somebody makes the **batch smaller**, because memory looks full. Each step gives the card less to
#   do, and it waits as before. With a **bigger batch** it runs out of memory, or waits longer for more pictures.
# - Bottom right, and somebody adds **workers**, because something must be missing. Nobody waits for their batches,
#   and they take CPU time from the step. **Checkpointing**, which trades time for memory, makes room where there is
#   room already.
#
# The workshop states that most inefficient jobs are in the two left corners. With a card, the report above ends with
# the map, and with the way that the run took on it. This is such a run on a card, as a recording:

# %% recorded-watch
replay.show("watch")

# %% ask-loaded
quiz.ask("02_watch", "loaded-barely-computing")

# %% ask-other-axis
quiz.ask("02_watch", "the-other-axis")

# %% exercise-quadrants [markdown] minutes=3
# ## Exercise 1: four jobs
#
# | job | utilization | memory | what its owner says |
# |:--|--:|--:|:--|
# | `pictures` | 14% | 88% | "It decodes JPEGs, and both CPU cores are at 100%." |
# | `notebook` | 0% | 3% | "I have been writing the next cell since lunch." |
# | `small_batch` | 93% | 12% | "With twice the batch it trained 1.8 times as many samples a second." |
# | `night_run` | 96% | 81% | "It has run since yesterday, evenly." |
#
# The places are `"top left"`, `"bottom left"`, `"bottom right"` and `"top right"`. The fixes:
#
# - `"feed"`: more loader workers, or less work for each sample
# - `"grow"`: a bigger batch
# - `"give back"`: end the job, and ask for a card when there is work for it
# - `"leave"`: change neither of the two numbers

# %% card-quadrants
quadrants = exercise.open("02_watch", "quadrants")
display(quadrants)

# %% answer-quadrants
# A place and a fix for each, such as ("top right", "feed").
### BEGIN SOLUTION
mine = {
    "pictures": ("top left", "feed"),
    "notebook": ("bottom left", "give back"),
    "small_batch": ("bottom right", "grow"),
    "night_run": ("top right", "leave"),
}
### END SOLUTION

# %% check-quadrants
quadrants.check(mine)  # stuck? quadrants.hint()

# %% hundred [markdown] minutes=3
# ## What 100% does not say
#
# Here is a piece of work that one thread must do alone: a polynomial of degree one million, at one point. Each term
# needs the two before it, so a second thread could not help.

# %% one-thread
point = torch.full((1,), 0.5, device="cuda" if card else "cpu")

began = time.perf_counter()
value = torch.special.legendre_polynomial_p(point, 1_000_000).item()
print(f"{1000 * (time.perf_counter() - began):.1f} ms on {point.device.type}: {value:.5f}")

# %% busy-how [markdown]
# On a card that line is a kernel with one busy thread, on hardware made for many thousands. The next cell keeps a card
# busy with it for some seconds and watches. Then it does the same with a training step in FP32, and with the same step
# in BF16, the 16-bit format of chapter 5. It runs in a process of its own, and needs a card; without one it shows the
# recording.

# %% busy
from gpuworkshop.course import demos

busy = None
clock = lesson.begin() if launcher else chapter  # a borrowed card is held only here
if card or launcher:
    with clock.bar("busy") as bar:
        busy = demos.run(launcher=launcher, progress=bar)
demos.report(busy) if busy else replay.show("busy")

# %% read-busy [markdown]
# **SM activity** is the share of the card's processors (SMs, *streaming multiprocessors*) that had work. **Tensor
# activity** is the share of time in which the units for matrix products worked. Not every card and driver tell them.
#
# - One thread is enough for a high utilization. SM activity shows that the rest of the card stood by: an H200 has
#   132 SMs, and one of them is 0.76%.
# - In FP32 and in BF16 there is a kernel on the card nearly all the time. How many samples a second come out is
#   another number.
#
# So low utilization is always worth a look, and high utilization is no proof. Three numbers stand together:
# utilization, SM activity, and throughput.

# %% effect-busy
if busy:
    effect = "busy in both formats, and faster in one"
    display(lesson.effect(effect, busy.faster, "Look at the recording instead."))

# %% ask-100
quiz.ask("02_watch", "what-100-says")

# %% exercise-average [markdown] minutes=4
# ## Exercise 2: a mean that can be trusted
#
# The driver sums up one *window* after the other, a fifth of a second each on some cards, a whole one on others. A
# monitor that asks more often gets the same window again, and now and then it gets no answer. Here is what one kept:
# the number of the window, and the utilization in it in percent. `None` is "n/a".

# %% readings
readings = [(1, 0), (1, 0), (2, 90), (2, 90), (2, 90), (3, None), (4, 60), (5, 90)]

# %% card-average
average = exercise.open("02_watch", "average")
display(average)


# %% answer-average
def mean_utilization(readings):
    """The mean over the windows that are known, in percent; None if none is."""
    ### BEGIN SOLUTION
    known = {window: busy for window, busy in readings if busy is not None}
    return sum(known.values()) / len(known) if known else None
    ### END SOLUTION


# %% check-average
average.check(mean_utilization)  # stuck? average.hint()

# %% assert-both tags=["solution-only"]
assert quadrants.check(mine).done
assert average.check(mean_utilization).done
assert mean_utilization(readings) == 60

# %% whose [markdown] minutes=1
# ## Whose memory is it?
#
# Memory in use belongs to a process. On a card that is yours alone, it is one of yours: this kernel, another notebook
# that is still open, or a run that did not end. On a shared node it may be somebody else's. `nvitop` shows the list
# live; this is the kit's, of the last watch, or of the recording where there is no card:

# %% processes
watched.processes(resident if resident.cards else replay.load("watch"))

# %% ask-whose
quiz.ask("02_watch", "whose-memory")

# %% idle [markdown] minutes=1
# ## The card that waits for you
#
# A card that is held counts as used, also while you read this. In **card-minutes**: cards, times minutes. The live
# chart shows beside its lines how long the card has been idle. What the site does about idle cards is here, as far as
# somebody stated it:

# %% policy
from gpuworkshop.course import policy

policy.idle()

# %% ask-card-minutes
quiz.ask("02_watch", "card-minutes")

# %% take-away [markdown]
# ## To take away
#
# 1. Utilization says that some kernel was there, memory says how full the card is. Neither follows from the other.
# 2. The place on the map says which side to look at first. The fix of the other axis makes it worse.
# 3. 100% is where the next question begins: how many of the SMs work, and how many samples a second come out?

# %% done
progress.chapter("02_watch")

# %% cost
clock.cost(busy if launcher else with_loader, launcher)

# %% free-card
training = batch = ready = loss = point = None
lesson.free_card()
