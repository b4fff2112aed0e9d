"""Run something in a child process, here or behind a launcher: progress, records, a result, and a sure end.

Usage from the parent::

    result = child.run("gpuworkshop.instruments.starve:in_child", request, type=StarveResult,
                       launcher=("srun", "--gres=gpu:1"), progress=child.Bar("starve", sys.stderr))

The child runs ``python -m gpuworkshop.child MODULE:FUNCTION``. Its request is one JSON line on stdin, and stdin
stays open: when it closes, the parent is gone and the child ends itself and everything it started. Messages come
back as JSON lines on stdout; whatever the measured code prints is kept apart and shown when something fails.
The child has its own process group, which is ended when the parent leaves :func:`run`, for whatever reason.
"""

from __future__ import annotations

import importlib
import math
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec

PACKAGE = __package__ or "gpuworkshop"
TAIL_LINES = 40
LONGEST_WORDS = 300
"""Characters kept of a line that is no message of ours."""
LONGEST_MESSAGE = 1 << 24
"""Bytes of one message; a launcher that never ends its line must not fill the memory."""
SHORT = 1500
"""Characters of a message, and of its trace, where several children write into one pipe: 4096 bytes are never mixed."""
PATIENCE = 0.5
"""Seconds between asking a child to end and ending it."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """How far a child is: ``share`` from 0 to 1 and what it is doing."""

    share: float
    text: str = ""


class Kept(msgspec.Struct, frozen=True, tag="record"):
    """A record that is worth keeping even if the child does not reach its end."""

    value: msgspec.Raw


class Result(msgspec.Struct, frozen=True, tag="result"):
    """The child's answer."""

    value: msgspec.Raw


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    """The child's own exception: type ("" for bad input, whose message says it all), one line, where it came from."""

    kind: str
    message: str
    trace: str = ""


class ChildFailed(RuntimeError):
    """A child ended without a result. ``str()`` is one line, ``log`` the end of what the child printed.

    ``bad_input``: what was asked for cannot be measured, and the message says why.
    """

    def __init__(self, message: str, log: str = "", bad_input: bool = False):
        super().__init__(message)
        self.log, self.bad_input = log, bad_input
        if log and not bad_input:
            self.add_note(log)  # so that a traceback in a notebook shows it


class Deadline:
    """When a child is given up, as seconds from now; whoever hears its progress may move it for each step."""

    def __init__(self, seconds: float | None):
        self.move(seconds)

    def move(self, seconds: float | None) -> None:
        """Give up ``seconds`` from now; None: never."""
        self._at = math.inf if seconds is None else time.monotonic() + seconds

    @property
    def passed(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self._at


class Tell:
    """What measuring code may say while it runs. This one says nothing."""

    def progress(self, share: float, text: str = "") -> None:
        """Report how far the work is: ``share`` from 0 to 1."""

    def record(self, value: Any) -> None:
        """Hand over a finished record at once."""

    def part(self, start: float, end: float) -> Tell:
        """A view of this progress for a step that takes the share from ``start`` to ``end``."""
        return _Part(self, start, end)


class _Part(Tell):
    def __init__(self, whole: Tell, start: float, end: float):
        self._whole, self._start, self._end = whole, start, end

    def progress(self, share: float, text: str = "") -> None:
        self._whole.progress(self._start + share * (self._end - self._start), text)

    def record(self, value: Any) -> None:
        self._whole.record(value)


def run(
    target: str,
    request: Any,
    *,
    type: type,
    launcher: Sequence[str] = (),
    progress: Callable[[Progress], None] | None = None,
    record: Callable[[msgspec.Raw], None] | None = None,
    timeout: float | Deadline | None = None,
    meanwhile: Callable[[], None] | None = None,
    python: str = sys.executable,
    as_argument: bool = False,
) -> Any:
    """Call ``target`` ("module:function" of this package) in a child and return its result as ``type``.

    ``launcher`` is put in front of the command (``("srun", "--gres=gpu:1")``). ``meanwhile`` is called once, here,
    while the child starts. Raises :class:`ChildFailed` when the request cannot be sent or the command not be started
    (both bad input), and with the child's own message when it fails, dies, answers with something else, or takes
    longer than ``timeout``: seconds, or a :class:`Deadline` that is moved as the child goes on. A launcher that starts
    several children, all with the same stdin, needs the request ``as_argument``: only one of them could read it there.
    """
    if isinstance(launcher, str):
        raise ChildFailed(f"launcher is one text: give its words, {tuple(launcher.split())}", bad_input=True)
    command = [*launcher, python, "-m", f"{PACKAGE}.child", target]
    said = _encoded(request)
    if as_argument:
        command.append(said.decode().strip())
    lines: queue.Queue[bytes | None] = queue.Queue()
    log: deque[str] = deque(maxlen=TAIL_LINES)
    process = _start(command)
    guard = None
    try:
        guard = _guard(process) if launcher else None
        readers = [
            threading.Thread(target=_read_messages, args=(process.stdout, lines), daemon=True),
            threading.Thread(target=_read_log, args=(process.stderr, log), daemon=True),
        ]
        for reader in readers:
            reader.start()
        _send(process, b"" if as_argument else said)
        if meanwhile is not None:
            meanwhile()
        deadline = timeout if isinstance(timeout, Deadline) else Deadline(timeout)
        answer = _listen(process, lines, log, progress, record, deadline)
        return _unpack(answer, type, process, readers, log)
    finally:
        end(process)
        if guard is not None:
            guard.communicate(b".")


def _start(command: list[str]) -> subprocess.Popen:
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        return subprocess.Popen(command, start_new_session=True, **pipes)
    except OSError as error:
        raise ChildFailed(f"could not start {command[0]!r}: {error.strerror or error}", bad_input=True) from None
    except ValueError as error:  # a zero byte in a word
        raise ChildFailed(f"could not start {command[0]!r}: {error}", bad_input=True) from None


def _guard(process: subprocess.Popen) -> subprocess.Popen:
    """What ends a launcher if this process is killed."""
    command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py")), str(process.pid)]
    nothing = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=nothing, stderr=nothing, start_new_session=True)


def _encoded(request: Any) -> bytes:
    try:
        return msgspec.json.encode(request) + b"\n"
    except (TypeError, ValueError) as error:  # a stub, or a name that is no text in this locale
        raise ChildFailed(f"what is asked for cannot be sent to a child: {error}", bad_input=True) from None


def _send(process: subprocess.Popen, request: bytes) -> None:
    try:
        process.stdin.write(request)
        process.stdin.flush()
    except BrokenPipeError:
        pass  # the child is gone already; its exit status and log tell why


def _read_messages(pipe, lines: queue.Queue) -> None:
    for line in iter(lambda: pipe.readline(LONGEST_MESSAGE), b""):
        whole = line.endswith(b"\n") or len(line) < LONGEST_MESSAGE
        lines.put(line if whole else line[:LONGEST_WORDS])
    lines.put(None)


def _read_log(pipe, log: deque[str]) -> None:
    for line in iter(lambda: pipe.readline(LONGEST_MESSAGE), b""):
        log.append(line.decode(errors="replace").rstrip()[: TAIL_LINES * LONGEST_WORDS])


def _listen(process, lines, log, progress, record, deadline: Deadline) -> Result | Failure | None:
    """Handle messages until a result, a failure, or the end of the child."""
    decoder = msgspec.json.Decoder(Progress | Kept | Result | Failure)
    while (line := _next_line(process, lines, deadline, log)) is not None:
        try:
            message = decoder.decode(line)
        except (msgspec.DecodeError, RecursionError):
            if words := line.decode(errors="replace").strip():
                log.append(words[:LONGEST_WORDS])  # a launcher's own
            continue
        if isinstance(message, Result) and progress is not None:
            progress(Progress(1.0))
        if isinstance(message, Result | Failure):
            return message
        if isinstance(message, Progress) and progress is not None:
            progress(message)
        if isinstance(message, Kept) and record is not None:
            record(message.value)
    return None


def _next_line(process, lines, deadline: Deadline, log) -> bytes | None:
    """The next message; None when the child is gone, even if processes that it left behind keep its pipe open."""
    gone = False
    while not deadline.passed:
        try:
            return lines.get(timeout=PATIENCE)
        except queue.Empty:
            if gone:
                return None
            gone = process.poll() is not None  # one more round for what is still in the pipe
    raise ChildFailed("no result in the time allowed: given up and ended", "\n".join(log))


def _unpack(answer, type, process, readers, log) -> Any:
    if isinstance(answer, Result):
        return _of_type(answer, type)
    if isinstance(answer, Failure):
        message = f"{answer.kind}: {answer.message}" if answer.kind else answer.message
        raise ChildFailed(message, answer.trace + "\n".join(log), bad_input=not answer.kind)
    status = process.wait()
    for reader in readers:
        reader.join(timeout=PATIENCE)
    raise ChildFailed(_how_it_died(status, log), "\n".join(log))


def _of_type(answer: Result, type: type) -> Any:
    try:
        return msgspec.json.decode(answer.value, type=type)
    except msgspec.DecodeError as error:
        raise ChildFailed(
            f"the child answered with something else than asked for; is another version of the kit there? ({error})"
        ) from None


def _how_it_died(status: int, log: Sequence[str]) -> str:
    last = next((line for line in reversed(log) if any(map(str.isalnum, line))), "")
    if status < 0:
        named = {number.value: number.name for number in signal.Signals}
        name = named.get(-status, f"signal {-status}")
        hint = " (host memory used up?)" if name == "SIGKILL" else ""
        return f"the measuring process was ended by {name}{hint}"
    return f"the measuring process ended with status {status} and no result" + (
        f": {last[:LONGEST_WORDS]}" if last else ""
    )


def end(process: subprocess.Popen) -> None:
    """End a process started with its own session and everything in its group; safe to call twice."""
    if process.stdin:
        try:
            process.stdin.close()
        except OSError:
            pass
    for number, patience in ((signal.SIGTERM, PATIENCE), (signal.SIGKILL, 10.0)):
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):
            break
        try:
            process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            continue
    process.poll()


class Bar:
    """A progress bar for ``progress``, the same in a terminal and under a notebook cell; drawn at its first call."""

    def __init__(self, title: str, stream: TextIO):
        self.title, self.stream, self._drawn = title, stream, None

    def __call__(self, progress: Progress) -> None:
        from tqdm.std import tqdm

        if self._drawn is None:
            shape = "{desc} |{bar:24}| {elapsed}{postfix}"
            self._drawn = tqdm(total=1.0, desc=self.title, bar_format=shape, file=self.stream, leave=False)
        self._drawn.n = min(1.0, progress.share)
        self._drawn.set_postfix_str(progress.text)
        if progress.share >= 1:
            self._drawn.close()

    def close(self) -> bool:
        """Take the bar away; whether there was one."""
        if self._drawn is not None:
            self._drawn.close()
        return self._drawn is not None


# ---------------------------------------------------------------- the child's side


class _Pipe(Tell):
    """Messages to the parent, one JSON line each."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor

    def progress(self, share: float, text: str = "") -> None:
        self.send(Progress(share, text))

    def record(self, value: Any) -> None:
        self.send(Kept(msgspec.Raw(msgspec.json.encode(value))))

    def send(self, message: Progress | Kept | Result | Failure) -> None:
        data = b"\n" + msgspec.json.encode(message) + b"\n"  # a launcher may have left a line open
        while data:
            data = data[os.write(self._descriptor, data) :]


def _take_stdin() -> int:
    """Move stdin out of the way of processes forked from here, which would close it and wait for its lock."""
    lifeline, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return lifeline


def _read_request(lifeline: int) -> bytes:
    data = b""
    while not data.endswith(b"\n") and (more := os.read(lifeline, 1 << 16)):
        data += more
    return data


def _watch_parent(lifeline: int) -> None:
    """End this process and what it started when stdin closes: nobody is waiting for the result any more."""
    while os.read(lifeline, 1 << 16):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    for worker in multiprocessing.active_children():  # behind a launcher the group is not ours; some may be stopped
        worker.kill()
    os._exit(1)


def _target(name: str) -> Callable[[Any, Tell], Any]:
    module, _, function = name.partition(":")
    if not module.startswith(PACKAGE + "."):
        raise ValueError(f"{name!r} is not a function of {PACKAGE}")
    return getattr(importlib.import_module(module), function)


def main(name: str, given: str = "") -> int:
    """The child: read one request (or take it as ``given``), call the function, write its result."""
    pipe = _Pipe(os.dup(1))
    os.dup2(2, 1)  # whatever the measured code prints goes to the log
    lifeline = _take_stdin()
    request = given.encode() or _read_request(lifeline)
    threading.Thread(target=_watch_parent, args=(lifeline,), daemon=True).start()
    try:
        value = _target(name)(msgspec.json.decode(request), pipe)
        pipe.send(Result(msgspec.Raw(msgspec.json.encode(value))))
    except Exception as error:
        message = " ".join(str(error).split()) or "no message"
        kind = "" if isinstance(error, ValueError) else type(error).__name__
        most = SHORT if given else LONGEST_MESSAGE
        pipe.send(Failure(kind, message[:most], traceback.format_exc()[-most:]))
        return 1
    return 0


if __name__ == "__main__":
    status = main(*sys.argv[1:3])
    sys.stderr.flush()
    os._exit(status)  # worker processes and driver threads must not hold up a finished measurement
