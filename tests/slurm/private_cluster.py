"""A real Slurm of three nodes with fake cards on this machine, for tests: everything lies in one folder.

munged, slurmctld and three slurmd run from Debian's packages, as root, without systemd; nothing in /etc is touched.
A node is a slurmd with a host name of its own (a UTS namespace) and its own /etc/hosts. Its cards are device nodes
with NVIDIA's major number and no driver behind them: Slurm counts and assigns them, and no program can use one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "unshare")
NODES = {"b200-n1": "b200", "b200-n2": "b200", "rtx-n1": "rtx"}
PARTITIONS = {
    "b200-devel": ("b200-n[1-2]", "04:00:00"),
    "b200-batch": ("b200-n[1-2]", "24:00:00"),
    "rtx-devel": ("rtx-n1", "04:00:00"),
    "rtx-batch": ("rtx-n1", "24:00:00"),
}
CPUS, MEMORY_MB, CARDS, NVIDIA_MAJOR = 64, 512_000, 8, 195
NODE_IS_UP, PATIENCE = 20.0, 5.0
"""Seconds: until all nodes must be idle; that a daemon gets to end."""

CONF = """\
ClusterName={name}
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={at}/run/munge.socket
StateSaveLocation={at}/state
SlurmdSpoolDir={at}/spool-%n
SlurmctldPidFile={at}/run/slurmctld.pid
SlurmdPidFile={at}/run/slurmd-%n.pid
SlurmctldLogFile={at}/log/slurmctld.log
SlurmdLogFile={at}/log/slurmd-%n.log
{isolation}
JobAcctGatherType=jobacct_gather/linux
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=1000
GresTypes=gpu
EnforcePartLimits=ALL
AccountingStorageType=accounting_storage/none
SchedulerParameters=batch_sched_delay=0,sched_min_interval=1000,bf_interval=2
KillWait=5
"""
CGROUPS = "ProctrackType=proctrack/cgroup\nTaskPlugin=task/cgroup"
PLAIN = "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none"
CGROUP_CONF = """\
CgroupPlugin=cgroup/v1
CgroupAutomount=yes
ConstrainDevices=yes
ConstrainCores=no
ConstrainRAMSpace=no
"""


class Job(NamedTuple):
    """A finished job: Slurm's word for how it ended, its exit code (`0:0`), and what it wrote."""

    id: str
    state: str
    exit: str
    output: str


def missing() -> str:
    """Which programs a cluster lacks here, in words; "" for none."""
    path = os.environ.get("PATH", "") + ":/usr/sbin"
    lacking = [program for program in PROGRAMS if not shutil.which(program, path=path)]
    if not lacking and os.geteuid() != 0:
        return "root, to start the daemons"
    return ", ".join(lacking)


class Cluster:
    """The cluster in ``folder``. As a context it is up inside and gone afterwards; RuntimeError if it cannot start."""

    def __init__(self, folder: Path, *, name: str = "workshop", environment: Path | None = None):
        self.at, self.name = folder, name
        self.took: dict[str, float] = {}
        """Seconds until it was up, and until its first job was done."""
        self.env = os.environ | {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "MODULEPATH": str(HERE / "modules"),
            "STUB_CUDA": str(folder / "cuda"),
            "STUB_CONDA": str(HERE / "conda"),
            "STUB_ENVIRONMENT": str(environment or ""),
        }

    def __enter__(self) -> Cluster:
        self.began = time.monotonic()
        self._write()
        try:
            self._start()
            self.took["up"] = time.monotonic() - self.began
            first = self.at / "first.sbatch"
            first.write_text(
                f"#!/bin/bash\n#SBATCH --partition={next(iter(PARTITIONS))} --output=/dev/null\nhostname\n"
            )
            self.run(first, cwd=self.at, seconds=30)
            self.took["first job done"] = time.monotonic() - self.began
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.ask("scancel", "--user", "root")
        left = {int(file.read_text()) for file in (self.at / "run").glob("*.pid") if file.read_text().strip()}
        for kill in (signal.SIGTERM, signal.SIGKILL):  # a slurmd without its controller ignores the first
            left = {process for process in left if _told(process, kill)}
            _wait_for(lambda left=left: not any(map(_lives, left)), PATIENCE)
        for node in NODES:
            for folder in sorted(Path("/sys/fs/cgroup").glob(f"*/slurm_{node}/**/"), reverse=True):
                with contextlib.suppress(OSError):
                    folder.rmdir()

    def ask(self, *command: str, cwd: Path | None = None, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command as a user of the cluster would."""
        return subprocess.run(command, env=self.env, cwd=cwd, timeout=timeout, capture_output=True, text=True)

    def run(self, script: Path, *options: str, cwd: Path, seconds: float = 120) -> Job:
        """Submit a script and wait for its end. RuntimeError if sbatch refuses it or it takes too long."""
        sent = self.ask("sbatch", "--parsable", *options, str(script), cwd=cwd)
        if sent.returncode:
            raise RuntimeError(f"sbatch refused {script.name}: {sent.stderr.strip()}")
        number = sent.stdout.strip().partition(";")[0]
        if not _wait_for(lambda: self.facts(number)["JobState"] not in UNFINISHED, seconds):
            self.ask("scancel", number)
            raise RuntimeError(f"{script.name} did not end within {seconds:.0f} s: {self.facts(number)}")
        facts = self.facts(number)
        files = sorted({facts.get("StdOut", ""), facts.get("StdErr", "")} - {""})
        text = "".join(Path(file).read_text() for file in files if Path(file).is_file())
        return Job(number, facts["JobState"], facts["ExitCode"], text)

    def facts(self, job: str) -> dict[str, str]:
        """What `scontrol show job` says."""
        said = self.ask("scontrol", "show", "job", "-o", job).stdout
        return dict(re.findall(r"(\w+)=(\S*)", said))

    # Starting

    def _write(self) -> None:
        for folder in ("state", "log", "run", "gpu", "cuda", *(f"spool-{node}" for node in NODES)):
            (self.at / folder).mkdir(parents=True)
        self.at.chmod(0o755)
        with open(self.at / "munge.key", "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as key:
            key.write(os.urandom(1024))
        for number in range(CARDS):
            os.mknod(self.at / f"gpu/nvidia{number}", 0o666 | 0o020000, os.makedev(NVIDIA_MAJOR, number))
            (self.at / f"gpu/nvidia{number}").chmod(0o666)
        addresses = {node: f"127.0.0.{number}" for number, node in enumerate(NODES, 11)}
        hosts = "".join(f"{address} {node}\n" for node, address in addresses.items())
        (self.at / "hosts").write_text(Path("/etc/hosts").read_text() + hosts)
        cgroups = os.access("/sys/fs/cgroup/devices", os.W_OK)
        (self.at / "cgroup.conf").write_text(CGROUP_CONF if cgroups else "")
        (self.at / "slurm.conf").write_text(self._conf(addresses, CGROUPS if cgroups else PLAIN))
        lines = [
            f"NodeName={node} Name=gpu Type={kind} File={self.at}/gpu/nvidia[0-{CARDS - 1}]"
            for node, kind in NODES.items()
        ]
        (self.at / "gres.conf").write_text("\n".join(["AutoDetect=off", *lines, ""]))

    def _conf(self, addresses: dict[str, str], isolation: str) -> str:
        ports = iter(_free_ports(1 + len(NODES)))
        text = CONF.format(name=self.name, at=self.at, port=next(ports), isolation=isolation)
        sockets = f"CPUs={CPUS} Boards=1 SocketsPerBoard=2 CoresPerSocket={CPUS // 2} ThreadsPerCore=1"
        for node, kind in NODES.items():
            where = f"NodeHostname={node} NodeAddr={addresses[node]} Port={next(ports)}"
            text += f"NodeName={node} {where} {sockets} RealMemory={MEMORY_MB} Gres=gpu:{kind}:{CARDS}"
            text += f" Feature={kind}\n"
        for partition, (nodes, longest) in PARTITIONS.items():
            text += f"PartitionName={partition} Nodes={nodes} MaxTime={longest} DefaultTime=00:10:00 State=UP\n"
        return text

    def _start(self) -> None:
        run = self.at / "run"
        self._daemon(
            "munged",
            "--force",
            f"--key-file={self.at}/munge.key",
            f"--socket={run}/munge.socket",
            f"--pid-file={run}/munged.pid",
            f"--log-file={self.at}/log/munged.log",
            f"--seed-file={run}/munge.seed",
        )
        self._daemon("slurmctld", "-f", self.env["SLURM_CONF"])
        pid = run / "slurmctld.pid"
        if not _wait_for(lambda: pid.is_file() and pid.read_text().strip() and _lives(int(pid.read_text())), PATIENCE):
            raise RuntimeError(f"slurmctld does not run: {self._log('slurmctld')}")
        for node in NODES:
            hosts = f"hostname {node}; mount --bind {self.at}/hosts /etc/hosts"
            slurmd = f"{hosts}; exec slurmd -f {self.env['SLURM_CONF']} -N {node}"
            self._daemon("unshare", "--uts", "--mount", "--propagation", "private", "bash", "-c", slurmd)
        if not _wait_for(lambda: self._idle() == len(NODES), NODE_IS_UP):
            raise RuntimeError(f"the nodes did not come up: {self._log('slurmctld')}")

    def _daemon(self, *command: str) -> None:
        env = self.env | {"PATH": self.env["PATH"] + ":/usr/sbin"}
        with open(self.at / "log/start.log", "a") as log:
            ended = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=30)
        if ended.returncode:
            raise RuntimeError(f"{command[0]} did not start: {self._log('start')}")

    def _idle(self) -> int:
        return len(set(self.ask("sinfo", "-h", "-N", "-t", "idle", "-o", "%N", timeout=10).stdout.split()))

    def _log(self, name: str) -> str:
        file = self.at / f"log/{name}.log"
        return " | ".join(file.read_text().splitlines()[-6:]) if file.is_file() else "no log"


UNFINISHED = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        open_now = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in open_now:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in open_now]


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _told(process: int, number: int) -> bool:
    """Send a signal to a process; whether it was still there."""
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return False
    return True


def _wait_for(ready, seconds: float) -> bool:
    """Whether something became so within this time; it is asked each fifth of a second."""
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True
