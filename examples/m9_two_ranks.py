"""One model on two ranks: what each of them holds, the sums that join them, and the same tokens.

Run it: python examples/m9_two_ranks.py
"""

from __future__ import annotations

import time

import _tree  # noqa: F401 - folovllm is this tree's
from rich.console import Console
from rich.table import Table

from folovllm import LLM, SamplingParams
from folovllm.layers.linear import PLAIN
from folovllm.model_loader.model_files import EMBEDDED_FOLDER
from folovllm.models.shard import shard_of
from folovllm.models.weights import iterate_safetensors
from folovllm.worker.kv_cache import kv_bytes_per_token

PROMPTS = ["Once upon a time", "What is a KV cache?", "The little dog"]
PARAMS = [SamplingParams(temperature=0, max_tokens=60), *(SamplingParams(seed=7, max_tokens=60) for _ in PROMPTS[1:])]
RANKS = 2


def run(ranks: int) -> tuple[LLM, list[list[int]], float]:
    llm = LLM(dtype="float32", device="cpu", num_kv_blocks=200, tensor_parallel_size=ranks)
    began = time.perf_counter()
    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    return llm, [list(output.outputs[0].token_ids) for output in outputs], time.perf_counter() - began


alone, expected, seconds = run(1)
llm, tokens, seconds_of_two = run(RANKS)
runner, blocks = llm.engine.runner, llm.engine.config.cache_config
whole = alone.engine.runner.model.decoder_spec

table = Table("", "heads", "KV heads", "columns of the MLP", "tokens", "weights", "KV cache", box=None)
for rank in range(RANKS):
    shard = shard_of(whole, PLAIN, rank, RANKS)
    weights = sum(4 * part.numel() for _, part in iterate_safetensors(EMBEDDED_FOLDER, shard))
    cache = kv_bytes_per_token(shard.spec, runner.kv_cache.tensors[0].dtype) * blocks.num_kv_blocks * blocks.block_size
    ranges = (shard.heads, shard.kv_heads, shard.columns, shard.tokens)
    shown = [f"{each.start}-{each.stop - 1}" for each in ranges]
    table.add_row(f"rank {rank}", *shown, *(f"{size / 1e6:.2f} MB" for size in (weights, cache)))
console = Console(width=100)
console.print(table)

sums, num_bytes = runner.group.collectives.counts()
steps, layers = llm.engine.stats().steps, whole.num_layers
print(f"{steps} steps, {sums} sums of {num_bytes / sums:,.0f} bytes: two a layer of {layers}, one for the embedding")
print(
    f"a step takes {1e3 * seconds / steps:.2f} ms with one rank, and {1e3 * seconds_of_two / steps:.2f} ms with {RANKS}"
)
print(f"the same tokens as one rank's: {tokens == expected}")
