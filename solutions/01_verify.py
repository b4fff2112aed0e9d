# %% title [markdown]
# # 1. Verify: do you have the GPU?
#
# About 20 minutes. At the end you can say which GPU (a *card*, in this course) your session has, prove that it can be
# used, and name the cause when it cannot. You can read a job script, and see what is wrong in one.
#
# Everything is measured on the machine in front of you, also on one without a card: the chapter then says what a card
# would show. A number from anywhere else says where it was *recorded* or who *claims* it.
#
# The chapter follows the AICR Training Workshop 2, "Optimizing GPU usage on AICR", by Northeastern University
# Research Computing, presented by Arsalan Akhter. What that workshop states stands here beside what you measure.
#
# Run the cells one after the other, with Shift+Enter. Does the next one end in `ModuleNotFoundError`? Then this
# notebook runs with another Python than the course. In a terminal, with the course's environment active:
#
# ```
# gpuworkshop start
# ```
#
# It copies the notebooks into a folder of yours, unless they are there, and installs the kernel *GPU workshop*. Choose
# that kernel at the top right of this page.

# %% setup
import os

from IPython.display import display

from gpuworkshop.course import exercise, lesson, place, predict, progress, quiz

# No card in this session? A launcher can borrow one just to measure:
# launcher = ("srun", "--gres=gpu:1", "--cpus-per-task=8")
launcher = ()
site = place.site()
chapter = lesson.begin()

# %% idea [markdown] minutes=1
# ## The idea
#
# A GPU job that finished is not a GPU job that used the GPU. Many jobs leave their card waiting most of the time, and
# nothing tells them. On a shared cluster an idle card is somebody else's time in the queue.
#
# So: measure first, change second. Each chapter adds one instrument. This one comes before all others, because a
# number from the wrong machine is worth nothing.
#
# Six terms, used in exactly this sense from here on:
#
# | term | what it means |
# |:--|:--|
# | **GPU utilization** | share of the driver's last window, a second or less, in which the GPU ran any work at all |
# | **GPU memory** (VRAM) | the GPU's own memory; model and batch live there |
# | **DataLoader** | the part of PyTorch that reads and batches data and hands it to the GPU |
# | **profiler** | a tool that says where the time went |
# | **BF16** | a 16-bit number format with the range of 32-bit floats |
# | **DDP** (distributed data parallel) | one copy of the model on each GPU |

# %% where [markdown] minutes=2
# ## Where are you?
#
# In a job on a cluster, on its login node, or on a laptop: that decides what you can find. In Open OnDemand this page
# is itself a job. If it asked for a card, it holds that card while you read.

# %% where-report
from gpuworkshop.course import where

where.report()

# %% button
where.button()

# %% five-checks [markdown] minutes=4
# ## Five checks, by hand
#
# A job can lose its card without a word. The build of PyTorch has no CUDA. A typo in the request led to the wrong kind
# of node. A variable from an earlier shell hides the card. PyTorch then runs on the CPU, and raises nothing.
#
# Five questions find it. Each is a line or two that you can type anywhere.
#
# **1. Can CUDA be reached?**

# %% reach
import torch

print("PyTorch", torch.__version__)
print("built for CUDA", torch.version.cuda or "n/a: a build without it")
print("is_available():", torch.cuda.is_available())

# %% reach-module
print("modules loaded:", os.environ.get("LOADEDMODULES") or "none")

# %% claim-module [markdown]
# The workshop states: if the CUDA module is not loaded, PyTorch runs on the CPU. Measured here are the lines above.
# A PyTorch from pip or conda brings its own CUDA, and needs only the driver. Where no module is loaded and
# `is_available()` is True, you see it yourself.
#
# **2. How many cards, of which model, with how much memory?**

# %% models
for index in range(torch.cuda.device_count()):
    card = torch.cuda.get_device_properties(index)
    print(f"cuda:{index}  {card.name}  {card.total_memory / 2**30:.1f} GiB")
if not torch.cuda.device_count():
    print("No card. With one, this is a line with its number, its name and its memory.")

# %% memory-less [markdown]
# The number is smaller than the advertised one: the card keeps a part for itself, and advertisements do not agree on
# what a GB is. Here 1 GiB is 2³⁰ bytes.
#
# **3. What does `CUDA_VISIBLE_DEVICES` say?**

# %% variable
value = os.environ.get("CUDA_VISIBLE_DEVICES")
print("CUDA_VISIBLE_DEVICES:", "unset" if value is None else repr(value))
print("in a Slurm job:", "SLURM_JOB_ID" in os.environ)

# %% variable-read [markdown]
# Slurm sets it in every job that asked for a card: "0" for one, "0,1" for two. Outside Slurm it is usually unset, and
# that is normal. The workshop calls unset normal in an interactive `srun` shell too. Slurm sets it there as well: unset
# inside a job means that the job asked for no card.
#
# **4. Does the driver agree?** NVML is the driver's own monitoring library; `nvidia-smi` shows what it says.

# %% nvml
import pynvml

try:
    pynvml.nvmlInit()
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        print(pynvml.nvmlDeviceGetName(handle), pynvml.nvmlDeviceGetUUID(handle))
        print(f"  {memory.used / 2**30:.1f} of {memory.total / 2**30:.1f} GiB in use")
except pynvml.NVMLError as error:
    print("NVML does not answer:", error)

# %% nvml-read [markdown]
# NVML does not read the variable: on a shared node it may show cards that are not yours. And its order need not be
# CUDA's. Two numbers mean the same card only if the UUID is the same.
#
# **5. A tensor there and back.** The copy alone runs no kernel. The `+ 1` does, on the card.

# %% round-trip
if torch.cuda.is_available():
    there = torch.arange(3.0).to("cuda")
    back = (there + 1).cpu()
    print("came back right:", torch.equal(back, torch.arange(3.0) + 1))
    del there
else:
    print("No card to send it to. With one: came back right: True")

# %% ask-round-trip
quiz.ask("01_verify", "round-trip")

# %% ask-seen-not-used
quiz.ask("01_verify", "seen-not-used")

# %% instrument [markdown] minutes=2
# ## The same, as an instrument
#
# By hand you ask in the notebook's own process, and one wrong answer can hang it. `verify` asks the driver at once, and
# PyTorch in a process of its own, with a time limit. It names the cause and the exact fix.
#
# The workshop states: verify runs in under 5 seconds.

# %% guess-seconds
predict.guess("01-seconds", "How long does it take here, from the call to the report?", "s", 0.1, 300)

# %% verify
import time

from gpuworkshop.instruments import verify

now = time.perf_counter
began, driver_said, ended = [], [], []
with chapter.bar("verify, three times") as bar:
    for turn in range(3):
        began.append(now())
        result = verify.run(launcher=launcher, first=lambda _: driver_said.append(now()))
        ended.append(now())
        bar((turn + 1) / 3)
verify.report(result)

# %% compare-seconds
from gpuworkshop import timing

took = timing.durations([end - start for start, end in zip(began, ended, strict=True)])
predict.compare("01-seconds", took, result.origin)

# %% claim-seconds-measured
driver = max(said - start for start, said in zip(began, driver_said, strict=True))
print(result.origin)
print(f"Claimed: under 5 s. Measured: {took}.")
print(f"The driver's part was there after {driver:.2f} s at the latest.")
if "import torch" in result.torch.seconds:
    print(f"In the last run, importing PyTorch took {result.torch.seconds['import torch']:.2f} s.")

# %% read-seconds [markdown]
# Most of it is the start of Python and the import of PyTorch. On a cold file system that takes longer still. So the
# driver's part comes first.
#
# In a job, say which card you asked for: `gpuworkshop verify --expect NAME`. Another card is then a failure, and not
# a surprise a week later. A script with `set -e` stops there.
#
# What it says on a machine with a card, as a recording:

# %% recorded-verify
from gpuworkshop.course import replay

replay.show("verify")

# %% exercise-visible [markdown] minutes=4
# ## Exercise 1: what does CUDA see?
#
# A machine made up for this exercise has four cards of one kind. Number 0 is A, then come B, C and D. A shell sets
# `CUDA_VISIBLE_DEVICES`, and a new process starts there. With `1` CUDA gives it one card, B, and calls it `cuda:0`. The
# answer is "B".
#
# What does CUDA give it for these? `"unset"` stands for no such variable. Guess before you look anything up.

# %% card-visible
visible = exercise.open("01_verify", "visible")
display(visible)

# %% answer-visible
### BEGIN SOLUTION
sees = {
    "unset": "ABCD",
    "": "",
    "-1": "",
    "2,0": "CA",
    "0,7,1": "A",
    "1,1": "",
    "NoDevFiles": "",
}
### END SOLUTION

# %% check-visible
visible.check(sees)  # stuck? visible.hint()

# %% on-this-machine [markdown]
# That machine is on paper. Now each value is set for a new process here, which asks the CUDA of the machine in front of
# you:

# %% ask-cuda
from gpuworkshop.course import ask_cuda
from gpuworkshop.course.checks.chapter01 import VALUES

ask_cuda.report([None if value == "unset" else value for value in VALUES])

# %% hands-off [markdown]
# In a job script, leave the variable alone. Slurm has set it to your cards. Change it only to use fewer of them.

# %% script [markdown] minutes=2
# ## Reading a job script
#
# Two lines deserve a second look:
#
# - `--mem` is **CPU memory**. The card's own memory comes with the card, all of it.
# - `--cpus-per-task` is where the data-loading workers run: **CPUs = workers + 1**, one for the main process.
#
# And two things that Slurm does not forgive:
#
# - The folder of the log files must exist **before** `sbatch`. Slurm opens the log before the first line of the script
#   runs; without the folder the job fails, and there is no log that says why. A `mkdir` inside the script is too late.
# - `--time` is a limit. Ask for the expected run time **and 20%**.

# %% minimal
from gpuworkshop.course import script

script.minimal(site)

# %% ask-which-memory
quiz.ask("01_verify", "which-memory")

# %% ask-time-to-ask
quiz.ask("01_verify", "time-to-ask")

# %% exercise-faulty [markdown] minutes=3
# ## Exercise 2: three faults
#
# Three lines of this script are wrong for its job. `sbatch` takes it all the same.

# %% faulty-script
script.faulty(site)

# %% card-faulty
faulty = exercise.open("01_verify", "faulty")
display(faulty)

# %% answer-faulty
### BEGIN SOLUTION
faults = ["--cpus-per-task", "mkdir", "CUDA_VISIBLE_DEVICES"]
### END SOLUTION

# %% check-faulty
faulty.check(faults)  # stuck? faulty.hint()

# %% assert-both tags=["solution-only"]
assert visible.check(sees).done
assert faulty.check(faults).done

# %% site [markdown] minutes=2
# ## Which card, and for how long
#
# Ask for the fewest cards that meet the need, of the kind that your model fits into. Write and debug on a CPU node or
# a laptop, not on a card that you hold.
#
# What follows comes from the kit's file of this cluster. It is what its source says, and nothing that the kit measured.
# On a machine without Slurm you see AICR, the cluster for which the course is made.

# %% choice
place.choice(site)

# %% request
place.request(site)

# %% idle-policy
from gpuworkshop.course import policy

policy.idle(site)

# %% claims
place.claims(site)

# %% claims-measured [markdown]
# Of these, the power of a card that is here can be read:

# %% idle-power
try:
    pynvml.nvmlInit()
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        watts = pynvml.nvmlDeviceGetPowerUsage(handle) / 1000
        print(f"Measured here, now: {pynvml.nvmlDeviceGetName(handle)} draws {watts:.0f} W.")
except pynvml.NVMLError as error:
    print("Measured here: n/a,", error)

# %% ask-srun-or-sbatch
quiz.ask("01_verify", "srun-or-sbatch")

# %% take-away [markdown]
# ## To take away
#
# 1. Run `verify` at the top of every job, and let it expect the card that you asked for. A card that is seen may still
#    fail at its first use.
# 2. `CUDA_VISIBLE_DEVICES` belongs to Slurm. Empty, or odd, it hides cards without a word.
# 3. `--mem` is CPU memory, CPUs are workers + 1, the log's folder exists before `sbatch`, and an idle card goes back.

# %% done
progress.chapter("01_verify")

# %% cost
chapter.cost(launcher=launcher)

# %% free-card
lesson.free_card()
