"""Which machine this is, and which versions: in a process of its own, since whoever asks CUDA keeps memory there."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from folovllm.utils.machine import hardware, versions

QUERY = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit,temperature.gpu"


def describe(device: str) -> dict[str, Any]:
    """
    Raises:
        SystemExit: torch has no such device.
    """
    if device.startswith("cuda"):
        if not torch.cuda.is_available():
            raise SystemExit("torch sees no CUDA device here")
        torch.ones(1, device=device).sum().item()  # that it is there does not say that it works
    found: dict[str, Any] = {"hardware": hardware(), "versions": versions()}
    for package in ("triton", "numpy", "pytest"):
        try:
            found["versions"][package] = version(package)
        except PackageNotFoundError:
            found["versions"][package] = None
    if device.startswith("cuda") and shutil.which("nvidia-smi"):
        found["nvidia_smi"] = _nvidia_smi()
    return found


def _nvidia_smi() -> dict[str, str]:
    argv = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False).stdout.splitlines()
    return dict(zip(QUERY.split(","), (value.strip() for value in said[0].split(",")), strict=False)) if said else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    found = describe(args.device)
    args.json.write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
    print(json.dumps(found, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
