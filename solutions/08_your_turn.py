# %% title [markdown]
# # 8. Your turn: the loop on your own script
#
# About 20 minutes. At the end you have taken one training script through the loop, yours or one of the course:
# measured, one change, measured again in turn. You can ask an assistant for help without giving away the first rule,
# and you know what of the course counts in other kinds of work.
#
# The chapter follows the AICR Training Workshop 2, "Optimizing GPU usage on AICR", by Northeastern University
# Research Computing, presented by Arsalan Akhter. What that workshop states stands here beside what you measure.

# %% setup
from IPython.display import display

from gpuworkshop.course import answers, domains, exercise, lesson, predict, progress, quiz, replay, serving, your_turn

chapter = lesson.begin()

# %% script [markdown] minutes=2
# ## A script
#
# Take your own: write its command into the next cell, word by word, as you start it in a terminal. It stays as it is,
# and it may run in an environment of its own. `torchrun`, `accelerate launch`, `srun`, `apptainer exec` and `-m
# module` work too.
#
# You have none at hand? Leave the cell as it is. The script of the course learns to tell waves apart. One thing in it
# is slow. It is planted, on purpose and really: nothing is pretended. The comment in the script names it.

# %% begin
mine = your_turn.begin()
# Your own: mine = your_turn.begin("python", "/home/me/project/train.py", "--epochs", "1")
mine.listing(first="def main", last="total += loss")

# %% guess-wait
predict.guess("08-wait", "How much of its time does this script wait for data?", "%", 0, 100)

# %% measure [markdown] minutes=2
# ## Measure
#
# The script is started with a few hooks in it, which wake up when it imports PyTorch. They watch its own steps: 50
# for the baseline, more for what a perfect loader would bring, and a few with the profiler. Then they stop it. It is
# the same as this in a terminal:
#
# ```
# gpuworkshop loop -- python train.py
# ```

# %% first-run
with chapter.bar("your script, as it is") as bar:
    said = mine.measure(progress=bar)
display(said)

# %% compare-wait
predict.compare("08-wait", mine.waits, mine.conditions.origin)

# %% pick [markdown] minutes=1
# ## Pick
#
# The report names what limits the script, and **one** change to make first, with the most that it can bring. Where it
# is sure of the place it shows the lines as they should read. The others have a name only: after the first change the
# limit may be another one.
#
# "Nothing worth changing" is a result, too. Then you are done.

# %% ask-nothing
quiz.ask("08_your_turn", "nothing")

# %% guess-gain
predict.guess("08-gain", "The first pick, made: how many times as fast will the script be?", "times", 0.1, 100)

# %% change [markdown] minutes=2
# ## Change one thing
#
# Below is the first pick for the course's script, on a machine with two CPUs; your report may say another number. In
# a file of your own, make the change in your editor.

# %% one-change
mine.change(
    old="batch_size=16, shuffle=True)", new="batch_size=16, shuffle=True, num_workers=2, persistent_workers=True)"
)

# %% again [markdown] minutes=2
# ## Again
#
# `gpuworkshop loop --again` starts both, the script as it was and the script as it is, in turn. The old one comes
# from the snapshot that was taken when it was measured. It compares files, arguments and what the running program was
# seen to use, and says whether all of it is **one** change. Without a card the chapter makes do with six launches,
# so the interval is wide; in a terminal there are eight or more.

# %% second-run
with chapter.bar("before and after, in turn") as bar:
    compared = mine.again(progress=bar)
display(compared)

# %% what-changed
mine.what_changed()

# %% recorded [markdown]
# The same script and the same change on a card, as a recording; its mark names the card and the day.

# %% recorded-again
replay.show("again")

# %% compare-gain
predict.compare("08-gain", mine.gain, mine.conditions.origin)

# %% ask-yesterday
quiz.ask("08_your_turn", "yesterday")

# %% prompt [markdown] minutes=2
# ## A prompt that keeps the rule
#
# An assistant that sees a training loop wants to improve it, all of it, at once. The workshop's last exercise is a
# prompt against that: give it your loop and your Slurm script, say that it runs on one GPU, and ask it to walk the
# loop with you: what to measure over 50 steps, how to profile 20, which change to try first and why, and the exact
# code for **that one only**.
#
# Ours also holds what was measured, so that nothing has to be guessed. Paths, users, machines and what looks like a
# secret are replaced. Your code is still your code: read the prompt before it goes anywhere.

# %% my-prompt
mine.prompt()  # of your own script: mine.prompt("job.sbatch")

# %% ask-limits
quiz.ask("08_your_turn", "a-prompt-s-limits")

# %% exercise-checks [markdown] minutes=3
# ## Exercise 1: two checks
#
# Whatever the answer, check two things yourself. **Did it ask to measure before it changed anything? Did it change
# exactly one thing?** Here are three answers to the prompt for the course's script, written for this exercise.
#
# The words: `"passes"` (both checks), `"does not ask"` (its change is one), `"several changes"` (it does ask),
# `"fails both"`.

# %% first-answer
answers.show("first")

# %% second-answer
answers.show("second")

# %% third-answer
answers.show("third")

# %% card-checks
checks = exercise.open("08_your_turn", "checks")
display(checks)

# %% answer-checks
# One word for each answer.
### BEGIN SOLUTION
judged = {
    "first": "several changes",
    "second": "does not ask",
    "third": "passes",
}
### END SOLUTION

# %% check-checks
checks.check(judged)  # stuck? checks.hint()

# %% domains [markdown] minutes=2
# ## Your domain
#
# What of the course counts in your work, a page for each kind, with who states it.

# %% deep-learning
domains.page("deep-learning")

# %% hugging-face
domains.page("hugging-face")

# %% molecular-dynamics
domains.page("molecular-dynamics")

# %% cuda-triton
domains.page("cuda-triton")

# %% llm-inference
domains.page("llm-inference")

# %% exercise-cache [markdown] minutes=3
# ## Exercise 2: does it fit?
#
# A model that answers needs its weights, and for every token that it still looks at a key and a value: in each block,
# for each head that keeps them, a vector of `head_dim` numbers. Write down how many bytes that takes.

# %% card-cache
cache = exercise.open("08_your_turn", "cache")
display(cache)


# %% answer-cache
def kv_cache(layers, kv_heads, head_dim, tokens, sequences, bytes_each):
    """Bytes of the keys and values of all kept tokens."""
    ### BEGIN SOLUTION
    return 2 * layers * kv_heads * head_dim * tokens * sequences * bytes_each
    ### END SOLUTION


# %% check-cache
cache.check(kv_cache)  # stuck? cache.hint()

# %% assert-both tags=["solution-only"]
assert checks.check(judged).done
assert cache.check(kv_cache).done

# %% sizing [markdown] minutes=1
# The same sum for the cards of the site, and a model of the size that the workshop names for the larger of them. The
# shape of the model is made up.

# %% what-fits
serving.page()

# %% ask-weights
quiz.ask("08_your_turn", "weights")

# %% take-away [markdown]
# ## To take away
#
# 1. `gpuworkshop loop -- COMMAND`, one change, `gpuworkshop loop --again`. Then `gpuworkshop job write` for the long
#    run.
# 2. One change is what one fix brings along, and no count of lines. Of two at once nobody can tell which it was.
# 3. Whoever proposes a change, a person or a program: did they ask to measure first, and did they change one thing?

# %% done
progress.chapter("08_your_turn")

# %% cost
chapter.cost(mine)

# %% free-card
lesson.free_card()
