"""The driver of the live pages in CPython, over what the pages get of a milestone and nothing else."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from milestones.site import live

# Calls of the driver on stdin, one JSON each, their answers on stdout. A page has no torch, numpy, rich or pytest.
PROGRAM = """
import sys
class Page:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "numpy", "rich", "transformers", "pytest"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Page())
sys.path.insert(0, ".")
import driver
for line in sys.stdin:
    call, _, spec = line.partition(" ")
    print(driver.answer(call, spec))
"""


class Driver:
    """`Driver(tmp_path, "m3")(box.spec("m3/running"), …)`: what the driver answers to each; or "exercises-m3"."""

    def __init__(self, folder: Path, tree: str) -> None:
        kind, _, milestone = tree.rpartition("-")
        packed = live.exercises_zip(milestone) if kind else live.tree_zip(tree)
        zipfile.ZipFile(io.BytesIO(packed)).extractall(folder)
        for name in live.DRIVERS:
            (folder / name).write_bytes((live.HERE / name).read_bytes())
        self.folder, self.call = folder, "check" if kind else "load" if tree == "root" else "watch"

    def __call__(self, *specs: dict[str, Any]) -> list[dict[str, Any]]:
        calls = "".join(f"{self.call} {json.dumps(spec)}\n" for spec in specs)
        command = [sys.executable, "-I", "-c", PROGRAM]
        done = subprocess.run(command, cwd=self.folder, input=calls, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]
