"""Tensor parallelism on one GPU: what can be seen of it there.

    two ranks     the embedded model in float32 on two ranks of this device, which add by gloo: the tokens of one rank
    group of one  the sums recorded in the step's CUDA graph, by NCCL, over a group with one rank
    share of n    one rank's part of every layer, alone: its sums return at once, and its time is a whole step's without

vLLM: none
"""

from __future__ import annotations

import argparse
import json
import socket
import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from folovllm.bench.runs import make_engine
from folovllm.bench.shapes import SHAPES
from folovllm.bench.workload import BenchModel, bench_model, vocab_size
from folovllm.distributed.collectives import TorchCollectives
from folovllm.distributed.parallel_state import GroupCoordinator, Peer
from folovllm.engine import llm_engine
from folovllm.engine.builder.defaults import config_for_llm
from folovllm.engine.llm_engine import LLMEngine
from folovllm.engine.ranks import build_follower
from folovllm.model_loader import resolve_max_model_len
from folovllm.model_loader.hf_config import load_hf_config
from folovllm.sampling_params import SamplingParams
from workshop.bench.decode import DecodingBatch
from workshop.bench.gpu_kernels import gpu_named
from workshop.bench.time_line import predict

TIMEOUT, BANDWIDTH = timedelta(seconds=60), 3e12  # bytes/s of a GPU that the time line does not know
PROMPTS = [[7, 8, 9], [20, 21], [30]]
Row = dict[str, Any]


class Alone:
    """Collectives of a rank whose others are not there: what they would add, or send, is left out."""

    address: int | None = None

    def all_reduce(self, x: torch.Tensor) -> None:
        pass

    def gather(self, x: torch.Tensor, widths: list[int]) -> list[torch.Tensor]:
        return [x, *(x.new_zeros(len(x), width) for width in widths[1:])]

    def broadcast(self, x: torch.Tensor) -> None:
        pass

    def failed(self) -> int | None:
        return None


def in_group(group: GroupCoordinator | None, model: BenchModel, dtype: str, device: str, **options: Any) -> LLMEngine:
    """An engine that has this group, however many GPUs there are."""
    size = 1 if group is None else group.world_size
    with patch.object(llm_engine, "start_ranks", lambda *given: group):
        return make_engine(model, dtype, device, tensor_parallel_size=size, **options)


def tokens_of(engine: LLMEngine, count: int = 8) -> list[list[int]]:
    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    for number, prompt in enumerate(PROMPTS):
        engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
    ended: dict[str, list[int]] = {}
    while engine.has_unfinished_requests():
        ended |= {each.request_id: list(each.outputs[0].token_ids) for each in engine.step() if each.finished}
    return [ended[name] for name in sorted(ended)]


def two_ranks(device: str) -> Row:
    """Rank 1 is a thread of this process."""
    options: dict[str, Any] = {"num_kv_blocks": 64, "max_model_len": 64, "enforce_eager": True}
    with bench_model("embedded", "") as model:
        expected = tokens_of(in_group(None, model, "float32", device, **options))
        config = config_for_llm(
            model.path, dtype="float32", device=device, skip_tokenizer_init=True, tensor_parallel_size=2, **options
        )
        hf_config, pair, store = load_hf_config(config.model_config), socket.socketpair(), dist.HashStore()
        config.set_max_model_len(resolve_max_model_len(hf_config, options["max_model_len"]))

        def group_of(rank: int) -> GroupCoordinator:
            kind: Any = dist.ProcessGroupGloo
            gloo = kind._Options()
            gloo._timeout, gloo._devices = TIMEOUT, [kind.create_device(hostname="127.0.0.1")]
            group = kind(store, rank, 2, gloo)
            collectives = TorchCollectives(rank, 2, group, in_order=True)
            return GroupCoordinator(rank, 2, {1 - rank: Peer(pair[rank])}, collectives)

        def follow() -> None:
            group = group_of(1)
            with suppress(EOFError, OSError):  # rank 0 has gone
                build_follower(config, hf_config, torch.device(device), group).run()

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        group = group_of(0)
        found = tokens_of(in_group(group, model, "float32", device, **options))
        group.close()
        thread.join()
    empty = {"step_ms": None, "predicted_ms": None}
    return {"what": "two ranks", "batch": len(PROMPTS), **empty, "same_tokens": found == expected}


def measure(model: BenchModel, args: argparse.Namespace) -> list[Row]:
    """Steps of one rank, of a group of one, and of shares."""
    sizes = {"max_model_len": args.context + args.steps + 64, "max_num_seqs": max(args.sizes)}
    sizes["num_kv_blocks"] = max(args.sizes) * -(-sizes["max_model_len"] // 16) + 1
    groups: dict[str, GroupCoordinator | None] = {"one rank": None}
    if args.device != "cpu":
        nccl = dist.ProcessGroupNCCL(dist.HashStore(), 0, 1, dist.ProcessGroupNCCL.Options())
        groups["group of one"] = GroupCoordinator(0, 1, {}, TorchCollectives(0, 1, nccl, in_order=False))
    groups |= {f"share of {ranks}": GroupCoordinator(0, ranks, {}, Alone()) for ranks in (2, 4)}  # type: ignore[arg-type]
    gpu = gpu_named("h200" if args.device == "cpu" else torch.cuda.get_device_name(), BANDWIDTH)
    rows: list[Row] = []
    for what, group in groups.items():
        engine, vocab = in_group(group, model, args.dtype, args.device, **sizes), vocab_size(model)
        for batch in args.sizes:
            sequences = DecodingBatch(engine, batch, args.context, vocab)
            steps = sorted(sequences.step() for _ in range(args.steps))
            sequences.end()
            ranks = 1 if group is None else group.world_size
            parts = predict(gpu, [args.context] * batch, shape=args.shape, ranks=ranks)
            predicted = sum(part["us"] for part in parts if part["part"] != "sums") / 1e3
            facts: Row = {"what": what, "batch": batch, "step_ms": 1e3 * steps[len(steps) // 2]}
            rows.append(facts | {"predicted_ms": predicted, "same_tokens": None})
        del engine
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", choices=list(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    with bench_model(None, args.shape) as model:
        rows = measure(model, args)
    args.json.write_text(json.dumps({"rows": rows}), "utf-8")  # also if what follows fails
    rows.append(two_ranks(args.device))
    args.json.write_text(json.dumps({"rows": rows}), "utf-8")
    print(*rows, sep="\n")


if __name__ == "__main__":
    main()
