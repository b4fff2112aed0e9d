"""Puts the hooks onto torch once it is imported: a few methods that pass everything on, and one hook after a step."""

from __future__ import annotations

import atexit
import functools
import json
import os
from collections.abc import Callable
from typing import Any

from gpuworkshop_hooks import patches, places, records
from gpuworkshop_hooks.looking import Looking
from gpuworkshop_hooks.noting import Notes
from gpuworkshop_hooks.session import Session

session: Session | None = None


def arm(torch: Any, folder: str) -> None:
    """Watch this process from here on."""
    global session
    places.outside_of_torch(torch.__file__)
    with open(os.path.join(folder, "request.json"), encoding="utf-8") as file:
        request = json.load(file)
    session = Session(torch, request)
    notes = Notes(session)
    session.phase = Looking(session, notes)
    records.write("torch", version=str(torch.__version__), cuda_visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    _loaders(torch, session)
    _steps(torch, session)
    _scaler(torch, session, notes)
    notes.begin()
    torch.gpuworkshop_step = session.by_hand
    atexit.register(session.at_exit)
    os.register_at_fork(after_in_child=functools.partial(_forked, session))


def _forked(session: Session) -> None:
    """A forked child, such as a loader's worker: what was put on for the first steps is taken off."""
    session.off = session.forked = True
    records.forked()
    patches.take_off()


def _loaders(torch: Any, session: Session) -> None:
    from torch.utils.data import DataLoader
    from torch.utils.data import dataloader as module

    made, begun = DataLoader.__init__, DataLoader.__iter__
    followed: dict[type, Callable] = {}

    @functools.wraps(made)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        _safely(session, lambda: session.feed_of(self, places.here()))

    @functools.wraps(begun)
    def __iter__(self: Any) -> Any:
        if session.off:
            return begun(self)
        feed = session.feed_of(self)
        iterator = feed.started(lambda: begun(self))
        _safely(session, lambda: _follow(type(iterator), followed))
        try:
            iterator._gpuworkshop_feed = feed
        except AttributeError:  # an iterator with slots
            pass
        return iterator

    def _follow(kind: type, followed: dict) -> None:
        owner = next((one for one in kind.__mro__ if "__next__" in vars(one)), None)
        if owner is None or owner in followed:
            return
        original = followed[owner] = owner.__next__

        @functools.wraps(original)
        def __next__(self: Any) -> Any:
            feed = getattr(self, "_gpuworkshop_feed", None)
            if feed is None or session.off:
                return original(self)
            return feed.next(self, original)

        owner.__next__ = __next__

    DataLoader.__init__, DataLoader.__iter__ = __init__, __iter__
    several = getattr(module, "_MultiProcessingDataLoaderIter", None)
    ended = getattr(several, "_shutdown_workers", None)
    if ended is not None:

        @functools.wraps(ended)
        def _shutdown_workers(self: Any) -> Any:
            feed = getattr(self, "_gpuworkshop_feed", None)
            if feed is not None and feed.replaying:  # stopped workers would not hear that they are to end
                feed.resume()
            return ended(self)

        several._shutdown_workers = _shutdown_workers


def _steps(torch: Any, session: Session) -> None:
    from torch.optim import Optimizer
    from torch.optim import optimizer as module

    made = Optimizer.__init__

    @functools.wraps(made)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        _safely(session, lambda: session.optimizer_made(self, places.here()))

    Optimizer.__init__ = __init__

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        session.stepped(optimizer)

    module.register_optimizer_step_post_hook(after)


def _scaler(torch: Any, session: Session, notes: Notes) -> None:
    """A step that the scaler leaves out, because of an overflow, is a step too."""
    try:
        from torch.amp.grad_scaler import GradScaler
    except ImportError:
        from torch.cuda.amp.grad_scaler import GradScaler
    original, scale = GradScaler.step, GradScaler.scale

    @functools.wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = session.hooked
        out = original(self, optimizer, *args, **kwargs)
        if session.hooked == before:
            session.stepped(getattr(optimizer, "optimizer", optimizer))
        return out

    @functools.wraps(scale)
    def scaled(self: Any, outputs: Any) -> Any:
        notes.scaling(self, outputs)
        return scale(self, outputs)

    GradScaler.step, GradScaler.scale = step, scaled


def _safely(session: Session, do: Callable[[], Any]) -> None:
    try:
        do()
    except Exception as error:
        session.give_up(error)
