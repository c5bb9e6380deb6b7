"""`python -m milestones …` in this folder is the clone's own tool, which finds this folder by itself."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

here = Path(__file__).resolve().parent.parent
clone = Path(json.loads((here / ".folovllm" / "lab.json").read_text(encoding="utf-8"))["repository"])
if not (clone / "milestones" / "cli.py").is_file():
    sys.exit(
        f"error: the clone of FoloVLLM is no longer at {clone}; run this once in the clone where it lies now: "
        f'python -m milestones progress --dir "{here}"'
    )
for name in [name for name in sys.modules if name.partition(".")[0] == "milestones"]:
    del sys.modules[name]
sys.path[:] = [str(clone), *(entry for entry in sys.path if entry and Path(entry).resolve() != here)]
runpy.run_module("milestones", run_name="__main__", alter_sys=True)
