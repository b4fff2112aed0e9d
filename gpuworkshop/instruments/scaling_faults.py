"""What went wrong among ranks, in one line: PyTorch's words come from the rank that noticed, seldom from the cause."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from typing import NamedTuple

from gpuworkshop.child import ChildFailed

_ECHOES = ("connection closed by peer", "connection reset by peer", "broken pipe", "remote process exited")


class Fault(NamedTuple):
    """Words that PyTorch, gloo or NCCL use, and what they mean; ``{0}`` is what the pattern caught."""

    pattern: str
    says: str


FAULTS = (
    Fault(
        r"use_libuv was requested",
        "torchrun does not start on native Windows here: use WSL2, or set USE_LIBUV=0, or skip several ranks",
    ),
    Fault(
        r"Unable to find address for: (\S+)",
        "GLOO_SOCKET_IFNAME must name one interface and says {0}: unset it, or take one of {interfaces}",
    ),
    Fault(
        r"EADDRINUSE|[Aa]ddress already in use",
        "the port{port} is in use: an older rank may still live, or another job has it; "
        "start with torchrun --standalone, which takes a free one",
    ),
    Fault(
        r"marked? (?:as )?ready twice|Expected to mark a variable ready only once",
        "a parameter was used twice in one backward: with checkpointing say use_reentrant=False, "
        "or DistributedDataParallel(..., static_graph=True)",
    ),
    Fault(
        r"finished reduction in the prior iteration",
        "parameters of the model had no part in the loss{unused}: find them with TORCH_DISTRIBUTED_DEBUG=DETAIL and "
        "take them out, or use them; find_unused_parameters=True costs a search in every step",
    ),
    Fault(
        r"Expected more than 1 value per channel",
        "batch normalization cannot train on a batch of 1 in a rank: give each rank 2 samples or more",
    ),
    Fault(
        r"ended with status 0 and no result",
        "every rank ended without a word of what it did: does the script end its process itself, with os._exit?",
    ),
    Fault(
        r"Duplicate GPU detected",
        "two ranks have the same card: one rank a card (torchrun starts them: one Slurm task a node)",
    ),
    Fault(
        r"[Tt]imed out|Timeout\(ms\)|watchdog .*timeout",
        "a rank did not come to a collective in time: the ranks had different numbers of batches (equal shares, "
        "drop_last=True, or model.join()), or one hangs. {nccl}",
    ),
    Fault(r"No module named '?torch\.?distributed", "this PyTorch comes without torchrun: install a usual build"),
    Fault(r"No module named '?torch'?", "PyTorch is not installed for this Python: several ranks need it"),
)

NCCL = (
    "On cards, as a test: NCCL_P2P_DISABLE=1, and NCCL_DEBUG=INFO to see where; then compare a tensor copied from "
    "card 0 to 1 with the original"
)

PEERS = (
    "a rank ended while others still waited for it: it had fewer batches (equal shares, drop_last=True, or "
    "model.join()), or it died"
)


def explained(failed: ChildFailed, patience: float) -> ChildFailed:
    """The same failure with a line that says what it means; the log stays. Bad input stays as it is."""
    if failed.bad_input:
        return failed
    return ChildFailed(in_one_line(str(failed), failed.log, patience), failed.log)


def in_one_line(
    message: str,
    log: str = "",
    patience: float = 0.0,
    interfaces: Callable[[], list[tuple[int, str]]] = socket.if_nameindex,
) -> str:
    """What a failure of ranks means: PyTorch's words explained, the signal a rank died of, or the message itself."""
    if "no result in the time allowed" in message:
        return f"no rank said anything for {patience:.0f} s: given up, and every rank ended. {NCCL}"
    for text in (message, log):
        for fault in FAULTS:
            if found := re.search(fault.pattern, text):
                return _filled(fault, found, text, interfaces)
    if dead := how_a_rank_died(log):
        return dead
    if is_echo(message + log):
        return PEERS
    return message


def is_echo(words: str) -> bool:
    """Whether an error only says that another rank is gone."""
    return any(echo in words.lower() for echo in _ECHOES)


def how_a_rank_died(log: str) -> str:
    """The first rank that torchrun saw die of a signal or with a status, in words; "" if it does not say."""
    causes = log.partition("Root Cause")[2] or log
    found = re.search(r"rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", causes, re.DOTALL)
    if not found:
        return ""
    rank, status = found[1], int(found[2])
    if status >= 0:
        return f"rank {rank} ended with status {status}, and the others were ended with it"
    hint = " (host memory used up?)" if status == -9 else ""
    return f"rank {rank} was ended by signal {-status}{hint}, and the others were ended with it"


def _filled(fault: Fault, found: re.Match, text: str, interfaces: Callable[[], list[tuple[int, str]]]) -> str:
    port = re.search(r"port:? ?(\d+)", text)
    unused = re.search(r"did not receive grad[^:]*: ([\w., ]+?)(?:\.\s|$|\n)", text)
    return fault.says.format(
        *(group or "" for group in found.groups()),
        nccl=NCCL,
        port=f" {port[1]}" if port else "",
        unused=f" ({unused[1]})" if unused else "",
        interfaces=", ".join(name for _, name in interfaces()) if "{interfaces}" in fault.says else "",
    )
