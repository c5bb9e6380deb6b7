"""What a prompt costs that is computed, or found in a tier: `python -m workshop.tiers_speed [--tokens 1024]`.

A model of Qwen3-0.6B's shape with random weights in bfloat16 on a CPU. Printed are the CPU seconds of all threads until
the first token, which hold on a busy machine, too. For `disk`, the files' pages are dropped from the page cache first.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from transformers import Qwen3Config

from folovllm import LLMEngine, SamplingParams
from folovllm.engine.builder.defaults import config_for_llm


def make_engine(folder: str, tokens: int, layers: int) -> LLMEngine:
    config = Qwen3Config(
        vocab_size=4096, hidden_size=1024, intermediate_size=3072, num_hidden_layers=layers, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, tie_word_embeddings=True, max_position_embeddings=40960, dtype="bfloat16",
        architectures=["Qwen3ForCausalLM"], eos_token_id=None,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as model:
        config.save_pretrained(model)
        options = {"load_format": "dummy", "dtype": "bfloat16", "skip_tokenizer_init": True}
        tiers = {"kv_offloading_size": 1.0, "kv_offloading_path": folder, "num_kv_blocks": tokens // 16 + 40}
        return LLMEngine(
            config_for_llm(model, max_model_len=tokens + 32, max_num_batched_tokens=tokens + 16, **options, **tiers)
        )


def first_token(engine: LLMEngine, prompt: list[int]) -> tuple[float, int]:
    """CPU seconds, and how many tokens were found."""
    began = time.process_time()
    engine.add_request("r", prompt, SamplingParams(temperature=0.0, max_tokens=1))
    while engine.has_unfinished_requests():
        outputs = engine.step()
    return time.process_time() - began, outputs[0].num_cached_tokens or 0


def forget(engine: LLMEngine, folder: Path, tier: str) -> None:
    """Leave the prompt's blocks in this tier, and in what is behind it."""
    stored, kv = engine.core.flush(), engine.scheduler.kv
    assert stored is not None
    stored.result()
    assert kv.offload is not None
    kv.offload.poll()
    kv.pool.reset_prefix_cache()
    if tier != "host memory":
        kv.offload.clear()
    for path in folder.glob("*/*") if tier == "disk" else ():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=28)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        engine, folder = make_engine(name, arguments.tokens, arguments.layers), Path(name)
        prompt = [(13 * place * place + 7 * place) % 4096 for place in range(arguments.tokens)]
        print(f"{arguments.layers} layers, bfloat16, {arguments.tokens} tokens: CPU seconds to the first token")
        first_token(engine, prompt[:48])  # the kernels are warm
        computed, _ = first_token(engine, prompt)
        print(f"computed     {computed:5.2f}")
        for tier in ("pool", "host memory", "page cache", "disk"):
            if tier != "pool":
                forget(engine, folder, tier)
            seconds, found = first_token(engine, prompt)
            print(f"{tier:<12} {seconds:5.2f}   {found} tokens found")
        num_bytes = found * sum(tensor[:, 0].nbytes for tensor in engine.runner.kv_cache.tensors) // 16
        print(f"{num_bytes / 1e6:.0f} MB are {found} tokens: {num_bytes / 1e6 / computed:.0f} MB/s break even")


if __name__ == "__main__":
    main()
