"""Python in a page: Pyodide, schedulers and exercises of the course, in one script that the reader's click loads.

    npm's pyodide ─┐
    core of m2 …   │
    exercises …  ──┼─▶ site/live/python.js ◀── a page of either language, at the first click ──▶ a Web Worker
    the drivers ───┘   one function, with all of it inside, gzip in base64: 8.5 MB

One classic script, since a page that was opened from a disk may load nothing else. Its function is a worker's code, so
the page itself never unpacks it. Where npm's package cannot be had the build says so, and the pages have no button.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from milestones.site.live.trees import EXERCISES, HERE, TREES, exercises_zip, tree_zip
from milestones.site.source import ROOT

SCRIPT = ROOT / "site/live/python.js"
PYODIDE = "314.0.7"
INTEGRITY = "0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A=="  # npm's, SHA-512
CACHE = Path.home() / f".cache/folovllm/pyodide-{PYODIDE}.tgz"
DRIVERS = ("driver.py", "exercise_driver.py")
FROM_NPM = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip")


def build() -> str:
    """Writes SCRIPT unless it is there already, made of the same. Returns a line that says what came of it."""
    package = _package()
    if package is None:
        SCRIPT.unlink(missing_ok=True)
        return f"live pages: npm's pyodide {PYODIDE} cannot be had here, so they show pictures and no scheduler"
    files = {f"{tree}.zip": tree_zip(tree) for tree in TREES}
    files |= {f"exercises-{milestone}.zip": exercises_zip(milestone) for milestone in EXERCISES}
    files |= {name: (HERE / name).read_bytes() for name in DRIVERS}
    worker = (HERE / "worker.js").read_text(encoding="utf-8")
    made_of = hashlib.sha256(b"\0".join([package, worker.encode(), *files.values()])).hexdigest()
    mark = f"// Pyodide {PYODIDE} (MPL-2.0), Python (PSF-2.0), FoloVLLM; made of {made_of}\n"
    if not SCRIPT.is_file() or not _begins(SCRIPT, mark):
        with tarfile.open(fileobj=io.BytesIO(package)) as tar:
            files |= {name: _member(tar, name) for name in FROM_NPM}
            lock = {"info": json.loads(_member(tar, "pyodide-lock.json"))["info"], "packages": {}}
        packed = {name: base64.b64encode(gzip.compress(data, 6, mtime=0)).decode() for name, data in files.items()}
        held = f"const FILES = {json.dumps(packed)};\nconst LOCK = {json.dumps(json.dumps(lock))};\n"
        SCRIPT.parent.mkdir(parents=True, exist_ok=True)
        SCRIPT.write_text(f"{mark}function folovllmPython() {{\n{held}{worker}}}\n", encoding="utf-8")
    return f"live pages: site/live/python.js, {SCRIPT.stat().st_size / 1e6:.1f} MB for both languages"


def _begins(path: Path, mark: str) -> bool:
    with path.open(encoding="utf-8") as file:
        return file.readline() == mark


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(f"package/{name}")
    assert file is not None  # npm's package of this version has it
    return file.read()


def _package() -> bytes | None:
    """The archive of npm's package, which is fetched once; None where it cannot be had, or is another than expected."""
    if not CACHE.is_file():
        npm = shutil.which("npm")
        if npm is None:
            return None
        with tempfile.TemporaryDirectory() as folder:
            command = [npm, "pack", f"pyodide@{PYODIDE}", "--silent", "--fetch-retries=1", "--pack-destination", folder]
            try:
                subprocess.run(command, cwd=folder, capture_output=True, check=True, timeout=120)
                CACHE.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(str(next(Path(folder).glob("*.tgz"))), CACHE)
            except (subprocess.SubprocessError, StopIteration, OSError):
                return None
    package = CACHE.read_bytes()
    if base64.b64encode(hashlib.sha512(package).digest()).decode() != INTEGRITY:
        CACHE.unlink()  # cut short, perhaps: the next build fetches it again
        return None
    return package
