#!/bin/bash
# A session with one card, to verify, profile and try out. Leave it (exit) when you stop: an idle card is
# somebody else's queue time.
exec srun -p b200-devel -N 1 -n 1 -c 8 --mem=32G --gres=gpu:1 --time=01:00:00 --pty bash
