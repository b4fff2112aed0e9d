# %% title [markdown]
# # 7. The loop: one change at a time
#
# About 20 minutes. At the end you can take a job that you have never seen, find what limits it, choose one change,
# prove what it brought, and say when to stop. You also know when a rule of thumb about utilization leads the wrong way.
#
# The chapter follows the AICR Training Workshop 2, "Optimizing GPU usage on AICR", by Northeastern University
# Research Computing, presented by Arsalan Akhter. What that workshop states stands here beside what you measure.

# %% setup
from IPython.display import display

from gpuworkshop.course import before_batch, exercise, hidden, lesson, predict, progress, quiz, replay

# No card in this session? A launcher can borrow one just to measure:
# launcher = ("srun", "--gres=gpu:1", "--cpus-per-task=8")
launcher = ()
chapter = lesson.begin()

# %% loop [markdown] minutes=2
# ## The loop
#
# 1. **Baseline**: 50 steps or more, without a profiler. How many samples a second?
# 2. **Profile** 20 steps. Where does the time go?
# 3. **Diagnose**: what limits this run, by a number that was measured?
# 4. **Change one thing**, the one that goes against that limit.
# 5. **Measure again**, old and new in turn. Is it faster beyond the noise, and does the model still learn? Did the
#    bottleneck move?
# 6. **Record** it, kept or not. Then from step 2 again, until nothing pays.
#
# One thing, because of two changes nobody can say which one it was. In turn, because machines drift: measured an hour
# apart, two runs of the very same script differ.
#
# A bottleneck that is removed uncovers the next one. They usually come in this order:
#
# | what limits | how it shows | what goes against it | chapter |
# |:--|:--|:--|--:|
# | **data** | the step waits: stall, headroom | workers, decode once, less work a sample | 4 |
# | **copies** | copies with nothing beside them | pinned memory, keep tensors on the card | 3 |
# | **synchronizing** | the card idles after the host waited for it | read the loss rarely | 3 |
# | **launches** | tiny kernels, and gaps between them | a larger batch, one call a batch, compile | 3 |
# | **compute** | busy all the time | BF16, memory layout | 5 |
# | **memory** | no room for a batch that would fill the card | BF16, checkpointing | 5 |
# | **one card** | all of the above is done | more cards, if measured to scale | 6 |

# %% hidden [markdown] minutes=4
# ## A job that you have not seen
#
# The next cell draws a job from a seed. **One** thing is wrong with it, really wrong: nothing is pretended. You do not
# see its script. You see what the instruments say, and you choose what to change.
#
# Another number is another job. In a course, take a number of your own.

# %% draw
job = hidden.begin(seed=7, lesson=chapter, launcher=launcher)

# %% baseline
with chapter.bar("the job, as it is") as bar:
    job.look(progress=bar)
job.measured()

# %% read-baseline [markdown]
# This is a short look: it tells where to look next, and is no verdict. Ask in this order:
#
# - **Does the step wait?** Headroom is the most that any change to the data can bring. If the step waits, do the CPUs
#   work meanwhile, or does everybody wait?
# - **What happens to a batch before the step?** It is not the loader, and not training either. The headroom holds it,
#   too: a large headroom with little waiting is this work.
# - **How many pieces is a step cut into?** Hundreds of operators or kernels are usual for a small network, many
#   thousands are not. Calling one costs a few microseconds, however little it does. The pieces of the work before the
#   step are counted in: where that work is a large share, ask first whether they are its pieces.
# - **How much of what the device can do** does it compute? On a card that is the last question, and often the largest.

# %% guess-gain
predict.guess("07-gain", "Your first change: how many times as fast will it make this run?", "times", 0.1, 100)

# %% choose [markdown]
# Now choose. A change takes up to a minute: before and after in turn, then a short training of both to see whether the
# model still learns. Choose again as often as you like; your waterfall grows below the buttons.
#
# Press a button before you run the cell after it: where nothing was chosen, that cell tries the usual first advice.

# %% choices
display(job)

# %% first-choice
with chapter.bar("one change") as bar:
    told = job.unless_chosen(progress=bar)
display(told)

# %% compare-gain
predict.compare("07-gain", job.first_gain, job.starve.origin)

# %% your-waterfall [markdown]
# Your own waterfall. Run this cell again after further changes. Of a change believe the **ratio**: it was taken in
# turn. The rates of two rows were not, and a machine that others use can differ by half between them.

# %% waterfall
job.waterfall()

# %% ask-two-at-once
quiz.ask("07_loop", "two-at-once")

# %% stop [markdown] minutes=2
# ## When to stop, and what it was
#
# Stop when no change that goes against the measured limit is left to try, or when it brings less than it costs. Then
# look at what was planted. The cell also shows what your changes had to do with it, and what the published guide would
# have said of the same run.

# %% reveal
job.reveal()

# %% ask-did-it-move
quiz.ask("07_loop", "did-it-move")

# %% guide [markdown] minutes=2
# ## The guide, corrected by measurement
#
# The workshop states a guide that needs two numbers only:
#
# | utilization | memory | the guide |
# |:--|:--|:--|
# | below 50% | any | the data pipeline; workers first, if there are none |
# | 50 to 80% | below 40% | a larger batch |
# | 50 to 80% | 40 to 85% | try BF16 |
# | 50 to 80% | above 90% | a smaller batch, or checkpointing |
# | 50 to 80% | between | profile |
# | above 80% | healthy | more cards, if the one is truly saturated and scaling is measured |
# | out of memory | | BF16, checkpointing, a smaller batch |
#
# It is quick, and often right. Two corrections are **ours**, not the workshop's:
#
# - **The measured stall decides "data", not the utilization.** A tiny batch, a loss that is read in every step, or
#   logging keep utilization low just as well, and workers do nothing against them.
# - **100% is not the end.** Utilization counts a window in which something ran. How fast it ran is another number:
#   hold the achieved FLOP/s against what the card reaches, and try precision and layout before more cards.
#
# On a card each of these jobs has one thing planted, as a recording. The guide is asked for each, and then the
# measurement:

# %% recorded-guide
replay.show("guided")

# %% ask-guide
quiz.ask("07_loop", "guide-or-measurement")

# %% exercise-change [markdown] minutes=4
# ## Exercise 1: three reports
#
# Three jobs on cards, each measured as above. The numbers are made up for this exercise.
#
# | | `vision` | `tokens` | `volumes` |
# |:--|--:|--:|--:|
# | GPU utilization | 27% | 38% | 46% |
# | GPU memory | 24% | 4% | 52% |
# | loader workers | 0 | 4 | 8 |
# | stall | 70% | 1% | 2% |
# | headroom, at most | 3.5x | 1.02x | 1.04x |
# | kernels a step, median | 610, 85 us | 1,900, 4 us | 430, 210 us |
# | the card waits for the next launch | 2% | 58% | 3% |
# | copies, with nothing beside them | 1% | 1% | 49%, pageable |
#
# The changes: `"workers"`, `"larger batch"`, `"pinned memory"`, `"BF16"`, `"second card"`.

# %% card-change
change = exercise.open("07_loop", "change")
display(change)

# %% answer-change
# One change for each job.
### BEGIN SOLUTION
first = {
    "vision": "workers",
    "tokens": "larger batch",
    "volumes": "pinned memory",
}
### END SOLUTION

# %% check-change
change.check(first)  # stuck? change.hint()

# %% whole-loop [markdown] minutes=1
# ## The whole loop, on a card
#
# `gpuworkshop loop` does what you did, by itself: it ranks the changes by what each could bring at most, tries them in
# turn, and stops when nothing pays. This is a recording; its mark names the card and the day.

# %% recorded-loop
replay.show("loop")

# %% afterwards [markdown] minutes=1
# ## After the job: the report card
#
# The loop belongs into a short session, the long run into batch, where nobody watches. **jobstats**, by Princeton
# Research Computing, is the report card of such a job after it has ended; `gpuworkshop job stats JOBID` holds it
# against the course's targets. What the site says of both:

# %% habit
before_batch.habit()

# %% exercise-report [markdown] minutes=3
# ## Exercise 2: read the report card
#
# A real job, as the workshop shows it: fine-tuning on one RTX card, 55 minutes. It had asked for eight CPU cores and
# for 8 hours.
#
# | line | what it says | the course's target |
# |:--|--:|:--|
# | `gpu_utilization` | 80% | above 70%; below 60%, fix it before the next run |
# | `gpu_memory` | 17% | 60 to 90%, or the batch at its knee; below 40% is low |
# | `cpu_utilization` | 13% of eight cores | above 60% |
# | `time_used` | 11% of the time asked for | what it is expected to take, and 20% more |
#
# Host memory has its line too: above 40%, else ask for less; 8 to 32 GB is typical. Of two cards at 43% each, try one.
#
# What should the next request change? The words: `"stays"`, `"larger batch"`, `"smaller batch"`, `"more CPUs"`,
# `"fewer CPUs"`, `"more time"`, `"less time"`.

# %% card-report
report = exercise.open("07_loop", "report")
display(report)

# %% answer-report
# One word for each line.
### BEGIN SOLUTION
next_time = {
    "gpu_utilization": "stays",
    "gpu_memory": "larger batch",
    "cpu_utilization": "fewer CPUs",
    "time_used": "less time",
}
### END SOLUTION

# %% check-report
report.check(next_time)  # stuck? report.hint()

# %% assert-both tags=["solution-only"]
assert change.check(first).done
assert report.check(next_time).done

# %% ask-time
quiz.ask("07_loop", "time-next-time")

# %% before-batch [markdown] minutes=1
# ## Before a batch job
#
# `gpuworkshop job check FILE` reads a job script for the faults that cost a night. The rest of the list is yours:

# %% checklist
before_batch.checklist()

# %% take-away [markdown]
# ## To take away
#
# 1. Measure, change one thing, measure again in turn, write it down. Of two changes at once nobody knows which it was.
# 2. Ask whether the bottleneck moved before you choose the next change. The list of changes does not know; the
#    measurement does.
# 3. Utilization says that something is wrong, or that something runs. What to change, the stall and the profile say.

# %% done
progress.chapter("07_loop")

# %% cost
chapter.cost(job.starve, launcher)

# %% free-card
lesson.free_card()
