"""With this folder on PYTHONPATH, Linux's Python looks like that of macOS on Apple silicon: `make macos`.

What macOS lacks is taken away, and what it does in another way is done so: how poll() tells a closed socket, how long
a socket's path may be, how much a pair of sockets holds, how processes start. What cannot be seen here: Apple's
compiler, its C library, forks beside Objective-C, the file system. `sys.platform` stays, as torch and the standard
library read it. The kernels are this machine's: they are found and chosen as on a Mac, and compute as here.
"""

import asyncio  # noqa: F401 - like tempfile it chooses when it is imported, and what it chooses is not looked at here
import builtins
import ctypes
import importlib
import io
import multiprocessing.context
import os
import platform
import re
import resource
import select
import socket
import subprocess
import sys
import tempfile  # noqa: F401
from functools import wraps
from pathlib import Path

MISSING = {  # module -> names that macOS's Python does not have
    "os": "memfd_create MFD_CLOEXEC sched_getaffinity sched_setaffinity pidfd_open eventfd splice copy_file_range "
    "posix_fadvise posix_fallocate sched_getparam getresuid unshare setns pipe2 fdatasync O_DIRECT P_PIDFD",
    "mmap": "MADV_HUGEPAGE MADV_NOHUGEPAGE MADV_MERGEABLE MADV_DONTFORK MAP_POPULATE",
    "signal": "pidfd_send_signal SIGRTMIN SIGRTMAX SIGPWR SIGSTKFLT SIGPOLL sigtimedwait sigwaitinfo",
    "resource": "prlimit RLIMIT_RTTIME RUSAGE_THREAD",
    "fcntl": "F_SETPIPE_SZ F_ADD_SEALS",
    "select": "epoll POLLRDHUP",
    "socket": "SO_PEERCRED SOCK_CLOEXEC SOCK_NONBLOCK MSG_CMSG_CLOEXEC TCP_KEEPIDLE TCP_QUICKACK TCP_USER_TIMEOUT",
    "time": "CLOCK_BOOTTIME pthread_getcpuclockid",
}
NOT_IN_LIBC = ("prctl", "malloc_trim", "sched_getcpu", "memfd_create")
HIDDEN = re.compile(r"(/proc|/sys|/dev/shm)(/|$)")
LONGEST_PATH = 103  # bytes of a Unix socket's, with the zero behind them 104
IN_A_PAIR = 8192  # bytes that a pair of Unix sockets holds in one direction
OURS = ("folovllm", "tests", "milestones", "workshop", "__main__", "conftest", "test_", "support")

found = re.search(r"^(?:flags|Features)\s*:(.*)", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
features = found[1].split() if found else []
CPUS = os.cpu_count() or 1
TOLD = {  # what these commands print; the CPU's features are those of the kernels' library, so that it is compiled once
    ("xcode-select", "-p"): "/Library/Developer/CommandLineTools\n",
    ("sysctl", "-n", "machdep.cpu.brand_string"): "Apple M1\n",
    ("sysctl", "-n", "hw.perflevel0.physicalcpu"): f"{CPUS}\n",
    ("sysctl", "hw.optional.arm"): "".join(f"hw.optional.arm.{name}: 1\n" for name in features),
}
os.environ.setdefault("CXX", "g++")
if platform.machine() == "x86_64":
    os.environ.setdefault("FOLOVLLM_CPU_TARGET", "-march=native -mprefer-vector-width=512")
os.environ.setdefault("FOLOVLLM_CPU_BF16", "no")  # an M1 has no such units, and torch would ask this CPU

for module, names in MISSING.items():
    for name in names.split():
        vars(importlib.import_module(module)).pop(name, None)


def called_by(names):
    return sys._getframe(2).f_globals.get("__name__", "").startswith(names)


def told_to_ours(owner, name, answer):
    """Others, torch among them, would look for files that a Mac has."""
    real = getattr(owner, name)
    setattr(owner, name, lambda: answer if called_by(OURS) else real())


told_to_ours(platform, "system", "Darwin")
told_to_ours(platform, "machine", "arm64")
told_to_ours(platform, "processor", "arm")
told_to_ours(os, "cpu_count", CPUS + 4)  # and four slow ones, for which torch has no threads


def hides(owner, name):
    real = getattr(owner, name)

    @wraps(real)
    def call(path=".", *args, **more):
        given = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
        if HIDDEN.match(given) and not called_by("psutil"):  # which asks macOS in another way
            raise FileNotFoundError(2, "No such file or directory (this is as on macOS)", given)
        return real(path, *args, **more)

    setattr(owner, name, call)


for name in ("stat", "lstat", "listdir", "scandir", "readlink", "open", "access"):
    hides(os, name)
hides(builtins, "open")
io.open = builtins.open

real_run, real_function, real_limit = subprocess.run, ctypes.CDLL.__getattr__, resource.setrlimit
real_bind, real_connect, real_pair = socket.socket.bind, socket.socket.connect, socket.socketpair


def run(command, *args, **more):
    answer = TOLD.get(tuple(command)) if isinstance(command, tuple) else None
    if answer is None:
        return real_run(command, *args, **more)
    return subprocess.CompletedProcess(command, 0, answer if more.get("text") else answer.encode())


def function(library, name):
    if name in NOT_IN_LIBC:
        raise AttributeError(f"{name}: symbol not found (this is as on macOS)")
    return real_function(library, name)


def setrlimit(kind, limits):
    if kind != resource.RLIMIT_AS:  # which is taken, and not kept
        real_limit(kind, limits)


def fits(call):
    def checked(self, address):
        if self.family == socket.AF_UNIX and (path := os.fsencode(address)):
            if path.startswith(b"\0"):
                raise FileNotFoundError(2, "No such file or directory (there are no abstract sockets on macOS)")
            if len(path) > LONGEST_PATH:
                raise OSError("AF_UNIX path too long")
        return call(self, address)

    return checked


def socketpair(*args, **more):
    pair = real_pair(*args, **more)
    for each in pair:
        if each.family == socket.AF_UNIX:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, IN_A_PAIR // 2)  # Linux takes twice of it
    return pair


class Poll:
    """XNU's poll() tells that a socket was closed to whom asks for what can be read, or for POLLHUP."""

    CLOSED = 0x2000  # POLLRDHUP
    real = select.poll

    def __init__(self):
        self.asked, self.inner = {}, Poll.real()

    def register(self, file, events=select.POLLIN | select.POLLPRI | select.POLLOUT):
        number = file if isinstance(file, int) else file.fileno()
        self.asked[number] = events
        self.inner.register(number, events | (Poll.CLOSED if events & (select.POLLIN | select.POLLHUP) else 0))

    modify = register

    def unregister(self, file):
        number = file if isinstance(file, int) else file.fileno()
        del self.asked[number]
        self.inner.unregister(number)

    def poll(self, timeout=None):
        found = []
        for number, events in self.inner.poll(timeout):
            ended = select.POLLHUP if events & (Poll.CLOSED | select.POLLHUP) else 0
            if self.asked[number] and (events := events & ~Poll.CLOSED | ended):
                found.append((number, events))
        return found


subprocess.run, ctypes.CDLL.__getattr__, resource.setrlimit = run, function, setrlimit
socket.socket.bind, socket.socket.connect, socket.socketpair = fits(real_bind), fits(real_connect), socketpair
select.poll = Poll
multiprocessing.context._default_context._default_context = multiprocessing.get_context("spawn")
