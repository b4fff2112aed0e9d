# %% title [markdown]
# # 5. Memory and precision: how much, and how exactly?
#
# About 20 minutes. At the end you can say what fills the memory of a training job, choose its batch by measurement,
# run it in BF16 and say what that brought against which baseline, and get a job that runs out of memory to run again.
#
# What can be measured on this machine is measured here. What needs a card is shown as a recording where there is
# none, with the name of the card and the day.
#
# The chapter follows the AICR Training Workshop 2, "Optimizing GPU usage on AICR", by Northeastern University
# Research Computing, presented by Arsalan Akhter. What that workshop states stands here beside what you measure.

# %% setup
import torch
from IPython.display import display
from torch import nn
from torch.utils.checkpoint import checkpoint

from gpuworkshop.course import demos, exercise, lesson, predict, progress, quiz, replay, tradeoffs
from gpuworkshop.figures.bits import number_formats
from gpuworkshop.instruments import memory
from gpuworkshop.workloads.config import Job

# No card in this session? A launcher can borrow one for `busy`, `find-ceiling` and `run-out`:
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
# A kitchen has a shelf and an oven. A full shelf does not make the oven hot, and a hot oven does not fill the shelf.
# If the oven bakes one roll at a time although twenty fit, bake twenty at once. If the shelf is full, look at what
# lies on it: perhaps half of it can be written down shorter, and some of it can be made again when it is needed.
#
# The shelf is the card's memory, the oven its processors, and the tray is the **batch**. Writing shorter is
# **precision**, making again is **checkpointing**.

# %% percentages [markdown] minutes=1
# ## Two percentages on one screen
#
# `nvidia-smi` shows both, and they mean different things (chapter 2). **Utilization** is a share of *time*: in how
# much of the last moments did anything run? 100% for hours is fine. **Memory** is a share of *room*: how much of it is
# taken? High is bad only near the edge.
#
# | utilization | memory | what it says | first |
# |:--|:--|:--|:--|
# | low | low | doing nothing | verify that the code uses CUDA; check the data |
# | low | high | loaded, not running | fix the pipeline; a bigger batch waits as long |
# | high | low | memory to spare | a bigger batch, up to the knee |
# | high | high | good | leave both |
# | any | none left | out of memory | precision first |
#
# One more reason for low utilization, on a fast card: the work is **too small to fill it**, and launches and Python
# take the time. It looks just like a slow pipeline. The two timings of chapter 4 decide which it is.

# %% ask-low
quiz.ask("05_memory_precision", "low-and-low")

# %% guesses [markdown] minutes=1
# ## Guess first
#
# Further down the same training step runs in FP32, PyTorch's default, and in BF16, a 16-bit format.

# %% guess-speed
where = "card" if card else "CPU"
asked = f"How many times as fast is a step in BF16 as in FP32, on this {where}?"
predict.guess("05-speed", asked, "times", 0.1, 100)

# %% guess-saving
asked = "How much of the activations' memory does BF16 save?"
predict.guess("05-saving", asked, "%", -50, 100)

# %% life [markdown] minutes=2
# ## The life of the memory
#
# A small language model, in plain PyTorch. On a CPU it is smaller still.

# %% model
width, blocks, context, vocabulary = (1024, 8, 512, 8192) if card else (256, 2, 64, 256)
how = dict(
    d_model=width,
    nhead=width // 64,
    dim_feedforward=4 * width,
    dropout=0.0,
    activation="gelu",
    batch_first=True,
    norm_first=True,
)


class Language(nn.Module):
    """Guesses the next token. With `checkpointing` a block keeps only its input."""

    checkpointing = False

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layers = (nn.TransformerEncoderLayer(**how) for _ in range(blocks))
        self.blocks = nn.ModuleList(layers)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            if self.checkpointing:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.head(x)


def loss_of(model, tokens):
    logits = model(tokens[:, :-1]).flatten(0, 1)
    return nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())


model = Language().to(device)
optimizer = torch.optim.AdamW(model.parameters())
tokens = torch.randint(vocabulary, (64, context + 1), device=device)
batch = tokens[: 16 if card else 8]

# %% phases [markdown]
# One step, and after each of its phases: how many bytes are in tensors? On a card PyTorch's allocator knows. A CPU has
# no such allocator, so the lines count what has a name: weights, gradients, and what the optimizer keeps.


# %% count-phases
def in_tensors():
    if card:
        return torch.cuda.memory_allocated()
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    kept = [part for state in optimizer.state.values() for part in state.values()]
    return sum(tensor.nbytes for tensor in (*model.parameters(), *gradients, *kept))


def note(phase):
    print(f"{in_tensors() / 2**20:10,.1f} MiB  {phase}")


note("the model is there")
loss = loss_of(model, batch)
note("forward" if card else "forward: what it keeps for backward has no name here")
loss.backward()
note("backward: the gradients are there")
optimizer.step()
note("update: Adam keeps two numbers for each weight")
optimizer.zero_grad()
note("gradients dropped")

# %% instrument [markdown]
# The instrument does the same over two steps, and tells the kinds apart. What the forward pass keeps it asks of the
# allocator on a card, and of autograd on a CPU.

# %% measure-life
optimizer = torch.optim.AdamW(model.parameters())  # new, as a run begins
lived = memory.measure(
    model,
    optimizer,
    lambda: loss_of(model, batch),
    batch_size=len(batch),
    workload="the model above",
)
tradeoffs.life(lived)

# %% read-life [markdown]
# - **Weights** stay. **Gradients** come in backward, as large as the weights. **Adam** keeps two more of that size, and
#   they come with the *first update*: a batch that survives one forward and backward has not been tried yet.
# - **Activations** grow through forward, peak early in backward, and are gone after it. Only they grow with the batch.
# - On a card there is more: CUDA's own **context**, and the **reserve** that PyTorch keeps for its next tensors.
#   `nvidia-smi` counts both as used. What a step really needs at most is the peak in tensors.
#
# A GPT of 218 million weights on a card, as a recording:

# %% recorded-life
replay.picture("memory")

# %% batch-size [markdown] minutes=3
# ## The batch: knee and ceiling
#
# A larger batch gives each launch more to do, and it takes more memory: it moves both percentages. The workshop
# states that doubling the batch about doubles throughput, while the GPU is not saturated and memory is there.
# Measured here, in FP32:


# %% sweep
def step(batch_size):
    optimizer.zero_grad()
    loss_of(model, tokens[:batch_size]).backward()
    optimizer.step()


batches = (1, 2, 4, 8, 16, 32, 64) if card else (1, 2, 4, 8, 16)
with chapter.bar("batch sizes in turn") as bar:
    swept = tradeoffs.sweep(step, batches, progress=bar)
memory.report(swept)

# %% effect-batch
shows = f"a larger batch is faster than one of {batches[0]}, up to the knee at {swept.knee}"
lesson.effect(shows, tradeoffs.grown(swept), "The recordings below do.")

# %% read-sweep [markdown]
# The **knee** is the smallest batch within 5% of the best throughput. Beyond it a larger batch buys nothing but
# memory, and it changes the training: fewer updates an epoch, another learning rate.
#
# The **ceiling** is the largest batch that fits. The published way: find it by searching, then run at 70 to 85% of it,
# because memory grows in backward and falls to pieces. The kit measures a few small batches, draws a straight line
# through them, and confirms the end of it with three whole steps. *Allocator retries* in its table: PyTorch found no
# room, gave back all that it kept, and asked again. The step ran, later than it should, and the next one may not; so
# that size counts as too large. A CPU's memory is the whole machine's, so without a card this is a recording:

# %% find-ceiling
found = None
clock = lesson.begin() if launcher else chapter  # a borrowed card is held only here
if card or launcher:
    with clock.bar("ceiling") as bar:
        gpt = Job("gpt")
        found = memory.run_ceiling(job=gpt, knee=False, launcher=launcher, progress=bar)
display(memory.report(found) if found else replay.show("ceiling"))

# %% read-ceiling [markdown]
# **Take the knee if it comes first, else 70 to 85% of the ceiling.** Where the knee comes first, the published rule
# takes memory, and brings hardly any speed. A memory at 15% says that there is room; whether the room is worth
# anything, only the throughput says. ResNet-50 on a card, as a recording. Look where it bends; a knee marked *or more*
# is at the largest size that was measured, and may lie beyond it:

# %% recorded-batches
replay.picture("batches")

# %% ask-largest
quiz.ask("05_memory_precision", "largest-batch")

# %% hundred [markdown] minutes=1
# ## 100%, at a fraction of the speed
#
# The same training step in FP32 and in BF16, and what utilization says of both. The first row is a kernel of one
# thread, for comparison. It needs a card; the recording is the one of chapter 2.

# %% busy
busy = None
clock = lesson.begin() if launcher else chapter
if card or launcher:
    with clock.bar("busy") as bar:
        busy = demos.run(launcher=launcher, progress=bar)
display(demos.report(busy) if busy else replay.show("busy"))

# %% read-busy [markdown]
# Utilization is necessary, not sufficient. It was near 100% both times, and one run did several times the work.
# **Tensor activity**, where the driver tells it, shows the difference. **Achieved FLOP/s** shows it on any machine:
# count what a step computes, divide by its time, and hold it against what the device can do. Against the peak that the
# maker states for the format it is called **MFU**. The next table has both for each format.

# %% formats [markdown] minutes=3
# ## Precision
#
# What a number format spends its bits on:

# %% bits
number_formats()

# %% read-bits [markdown]
# - **BF16** has the exponent of FP32, so the same range, and 7 bits of mantissa instead of 23. Nothing is scaled.
# - **FP16** has more mantissa and a small exponent: gradients below 0.00006 get lost bit by bit. It needs a *gradient
#   scaler*; with BF16 at hand, avoid it.
# - **FP8** needs scaling too and libraries of its own (torchao, Transformer Engine). It can pay for models of 7 billion
#   weights and more, and it can cost accuracy. Not needed here.
# - **TF32** is no format of tensors: the units for products read FP32 numbers with 10 bits of mantissa. One line turns
#   it on, `torch.set_float32_matmul_precision("high")`. It is the hidden baseline: BF16 "against FP32" says nothing
#   until TF32 stands beside it.
#
# BF16 is one wrapper around forward and loss:

# %% autocast
with torch.autocast(device, torch.bfloat16):
    logits = model(batch[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
loss.backward()

print("weights:  ", model.head.weight.dtype)
print("logits:   ", logits.dtype)
print("loss:     ", loss.dtype)
print("gradients:", model.head.weight.grad.dtype)
loss = logits = None

# %% ask-stays
quiz.ask("05_memory_precision", "what-stays")

# %% checkpointing [markdown]
# The last arm of the table is **checkpointing**: a block keeps nothing but its input, and computes the rest again in
# backward. That is why it costs time: most of a forward pass is done twice, and a forward pass is about a third of a
# step's operations. It is in the model above, `checkpoint(block, x, use_reentrant=False)`: the old re-entrant way can
# leave weights untrained without a word. Wrap the expensive parts; for Hugging Face models it is one call,
# `model.gradient_checkpointing_enable()`.


# %% measure-formats
def checkpointed(model):
    model.checkpointing = True


with chapter.bar("formats in turn") as bar:
    formats = tradeoffs.formats(model, loss_of, [batch], checkpointed, progress=bar)
tradeoffs.table(formats)

# %% effect-bf16
shows = "BF16 is faster than FP32"
lesson.effect(shows, formats.bf16_over_fp32, "Look at the recording below.")

# %% compare-speed
predict.compare("05-speed", tradeoffs.bf16_speed(formats), formats.origin)

# %% compare-saving
predict.compare("05-saving", tradeoffs.bf16_saving(formats), formats.origin)

# %% read-formats [markdown]
# BF16 saves *activations*, and not all of them: what softmax, normalization and the loss keep stays FP32, and so do
# weights, gradients and Adam's state. With a batch as small as a CPU's, the BF16 copies of the weights, which backward
# needs too, eat up part of what is saved. The saving is counted, not timed, so its interval is a point. BF16 speeds up
# *products*; elementwise work and the update gain little. A step is a mixture of both, so no number of this table
# holds for another model. Whether a format still learns as before is a question of its own:
# `gpuworkshop precision --learn` trains each.
#
# The GPT of 218 million weights, on a card, as a recording. Look at BF16 over FP32, and over TF32. Each row is held
# against its own format's peak: a smaller share of a much higher peak is still more. And look at checkpointing: its
# time grows more than its operations. In BF16 the products are fast, and what is repeated beside them, elementwise work
# and launches, weighs more.

# %% recorded-formats
tradeoffs.table(replay.load("precision"))

# %% ask-six
quiz.ask("05_memory_precision", "six-times")

# %% guide [markdown]
# | format | when |
# |:--|:--|
# | **FP32** | PyTorch's default; for debugging |
# | **TF32** | FP32 tensors on a card with the units, in one line |
# | **BF16** | the working default, under autocast |
# | **FP16** | only where a card multiplies no BF16; with a scaler |
# | **FP8** | very large models, if measured to pay |
#
# Every step down trades exactness for speed and memory. Do not cast the whole model, `model.bfloat16()`: small updates
# are rounded away, and training often diverges.

# %% exercise-autocast [markdown] minutes=4
# ## Exercise 1: one step, the right parts in BF16
#
# This step comes from an old script. On a card it even runs. **Four** things in it do not belong into a step in BF16:
#
# ```python
# def old_step(model, loss_function, batch, targets, optimizer):
#     with torch.autocast("cuda", torch.float16):
#         outputs = model(batch)
#     loss = loss_function(outputs, targets)
#     with torch.autocast("cuda", torch.float16):
#         scaler.scale(loss).backward()
#     scaler.step(optimizer)
#     scaler.update()
#     return loss.detach()
# ```
#
# And one thing is missing: look at two steps in a row.

# %% card-autocast
autocast = exercise.open("05_memory_precision", "autocast")
display(autocast)


# %% answer-autocast
def bf16_step(model, loss_function, batch, targets, optimizer):
    """One training step in BF16; returns the loss."""
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    with torch.autocast(batch.device.type, torch.bfloat16):
        loss = loss_function(model(batch), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()
    ### END SOLUTION


# %% check-autocast
autocast.check(bf16_step)  # stuck? autocast.hint()

# %% out-of-memory [markdown] minutes=1
# ## Out of memory, and cured
#
# The order that is taught, and why: **BF16** first, it costs nothing. Then **checkpointing**, it costs time. Then a
# **smaller batch**, it changes the training. Checkpointing is also for a batch that is forced below 8, for a large
# model on one card, and for whoever wants twice the batch and has the time.
#
# The next cell provokes it, in a process of its own: a GPT is allowed a little less memory than it needs. The limit is
# planted; the failure and the cure are real.

# %% run-out
clock = lesson.begin() if launcher else chapter
with clock.bar("out of memory") as bar:
    cured = tradeoffs.cure(launcher=launcher, progress=bar)
display(memory.report(cured) if cured else replay.show("cure"))

# %% ask-cure
quiz.ask("05_memory_precision", "first-cure")

# %% claims [markdown]
# ## Claimed and measured
#
# In the row of the doubled batch, *1.97x at 8* says that from 8 to 16 samples throughput rose 1.97 times. It has the
# first doubling and the last one that was measured. `gpuworkshop claims` has all that the workshop states, each with
# its verdict.

# %% beside
recorded = tuple(replay.load(what) for what in ("precision", "batches", "ceiling"))
tradeoffs.beside(formats, swept, found, recorded)

# %% exercise-sizes [markdown] minutes=3
# ## Exercise 2: which batch?
#
# Three jobs on a card. The numbers are made up for this exercise: throughput in samples/s by batch, the batch ceiling,
# and what loader and step take for a batch of 64, each timed alone.
#
# | job | 16 | 32 | 64 | 128 | 256 | ceiling | loader | step |
# |:--|--:|--:|--:|--:|--:|--:|--:|--:|
# | `pictures` | 410 | 800 | 1,530 | 1,580 | 1,600 | 350 | 11 ms | 42 ms |
# | `letters` | 95 | 188 | 365 | 700 | no room | 170 | 2 ms | 175 ms |
# | `scans` | 212 | 214 | 213 | 215 | 214 | 400 | 300 ms | 60 ms |
#
# Give a batch from the table, or `"feed"`: leave the batch, and speed up the data first.

# %% card-sizes
sizes = exercise.open("05_memory_precision", "sizes")
display(sizes)

# %% answer-sizes
# A batch size or "feed" for each.
### BEGIN SOLUTION
mine = {
    "pictures": 64,
    "letters": 128,
    "scans": "feed",
}
### END SOLUTION

# %% check-sizes
sizes.check(mine)  # stuck? sizes.hint()

# %% assert-both tags=["solution-only"]
assert autocast.check(bf16_step).done
assert sizes.check(mine).done

# %% take-away [markdown]
# ## To take away
#
# 1. Only activations grow with the batch. Take the knee of the throughput if it comes before the ceiling, else 70 to
#    85% of the ceiling.
# 2. BF16: autocast around forward and loss, no scaler, nothing cast by hand. Say what it brought over FP32 *and* over
#    TF32, and beside utilization the achieved FLOP/s.
# 3. Out of memory: BF16, then checkpointing, then a smaller batch.

# %% done
progress.chapter("05_memory_precision")

# %% cost
chapter.cost(formats, launcher)

# %% free-card
model = optimizer = tokens = batch = None
lesson.free_card()
