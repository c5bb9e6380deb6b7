"""`python -m workshop.gpu_kit`: every part in turn, and after each of them gpu.json, gpu.md and gpu.log are there."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from workshop.gpu_kit.page import headline, page
from workshop.gpu_kit.parts import ENDING, Part, make_parts, slack
from workshop.gpu_kit.process import Record, end_parts_on_sigterm, run_part

MINUTES = 9.7  # so that all of it fits a call of 600 s


def main(argv: Sequence[str] | None = None) -> int:
    """0 where no part failed or was stopped."""
    args = parse(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    print(f"after every part: {args.out}/gpu.md to read, gpu.json, gpu.log", file=sys.stderr)
    command = shlex.join(["python", "-m", "workshop.gpu_kit", *(sys.argv[1:] if argv is None else argv)])
    record = Record(command, args.minutes, args.device, args.tiny)
    with tempfile.TemporaryDirectory(prefix="folovllm-gpu-kit-") as folder:
        parts = make_parts(args.device, tiny=args.tiny, folder=Path(folder))
        by_name = {part.name: part for part in parts}
        unknown = sorted(set(args.only) - by_name.keys())
        if unknown:
            known = ", ".join(by_name)
            print(f"error: only must be of {known}, got {unknown[0]!r}", file=sys.stderr)
            return 2
        chosen = [by_name[name] for name in args.only] or [part for part in parts if not part.only_by_name]
        run_all(chosen, record, args.out)
    print()
    print(page(record))
    print(f"written: {args.out}/gpu.json, gpu.md, gpu.log", file=sys.stderr)
    return int(any(part["status"] in ("failed", "stopped") for part in record.parts))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m workshop.gpu_kit", description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:<index>, or cpu for a rehearsal (with --tiny)")
    parser.add_argument("--tiny", action="store_true", help="all parts on a model of nothing: do the commands work?")
    text = f"for all of it (default: {MINUTES:g}; on a CPU {slack('cpu')} times that)"
    parser.add_argument("--minutes", type=float, metavar="N", help=text)
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="these parts alone, in this order")
    text = "where gpu.md, gpu.json and gpu.log go (default: gpu-report)"
    parser.add_argument("--out", type=Path, metavar="FOLDER", default=Path("gpu-report"), help=text)
    args = parser.parse_args(argv)
    if not re.fullmatch(r"cpu|cuda(:\d+)?", args.device):
        parser.error(f"device must be cpu, cuda or cuda:<index>, got {args.device!r}")
    if args.device == "cpu" and not args.tiny:
        parser.error("device must be a GPU for the real sizes, got 'cpu': add --tiny to rehearse")
    if args.minutes is None:
        args.minutes = MINUTES * slack(args.device)
    if args.minutes <= 0:
        parser.error(f"minutes must be positive, got {args.minutes:g}")
    return args


def run_all(parts: Sequence[Part], record: Record, out: Path) -> None:
    """One after the other; what is over is written before the next begins."""
    console = Console(stderr=True)
    start = time.monotonic()
    with (out / "gpu.log").open("w+b") as log:
        for place, part in enumerate(parts):
            left = 60 * record.minutes - (time.monotonic() - start)
            limit = min(part.limit, left - ENDING - sum(later.need + ENDING for later in parts[place + 1 :]))
            if record.parts and record.parts[0]["name"] == "machine" and record.parts[0]["status"] == "failed":
                break  # there is no such device; what was slow to say so may be one
            with console.status(f"{place + 1}/{len(parts)}  {part.title}, {max(limit, 0):.0f} s at most"):
                result = run_part(part, limit, log)
            record.parts.append(result)
            record.seconds = time.monotonic() - start
            record.save(out / "gpu.json")
            (out / "gpu.md").write_text(page(record), encoding="utf-8")
            console.print(headline(result), markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    end_parts_on_sigterm()
    sys.exit(main())
