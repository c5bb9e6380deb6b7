"""`python -m workshop.bench KIND`: makers' benchmarks, and those of `folovllm bench` beside peers."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from folovllm.bench.command import BENCHES, Bench, add_benches
from folovllm.entrypoints.cli.main import run_command
from folovllm.entrypoints.cli.parser import Parser
from workshop.bench import contestant
from workshop.bench.peers import more

MAKERS = {
    "ablate": Bench("workshop.bench.ablate", "one thing changed at a time: what is it worth?"),
    "attention": Bench("workshop.bench.attention", "one layer's attention: paged against contiguous", traced=False),
    "compare": Bench("workshop.bench.compare", "two results: ratios, and what of them is noise", traced=False),
    "collectives": Bench("workshop.bench.collectives", "two ranks: sums, a step's message, what a draw gathers"),
    "decode": Bench("workshop.bench.decode", "decode steps: share of the roofline"),
    "experts": Bench("workshop.bench.experts", "a model with experts: how many a step reads, beside transformers"),
    "kvcache": Bench("workshop.bench.kvcache", "the error of a KV cache in 8 bits", traced=False),
    "latency": Bench("workshop.bench.latency", "one request at a time, beside peers"),
    "preset": Bench("workshop.bench.run_preset", "a workload by its name, beside the least that it could cost"),
    "ranks": Bench("workshop.bench.ranks", "decode steps with threads and with ranks, transformers beside them"),
    "sampler": Bench("workshop.bench.sampler", "sampling: ms per step", traced=False),
    "scheduler": Bench("workshop.bench.scheduler", "the scheduler alone: us per token", traced=False),
    "serve-load": Bench("workshop.bench.serve_load", "an engine in this process under load"),
    "speculation": Bench("workshop.bench.speculation", "draft tokens against none: tokens/s"),
    "step": Bench("workshop.bench.step", "one decode step: host work against the model, ms"),
    "throughput": Bench("workshop.bench.throughput", "several requests, beside peers"),
    "timeline": Bench("workshop.bench.time_line", "one decode step on a GPU, predicted part by part", traced=False),
}


def build_parser() -> Parser:
    contestant.PEERS.update(more.PEERS)
    contestant.PEER_OPTIONS.update(more.OPTIONS)
    parser = Parser(prog="python -m workshop.bench", description=__doc__)
    add_benches(parser, BENCHES | MAKERS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(build_parser, argv)


if __name__ == "__main__":
    sys.exit(main())
