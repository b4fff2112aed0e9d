"""A program of its own, standard library only: ask each place how much room it has, and print an answer as it comes.

Its parent must never wait for a file server that is gone, so everything that touches a disk happens here, each place
in a thread of its own. The one argument is JSON: {"places": {NAME: PATH}, "seconds": NUMBER}. Each answer is a line
of JSON, and the last line is null.
"""

import json
import os
import subprocess
import sys
import threading
import time

_printing = threading.Lock()


def say(answer):
    """Print one answer whole."""
    with _printing:
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def ask(name, path, mounts, seconds):
    """The room at one place: of the nearest folder above it where it does not exist yet."""
    found = {"place": name, "path": path, "exists": os.path.exists(path)}
    while not os.path.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    try:
        room = os.statvfs(path)
        found.update(total=room.f_blocks * room.f_frsize, free=room.f_bavail * room.f_frsize)
        found.update(files=room.f_files, files_free=room.f_favail, writable=os.access(path, os.W_OK | os.X_OK))
        found["mount"], found["filesystem"] = mounted(os.path.realpath(path), mounts)
    except OSError as error:
        found["problem"] = error.strerror or type(error).__name__
    say(found)
    if found.get("filesystem") == "lustre":
        quota(("lfs", "quota", "-q", "-u", str(os.getuid()), path), seconds)


def mounted(path, mounts):
    """The mount point that holds a path, and the kind of its file system."""
    holding = [one for one in mounts if path == one[0] or path.startswith(one[0].rstrip("/") + "/")]
    return max(holding, key=lambda one: len(one[0]), default=("", ""))


def read_mounts():
    """All mount points with their kind, the latest last; none where the system does not list them."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
            lines = [line.split() for line in file]
    except OSError:
        return []
    return [(fields[1].replace("\\040", " "), fields[2]) for fields in reversed(lines)]


def quota(command, seconds):
    """What a quota command prints; nothing where it is missing or silent. Over quota, it fails and prints."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=seconds
        )
    except (OSError, subprocess.SubprocessError):
        return
    if done.stdout.strip():
        say({"quota": command[0], "path": command[-1], "text": done.stdout.decode(errors="replace")})


def main(request):
    """Ask all places at once; stop when the time is over, whoever has not answered."""
    seconds, mounts = request["seconds"], read_mounts()
    work = [(ask, (name, path, mounts, seconds)) for name, path in request["places"].items()]
    work.append((quota, (("quota", "-w", "-p"), seconds)))
    threads = [threading.Thread(target=target, args=args, daemon=True) for target, args in work]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    say(None)
    os._exit(0)  # a thread may be stuck for good


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
