"""A fork server: one process imports torch once and forks for each program that needs it.

    python fork_server.py SOCKET MODULES            the server; it ends when its stdin does
    SHIM SOCKET -c CODE | - | -m MODULE | FILE      the client, which a folder of $PATH offers as `python`

A client sends its arguments, its folder, its environment and its three streams; the server's child takes them over and
runs the program as `python` would: PYTHONPATH and a sitecustomize.py on it count. What a module reads of the
environment as it is imported is the server's, so `serving` gives it what all of its programs share. Options of the
interpreter itself, such as -X, go to a real interpreter, and so does `-c` code that asks what is imported. A program
ends with its client, and all that it started ends with it.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# It is a shell's program and Python's at the same time: after `#!` a path may have no space. timeit repeats for seconds
# what has only to be shown to run; twice, so that it says "loops" as it does on the pages.
SHIM = """\
#!/bin/sh
'''exec' "{python}" -IS "$0" "$@"
' '''
import array, json, os, socket, sys
arguments = sys.argv[1:]
if arguments[:1] and arguments[0].startswith("-") and arguments[0] not in ("-", "-c", "-m"):
    os.execv("{python}", ["{python}", *arguments])
if any("sys.modules" in argument for argument in arguments):
    os.execv("{python}", ["{python}", *arguments])
if arguments[:2] == ["-m", "timeit"]:
    arguments[2:2] = ["-n", "2", "-r", "1"]
with socket.socket(socket.AF_UNIX) as link:
    link.connect("{address}")
    call = json.dumps({{"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}})
    link.sendmsg([len(call.encode()).to_bytes(8, "big") + call.encode()],
                 [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
    sys.exit(int(link.recv(16) or b"1"))
"""


@contextlib.contextmanager
def serving(
    folder: Path, modules: Sequence[str], environment: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Iterator[Path]:
    """A `python` in the new `folder` for programs that need `modules`, or that may; gone when the block ends.

    `environment` and `cwd` are those in which the modules are imported: what is found there must be there for all.
    """
    folder.mkdir()
    program, address = folder / "python", str(folder / "socket")
    program.write_text(SHIM.format(python=sys.executable, address=address), encoding="utf-8")
    program.chmod(0o755)
    command = [sys.executable, "-P", __file__, address, ",".join(modules)]
    with subprocess.Popen(
        command, cwd=cwd or folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            if not server.stdout.readline():
                raise RuntimeError(f"the process that imports {', '.join(modules)} ended: see its error above")
            yield program
        finally:
            server.stdin.close()


def serve(address: str, modules: str) -> None:
    """Imports `modules`, which commas separate, and takes calls until stdin is closed."""
    for name in modules.split(","):
        with contextlib.suppress(ModuleNotFoundError):  # the first milestone's tree has fewer
            importlib.import_module(name)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        threading.Thread(target=_end_with_stdin, daemon=True).start()
        print("ready", flush=True)
        while True:
            link, _ = server.accept()
            if os.fork() == 0:
                server.close()
                _answer(link)
            link.close()
            _reap()


def _end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(0)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _answer(link: socket.socket) -> None:
    """In the child: a grandchild is the program, so that its end can be waited for and told."""
    data, ancillary, _, _ = link.recvmsg(1 << 16, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    size = int.from_bytes(data[:8], "big")
    data = data[8:]
    while len(data) < size:
        data += link.recv(1 << 16)
    program = os.fork()
    if program == 0:
        os.setpgid(0, 0)
        link.close()
        streams = array.array("i")
        streams.frombytes(ancillary[0][2])
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os._exit(_run(json.loads(data)))
    for stream in array.array("i", ancillary[0][2]):  # a pipe ends when the program closes its end
        os.close(stream)
    threading.Thread(target=_end_with_client, args=(link, program), daemon=True).start()
    _, status = os.waitpid(program, 0)
    with contextlib.suppress(OSError):  # what it left behind
        os.killpg(program, signal.SIGKILL)
    with contextlib.suppress(OSError):  # the client may be gone
        link.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _end_with_client(link: socket.socket, program: int) -> None:
    """A client says nothing more: what can be read is its end, and then its program's and all that this started."""
    with contextlib.suppress(OSError):
        link.recv(1)
        os.killpg(program, signal.SIGKILL)


def _run(call: dict[str, Any]) -> int:
    os.chdir(call["folder"])
    os.environ.clear()
    os.environ.update(call["environment"])
    # The program's own, to its end: those of the server believe that they can seek where its own output is a file.
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    code = 1
    try:
        _become(os.environ)
        _program(call["arguments"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        # As at an interpreter's end: threads are waited for, temporary folders go.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
    return code


def _become(environment: Mapping[str, str]) -> None:
    """What an interpreter reads of its environment as it starts."""
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    mine = [folder for folder in environment.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[:] = [*mine, *(folder for folder in sys.path if folder not in mine)]
    sys.modules.pop("__mp_main__", None)  # multiprocessing's name for this file
    importlib.invalidate_caches()
    if any((Path(folder) / "sitecustomize.py").is_file() for folder in mine):
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")


def _program(arguments: list[str]) -> None:
    kind, *rest = arguments or ["-"]
    sys.path[0:0] = [os.path.dirname(kind) if kind.endswith(".py") else ""]
    if kind == "-m":
        sys.argv = ["-m", *rest[1:]]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind in ("-c", "-"):
        code = rest.pop(0) if kind == "-c" else sys.stdin.read()
        sys.argv = [kind, *rest]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(code, "<string>" if kind == "-c" else "<stdin>", "exec"), main.__dict__)
    else:
        sys.argv = arguments
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2])
