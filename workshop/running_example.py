"""The running example of the notes: three requests through every milestone, and a moving picture of each.

    python -m workshop.running_example trace    runs them on the tree of each milestone, writes example.json
    python -m workshop.running_example draw     draws docs/figures/mK/running.svg from that file

What is drawn is what the engines did (example_trace.py watches them), so a picture cannot show what no engine does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from milestones.site.source import ROOT
from workshop.example_picture import draw
from workshop.example_trace import REQUESTS, SETTINGS

STEPS = Path(__file__).with_name("example.json")
MILESTONES = ["m0", *SETTINGS]


def trace_all() -> dict[str, Any]:
    """Each milestone's trace, made on its own tree in a process of its own.

    Raises:
        SystemExit: two milestones generated different tokens: then at least one of them is wrong.
    """
    traces: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in MILESTONES:
            tree = Path(folder) / name
            _run([sys.executable, "-m", "milestones", "checkout", name, str(tree)], ROOT)
            said = _run([sys.executable, str(ROOT / "workshop/example_trace.py"), name], tree)
            traces[name] = json.loads(said.splitlines()[-1])
    outputs = {name: trace.pop("outputs") for name, trace in traces.items() if "outputs" in trace}
    if len({json.dumps(tokens) for tokens in outputs.values()}) != 1:
        raise SystemExit(f"the milestones disagree about the tokens: {outputs}")
    return traces


def _run(command: list[str], tree: Path) -> str:
    done = subprocess.run(
        command, cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


def as_text(traces: dict[str, Any]) -> str:
    """JSON with a line for each step, so that a change to an engine shows as the steps that it changes."""
    parts = []
    for name, trace in traces.items():
        fields = []
        for key, value in trace.items():
            if key in ("steps", "states"):
                rows = ",\n".join("   " + json.dumps(row) for row in value)
                fields.append(f'  "{key}": [\n{rows}\n  ]')
            else:
                fields.append(f'  "{key}": {json.dumps(value)}')
        parts.append(f' "{name}": {{\n' + ",\n".join(fields) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def stored() -> dict[str, Any]:
    traces: dict[str, Any] = json.loads(STEPS.read_text(encoding="utf-8"))
    return traces


def picture_file(milestone: str) -> Path:
    return ROOT / "docs/figures" / milestone / "running.svg"


def main(argv: list[str]) -> int:
    if argv == ["trace"]:
        STEPS.write_text(as_text(trace_all()), encoding="utf-8")
        print(f"{STEPS}: {len(REQUESTS)} requests at {len(MILESTONES)} milestones")
    elif argv == ["draw"]:
        for name, trace in stored().items():
            picture_file(name).parent.mkdir(parents=True, exist_ok=True)
            picture_file(name).write_text(draw(name, trace), encoding="utf-8")
            print(picture_file(name))
    else:
        print(__doc__)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
