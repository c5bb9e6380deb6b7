"""`folovllm bench throughput | latency | decode | attention | …`: prints a table; --json keeps all of it."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from folovllm.bench.shapes import DEFAULT_SHAPE, SHAPES

_DTYPES = {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp32": "float32", "float32": "float32"}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "bench", help="measure speed and memory, also against Hugging Face", description="Measure the engine."
    )
    kinds = parser.add_subparsers(dest="bench", metavar="BENCH", required=True)

    text = "Several requests at once: tokens per second in prefill, in decode and over all."
    command = kinds.add_parser("throughput", help="several requests: tokens/s", description=text)
    _add_model(command)
    text = "take turns with hf (Hugging Face's generate), hf-continuous, vllm, vllm-compiled; several: A,B"
    command.add_argument("--peer", action="append", default=[], dest="peers", metavar="PEER", help=text)
    command.add_argument("--peer-python", metavar="PATH", help="the Python that has vLLM, in an environment of its own")
    text = "a workload that others publish: 256 sequences of 100 to 1,024 tokens in and out; other options override"
    command.add_argument("--preset", choices=["nano-vllm"], help=text)
    text = "requests in each round (default: 4, or the preset's)"
    command.add_argument("--num-requests", "--num-prompts", type=int, metavar="N", help=text)
    text = "also let the peer take this many at a time"
    command.add_argument("--peer-batch-size", type=int, metavar="N", default=1, help=text)
    text = "lengths from an eighth of --input-len and --output-len up to them, instead of all the same"
    command.add_argument("--mixed", action="store_true", help=text)
    text = "prompt tokens of a request (default: 32); of the longest with a preset"
    command.add_argument("--input-len", type=int, metavar="N", help=text)
    text = "new tokens of a request (default: 32); of the longest with a preset"
    command.add_argument("--output-len", type=int, metavar="N", help=text)
    command.add_argument("--rounds", type=int, metavar="N", default=3, help="measured rounds; medians are shown")
    _add_output(command)
    command.set_defaults(run=run_throughput)

    text = "One request at a time: time to first token, time between tokens, share of the memory bandwidth."
    command = kinds.add_parser("latency", help="one request at a time: ms per token", description=text)
    _add_model(command)
    command.add_argument("--peer", choices=["hf"], help="in turn with Hugging Face's generate")
    _add_lengths(command, input_len=128)
    command.set_defaults(run=run_latency)

    text = "Decode steps at several batch sizes, as a share of what memory and arithmetic of this machine allow."
    command = kinds.add_parser("decode", help="decode steps: share of the roofline", description=text)
    _add_model(command)
    command.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 64, 256], help="sequences")
    command.add_argument("--context", type=int, metavar="N", default=128, help="prompt tokens of each")
    command.add_argument("--steps", type=int, metavar="N", default=16, help="measured steps of a round")
    command.add_argument("--rounds", type=int, metavar="N", default=3, help="measured rounds; medians are shown")
    command.add_argument("--enforce-eager", action="store_true", help="no CUDA graphs")
    _add_output(command)
    command.set_defaults(run=run_decode)

    text = "One layer's attention in a decode step, or in prefill: through block tables against a contiguous cache."
    command = kinds.add_parser("attention", help="one layer's attention: paged against contiguous", description=text)
    command.add_argument("--shape", choices=list(SHAPES), default=DEFAULT_SHAPE, help="heads of this shape")
    command.add_argument("--dtypes", nargs="+", choices=list(_DTYPES), default=["fp32", "bf16"], help="of the cache")
    command.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8], help="sequences")
    command.add_argument("--contexts", type=int, nargs="+", default=[256, 1024], help="tokens of each")
    command.add_argument("--block-size", type=int, metavar="N", default=16, help="tokens of a block")
    text = "the paged backend, or all of them that can run; when not given, the one that an engine would pick"
    command.add_argument("--backend", help=text)
    command.add_argument("--prefill", action="store_true", help="whole prompts of --contexts tokens: TFLOP/s")
    command.add_argument("--device", help="cpu, cuda or cuda:<index>")
    command.add_argument("--rounds", type=int, metavar="N", default=5, help="measured rounds; medians are shown")
    _add_output(command)
    command.set_defaults(run=run_attention)

    text = "Decode steps of a full batch: the host's work before and after the model, against the model's own."
    command = kinds.add_parser("step", help="one decode step: host work against the model, ms", description=text)
    command.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 64], help="sequences")
    command.add_argument("--steps", type=int, metavar="N", default=50, help="measured steps of a round")
    command.add_argument("--rounds", type=int, metavar="N", default=3, help="measured rounds; medians are shown")
    _add_output(command)
    command.set_defaults(run=run_step)

    text = "Requests through the scheduler with no model: what deciding costs, however long the line."
    command = kinds.add_parser("scheduler", help="the scheduler alone: us per token", description=text)
    text = "requests that wait; the first is what growth is measured from"
    command.add_argument("--waiting", type=int, nargs="+", default=[1_000, 10_000, 100_000], help=text)
    command.add_argument("--steps", type=int, metavar="N", default=500, help="measured steps of a round")
    command.add_argument("--rounds", type=int, metavar="N", default=5, help="measured rounds; medians are shown")
    _add_output(command)
    command.set_defaults(run=run_scheduler)

    text = "Seconds and peak memory to load a checkpoint, in fresh processes."
    command = kinds.add_parser("load", help="loading: seconds and peak memory", description=text)
    _add_source(command)
    command.add_argument("--peer", choices=["hf"], help="compare with Hugging Face's from_pretrained")
    command.add_argument("--rounds", type=int, metavar="N", default=3, help="loads of each kind; medians are shown")
    _add_output(command)
    command.set_defaults(run=run_load)

    text = "Sampling from random logits: this engine's sampler against a full sort and scatter."
    command = kinds.add_parser("sampler", help="sampling: ms per step", description=text)
    command.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 64], help="rows of logits")
    command.add_argument("--vocab-sizes", type=int, nargs="+", default=[50257, 151936], help="columns")
    _add_output(command)
    command.set_defaults(run=run_sampler)


def _add_source(parser: argparse.ArgumentParser) -> None:
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--model", help="a local folder, a hub id, or 'embedded'")
    group.add_argument(
        "--shape",
        choices=list(SHAPES),
        default=DEFAULT_SHAPE,
        help="random weights of this shape, no download",
    )


def _add_model(parser: argparse.ArgumentParser) -> None:
    _add_source(parser)
    parser.add_argument("--dtype", choices=list(_DTYPES), default="bf16", help="of weights and activations")
    parser.add_argument("--device", help="cpu, cuda or cuda:<index>; picked when not given")


def _add_lengths(parser: argparse.ArgumentParser, *, input_len: int) -> None:
    parser.add_argument("--input-len", type=int, metavar="N", default=input_len, help="prompt tokens of a request")
    parser.add_argument("--output-len", type=int, metavar="N", default=32, help="new tokens of a request")
    parser.add_argument("--rounds", type=int, metavar="N", default=3, help="measured rounds; medians are shown")
    _add_output(parser)


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: torch's own choice)")
    parser.add_argument("--json", metavar="PATH", help="write the result here; - prints it, and no table")


# What throughput takes without a preset.
_THROUGHPUT = {"num_requests": 4, "input_len": 32, "output_len": 32}


def run_throughput(args: argparse.Namespace) -> int:
    if args.preset is not None:
        return run_preset(args)
    for name, value in _THROUGHPUT.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    _prepare(args)
    from folovllm.bench import throughput
    from folovllm.bench.workload import bench_model

    with bench_model(args.model, args.shape) as model:
        options = _lengths(args, "num_requests", "peer_batch_size", "mixed")
        peers = [name for given in args.peers for name in given.split(",")]
        options |= {"peers": peers, "peer_python": args.peer_python}
        return _show(args, throughput.run(model, command=_command(args), **options))


def run_preset(args: argparse.Namespace) -> int:
    for name, given in (("mixed", args.mixed), ("peer_batch_size", args.peer_batch_size != 1)):
        if given:
            raise ValueError(f"{name} must not be given with preset {args.preset!r}, which has its own lengths")
    _prepare(args)
    from dataclasses import replace

    from folovllm.bench import presets
    from folovllm.bench.workload import bench_model

    fields = {"num_requests": "num_requests", "longest_prompt": "input_len", "longest_output": "output_len"}
    given = {field: getattr(args, name) for field, name in fields.items() if getattr(args, name) is not None}
    preset = replace(presets.PRESETS[args.preset], **given)
    peers = [name for names in args.peers for name in names.split(",")]
    options = {"peers": peers, "peer_python": args.peer_python, "device": args.device, "rounds": args.rounds}
    with bench_model(args.model, args.shape) as model:
        dtype = _DTYPES[args.dtype]
        return _show(args, presets.run(model, preset, command=_command(args), dtype=dtype, **options))


def run_decode(args: argparse.Namespace) -> int:
    _prepare(args)
    from folovllm.bench import decode
    from folovllm.bench.workload import bench_model

    names = ("batch_sizes", "context", "steps", "rounds", "device", "enforce_eager")
    options = {name: getattr(args, name) for name in names}
    with bench_model(args.model, args.shape) as model:
        return _show(args, decode.run(model, command=_command(args), dtype=_DTYPES[args.dtype], **options))


def run_latency(args: argparse.Namespace) -> int:
    _prepare(args)
    from folovllm.bench import latency
    from folovllm.bench.workload import bench_model

    with bench_model(args.model, args.shape) as model:
        return _show(args, latency.run(model, command=_command(args), **_lengths(args, "peer")))


def run_attention(args: argparse.Namespace) -> int:
    _prepare(args)
    from folovllm.bench import attention

    names = ("shape", "batch_sizes", "contexts", "block_size", "backend", "device", "rounds", "prefill")
    options = {name: getattr(args, name) for name in names}
    dtypes = [_DTYPES[name] for name in args.dtypes]
    return _show(args, attention.run(command=_command(args), dtypes=dtypes, **options))


def run_step(args: argparse.Namespace) -> int:
    _prepare(args)
    from folovllm.bench import step

    return _show(args, step.run(args.batch_sizes, command=_command(args), steps=args.steps, rounds=args.rounds))


def run_scheduler(args: argparse.Namespace) -> int:
    _prepare(args)
    from folovllm.bench import scheduler

    return _show(args, scheduler.run(args.waiting, command=_command(args), steps=args.steps, rounds=args.rounds))


def run_load(args: argparse.Namespace) -> int:
    _prepare(args)
    from folovllm.bench import load

    with load.checkpoint(args.model, args.shape) as model:
        return _show(args, load.run(model, command=_command(args), peer=args.peer, rounds=args.rounds))


def run_sampler(args: argparse.Namespace) -> int:
    _prepare(args)
    from folovllm.bench import sampler

    return _show(args, sampler.run(args.batch_sizes, args.vocab_sizes, command=_command(args)))


def _lengths(args: argparse.Namespace, *more: str) -> dict[str, Any]:
    names = ("device", "input_len", "output_len", "rounds", *more)
    return {"dtype": _DTYPES[args.dtype]} | {name: getattr(args, name) for name in names}


def _command(args: argparse.Namespace) -> str:
    return shlex.join(["folovllm", *args.argv])


def _prepare(args: argparse.Namespace) -> None:
    """What can be refused is refused before minutes of measuring, not after."""
    if args.threads is not None and args.threads < 1:
        raise ValueError(f"threads must be at least 1, got {args.threads}")
    if args.json not in (None, "-") and not Path(args.json).parent.is_dir():
        raise ValueError(f"json must be in an existing folder, got {args.json!r}")
    if getattr(args, "model", None) is not None:
        from folovllm.model_loader import resolve_model_path

        resolve_model_path(args.model)
    if args.threads is not None:
        import torch

        torch.set_num_threads(args.threads)


def _show(args: argparse.Namespace, report: Any) -> int:
    """The report's name is the file's: documentation names it that way."""
    if args.json not in (None, "-"):
        report.name = Path(args.json).stem
        report.save(Path(args.json))
    if args.json == "-":
        print(report.to_json())
        return 0
    from rich.console import Console

    report.show(Console(highlight=False))
    if args.json:
        print(f"written: {args.json}", file=sys.stderr)
    return 0
