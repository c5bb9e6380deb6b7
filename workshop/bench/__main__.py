"""`python -m workshop.bench KIND`: makers' benchmarks, and those of `folovllm bench` beside peers."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from folovllm.bench import contestant
from folovllm.bench.command import BENCHES, NO_ENGINE, Bench, add_benches
from folovllm.entrypoints.cli.main import run_command
from folovllm.entrypoints.cli.parser import Parser
from workshop.bench.peers import more

MAKERS = {
    "ablate": Bench("workshop.bench.ablate", "one thing changed at a time: what is it worth?"),
    "attention": Bench("workshop.bench.attention", "one layer's attention: paged against contiguous", NO_ENGINE),
    "collectives": Bench("workshop.bench.collectives", "two ranks: sums, a step's message, what a draw gathers"),
    "decode": Bench("workshop.bench.decode", "decode steps: share of the roofline"),
    "experts": Bench("workshop.bench.experts", "a model with experts: how many a step reads, beside transformers"),
    "kvcache": Bench("workshop.bench.kvcache", "the error of a KV cache in 8 bits", "it measures no time"),
    "preset": Bench("workshop.bench.run_preset", "a workload by its name, beside the least that it could cost"),
    "ranks": Bench("workshop.bench.ranks", "decode steps with one rank and with two"),
    "sampler": Bench("workshop.bench.sampler", "sampling: ms per step", NO_ENGINE),
    "scheduler": Bench("workshop.bench.scheduler", "the scheduler alone: us per token", NO_ENGINE),
    "serve-load": Bench("workshop.bench.presets", BENCHES["serve-load"].help),
    "speculation": Bench("workshop.bench.speculation", "draft tokens against none: tokens/s"),
    "step": Bench("workshop.bench.step", "one decode step: host work against the model, ms"),
    "timeline": Bench("workshop.bench.time_line", "one decode step on a GPU, predicted part by part", NO_ENGINE),
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
