"""`folovllm quantize MODEL OUT`: weights of 4 or 8 bits, and a table of what they save and cost.

vLLM: none
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from folovllm.utils.checks import wrong

if TYPE_CHECKING:
    from folovllm.quantize.report import Report

WORST = 5


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "quantize",
        help="make a model's weights 4 or 8 bits",
        description="Writes the model's folder once more, with weights of 4 or 8 bits in compressed-tensors' format, "
        "and says what they save and cost.",
    )
    parser.add_argument("model", metavar="MODEL", help="a local Hugging Face folder, a hub id, or 'embedded'")
    parser.add_argument("out", metavar="OUT", type=Path, help="the folder to write: a new one, or an empty one")
    parser.add_argument("--method", metavar="NAME", default="gptq", help="rtn (round to nearest), gptq or awq")
    parser.add_argument("--bits", metavar="N", type=int, help="of a weight, 4 or 8 (default: 4; with --w8a8, 8)")
    text = "columns that share a scale; -1: a whole row (default: 128, or half as many until they fit; with --w8a8, -1)"
    parser.add_argument("--group-size", metavar="N", type=int, help=text)
    text = "codes as far below zero as above it, and no zero points"
    parser.add_argument("--symmetric", action="store_true", help=text)
    text = "8 bits for weights and for what goes into each layer; symmetric, a scale for each output and each token"
    parser.add_argument("--w8a8", action="store_true", help=text)
    text = "with --w8a8: move outliers into the weights first, 0 not at all, 1 altogether (default: not done)"
    parser.add_argument("--smoothquant", metavar="ALPHA", type=float, help=text)
    parser.add_argument("--head", action="store_true", help="8 bits for the LM head, too; what goes into it stays")
    text = (
        'text to calibrate with and to measure the loss on: a text file, or .jsonl with "text", or "prompt" and '
        '"completion", on each line (default: the embedded model\'s own; another model needs one, but for --method rtn)'
    )
    parser.add_argument("--calibration", metavar="FILE", type=Path, help=text)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from folovllm.entrypoints.commands import notes
    from folovllm.quantize.layerwise import quantize
    from folovllm.quantize.recipe import Recipe

    if not args.out.name:
        raise wrong("out", "be the name of a new folder", str(args.out))
    options = ("method", "bits", "group_size", "symmetric", "w8a8", "smoothquant", "head")
    recipe = Recipe.from_options(**{name: getattr(args, name) for name in options})
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    if not notes.is_terminal:  # where no bar shows it
        notes.print(f"quantizing {args.model} …", markup=False)
    with Progress(*columns, console=notes, transient=True) as progress:
        task = progress.add_task("reading", total=None)

        def on_layer(done: int, total: int) -> None:
            progress.update(task, description="layers", completed=done, total=total)
            if not notes.is_terminal:
                notes.print(f"layer {done} of {total}")

        report = quantize(args.model, args.out, recipe, args.calibration, on_layer)
    if args.json:
        print(json.dumps(asdict(report) | {"loss_rise": report.loss_rise}, indent=2, ensure_ascii=False))
    else:
        show(report)
    return 0


def show(report: Report) -> None:
    from rich.table import Table

    from folovllm.entrypoints.cli.console import PlainConsole

    console = PlainConsole()
    table = Table("", box=None, pad_edge=False)
    for heading in ("before", "after", ""):
        table.add_column(heading, justify="right")
    for name, before, after in (
        ("linear layers, bytes", report.linear_bytes_before, report.linear_bytes_after),
        ("all weights, bytes", report.bytes_before, report.bytes_after),
    ):
        table.add_row(name, f"{before:,}", f"{after:,}", f"{after / before:.2f} times")
    if report.loss_rise is not None:
        losses = (f"{loss:.4f}" for loss in (report.loss_before, report.loss_after))
        table.add_row("loss on held-out text", *losses, f"{report.loss_rise:+.4f}")
    console.print(table)
    worst = Table("largest errors at the outputs", box=None, pad_edge=False)
    worst.add_column("of the outputs", justify="right")
    for each in report.errors[:WORST]:
        worst.add_row(each.name, f"{each.error:.1%}")
    console.print()
    console.print(worst)
    console.print()
    groups = "rows" if report.group_size == -1 else f"groups of {report.group_size}"
    how = [f"{report.bits} bits", groups, "symmetric" if report.symmetric else "asymmetric", report.method]
    ways: dict[str, float | None] = {"activations in {} bits": report.activation_bits}
    ways |= {"the head in {} bits": report.head_bits, "smoothquant {}": report.smoothquant}
    how += [text.format(value) for text, value in ways.items() if value is not None]
    tokens = f"{report.calibration_tokens:,} tokens to calibrate, {report.held_out_tokens:,} held out"
    tokens = "no text" if report.loss_rise is None else tokens
    console.print(f"{report.out}: {', '.join(how)}; {tokens}; {report.seconds} s", markup=False, soft_wrap=True)
