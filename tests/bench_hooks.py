"""What the hooks cost a launch-bound script: the same steps with hooks and without, in turn in one process.

    python tests/bench_hooks.py [--seconds SECONDS] [--layers LAYERS]

The hooks are as in a script's baseline, when its steps are timed: next(), backward and the optimizer's step pass
through them, blocks are closed and written. The goal is an upper 95% bound of 1% of the step. Without a card it is the
training thread's own CPU time that counts, which other work on the machine does not lengthen.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader, TensorDataset

from gpuworkshop import timing
from gpuworkshop.machine.gpus import default_device
from gpuworkshop.own import launch

GOAL = 0.01


SETTLE = 4
"""Untimed steps after the methods were changed: Python looks all of a class up anew then."""


class Script:
    """A training loop of many small calls."""

    period = 1

    def __init__(self, name: str, layers: int, device: str):
        self.name, self.device, self.switch = name, device, lambda: None
        blocks = [part for _ in range(layers) for part in (nn.Linear(64, 64), nn.ReLU())]
        self.model = nn.Sequential(*blocks, nn.Linear(64, 10)).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.loader = DataLoader(TensorDataset(torch.randn(4096, 64), torch.zeros(4096).long()), batch_size=32)
        self._batches = iter(self.loader)

    def resume(self) -> None:
        self.switch()
        for _ in range(SETTLE):
            self.step(timing.Clock())

    def pause(self) -> None:
        pass

    def step(self, clock: timing.Clock) -> int:
        try:
            x, y = next(self._batches)
        except StopIteration:
            self._batches = iter(self.loader)
            x, y = next(self._batches)
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(x.to(self.device)), y.to(self.device)).backward()
        self.optimizer.step()
        return len(x)


class Hooks:
    """The hooks, armed by a script's first steps until its baseline; :meth:`on` and :meth:`off` switch them."""

    def __init__(self, folder: str):
        self._owners = [(DataLoader, "__init__"), (DataLoader, "__iter__"), (torch.Tensor, "backward")]
        self._plain = [getattr(*one) for one in self._owners]
        sys.path.insert(0, str(launch.HOOKS))
        from gpuworkshop_hooks import arm, looking, records, timed

        launch._request(Path(folder), time.time(), None, ["baseline"])
        records.hello(folder)
        arm.arm(torch, folder)
        self._session, self._first = arm.session, (looking.Looking, timed.WarmUp)

    def steady(self, script: Script) -> None:
        """Take the script's steps until the hooks time plain ones, and go on with that without end."""
        while isinstance(self._session.phase, self._first):
            script.step(timing.Clock())
        self._session.phase.wanted = self._session._deadline = sys.maxsize
        owner = next(kind for kind in type(script._batches).__mro__ if "__next__" in vars(kind))
        self._owners.append((owner, "__next__"))
        self._plain.append(owner.__next__.__wrapped__)
        self._hooked = [getattr(*one) for one in self._owners]
        self._after = dict(torch_optimizer._global_optimizer_post_hooks)

    def on(self) -> None:
        """As in a watched script."""
        self._put(self._hooked)
        torch_optimizer._global_optimizer_post_hooks.update(self._after)

    def off(self) -> None:
        """As in a script that nobody watches."""
        self._put(self._plain)
        torch_optimizer._global_optimizer_post_hooks.clear()

    def _put(self, methods: list) -> None:
        for (owner, name), method in zip(self._owners, methods, strict=True):
            setattr(owner, name, method)


def main() -> None:
    """Print the cost, and fail above the goal."""
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--seconds", type=float, default=40.0)
    asked.add_argument("--layers", type=int, default=16)
    args = asked.parse_args()
    torch.set_num_threads(1)
    device = default_device()
    with tempfile.TemporaryDirectory() as folder:
        hooks = Hooks(folder)
        hooked = Script("with hooks", args.layers, device)
        hooks.steady(hooked)
        plain = Script("without", args.layers, device)
        hooked.switch, plain.switch = hooks.on, hooks.off
        plan = timing.Plan(block_seconds=0.03, min_rounds=40, width=0.001, budget_seconds=args.seconds)
        clock = timing.Clock(time.thread_time) if device == "cpu" else timing.clock_for(device)
        rounds = timing.in_turn([plain, hooked], clock, plan)
        found = rounds.compare("with hooks", "without")
        step = 32 / rounds.rate("without").value
        print(f"step without hooks {1e3 * step:.3f} ms, {device}; without over with: {found.ratio:.4f}")
        print(f"cost {1e6 * step * (found.ratio - 1):.1f} us a step: {found.ratio - 1:.2%}")
        print(f"95% interval {found.low - 1:.2%} to {found.high - 1:.2%} over {found.pairs} pairs, goal {GOAL:.0%}")
        sys.stdout.flush()
        raise SystemExit(found.high - 1 > GOAL)


if __name__ == "__main__":
    main()
