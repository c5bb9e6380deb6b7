"""What adapters cost a decode step on a CPU: `python -m workshop.lora_speed [--layers 28] [--quantization w4a16]`.

A model of Qwen3-0.6B's shape with random weights in bfloat16 and a small vocabulary, eight adapters of rank 16 for all
seven matrices, one thread. Printed is the CPU time of the fastest of some steps, which holds on a busy machine, too;
steps with and without adapters take turns.
"""

from __future__ import annotations

import argparse
import tempfile
import time

import torch
from transformers import Qwen3Config

from folovllm import LLMEngine, SamplingParams
from folovllm.engine.builder.defaults import config_for_llm
from folovllm.lora.request import LoRAModel, Pair
from folovllm.models.lora import lora_modules
from folovllm.models.registry import decoder_spec

RANK, CASES = 16, ((1, 0), (1, 1), (8, 0), (8, 1), (8, 8))  # rows, adapters


def make_engine(layers: int, quantization: str | None) -> tuple[LLMEngine, list[LoRAModel]]:
    config = Qwen3Config(
        vocab_size=4096, hidden_size=1024, intermediate_size=3072, num_hidden_layers=layers, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, tie_word_embeddings=True, max_position_embeddings=512, dtype="bfloat16",
        architectures=["Qwen3ForCausalLM"], eos_token_id=None,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        options = {
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "quantization": quantization,
            "max_model_len": 256,
        }
        engine = LLMEngine(config_for_llm(folder, **options, enable_lora=True, max_loras=8, num_kv_blocks=128))
    modules = lora_modules(decoder_spec(config)).items()
    return engine, [
        LoRAModel(name, name.encode(), {
            module: Pair(torch.randn(RANK, inputs) / 50, torch.randn(outs, RANK) / 50, 1.0)
            for module, (inputs, outs) in modules
        })
        for name in map(str, range(8))
    ]  # fmt: skip


def fastest_step(engine: LLMEngine, rows: int, voices: list[LoRAModel | None]) -> float:
    """Seconds of a decode step of so many rows, whose adapters take turns among them."""
    params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
    for row in range(rows):
        request = engine.input_processor.process(str(row), [5 + row, 6, 7], params)
        request.lora = voices[row % len(voices)]
        for seq in request.get_seqs():
            seq.lora = request.lora
        engine.core.add_request(request)
    times = []
    while engine.core.requests:
        began = time.process_time()
        engine.core.step()
        times.append(time.process_time() - began)
    return min(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--quantization")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    engine, adapters = make_engine(args.layers, args.quantization)
    best = dict.fromkeys(CASES, float("inf"))
    for _ in range(args.rounds):
        for rows, kinds in CASES:
            voices = [None, *adapters][1 : 1 + kinds] or [None]
            best[rows, kinds] = min(best[rows, kinds], fastest_step(engine, rows, voices))
    print(f"{args.layers} layers, {args.quantization or 'bfloat16'}, rank {RANK}, all seven matrices, one thread")
    for (rows, kinds), seconds in best.items():
        beside = f"{seconds / best[rows, 0]:.2f} of without" if kinds else ""
        print(f"{rows} rows, {kinds} adapters: {seconds * 1e3:6.2f} ms   {beside}".rstrip())


if __name__ == "__main__":
    main()
