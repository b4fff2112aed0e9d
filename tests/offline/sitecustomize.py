"""With this folder on PYTHONPATH no Python that starts reaches another machine, nor do its children.

A connection elsewhere, or a look-up of a name, is refused as if there were no network, and written into the file that
`OFFLINE_LOG` names, so that nobody's `except` can hide it. Sockets of this machine are left alone.
"""

import os
import socket
import sys
import traceback

LOOPBACK = ("127.", "::1", "localhost", "0.0.0.0", "::ffff:127.")


def _is_here(host) -> bool:
    """Whether this is the machine itself."""
    if not host or not isinstance(host, str):
        return True
    return host.lower().startswith(LOOPBACK) or host in _own_names()


def _own_names() -> set[str]:
    """What this machine is called, and its addresses by that name."""
    if not _own:
        _own.add(socket.gethostname())  # first: the look-up below comes here again
        try:
            _own.update(found[4][0] for found in socket.getaddrinfo(socket.gethostname(), None))
        except OSError:
            pass
    return _own


_own: set[str] = set()


def _host(event: str, arguments: tuple):
    """The machine that an event of the interpreter is about; None for another event, and for a Unix socket."""
    if event in ("socket.connect", "socket.sendto"):
        address = arguments[1]
        return address[0] if isinstance(address, tuple) else None
    if event in ("socket.getaddrinfo", "socket.gethostbyname"):
        return arguments[0]
    return None


def _refuse(event: str, arguments: tuple) -> None:
    if not event.startswith("socket.") or _is_here(host := _host(event, arguments)):
        return
    calls = " < ".join(f"{os.path.basename(one.filename)}:{one.lineno}" for one in traceback.extract_stack()[-2:-8:-1])
    if log := os.environ.get("OFFLINE_LOG"):
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{event} to {host!r} from {calls}\n")
    raise OSError(101, f"{event} to {host!r} is refused: the course needs no network")


sys.addaudithook(_refuse)
