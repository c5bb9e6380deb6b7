"""What sampling parameters amount to, and how wrong ones are refused: the field, the limit, the way out.

Run it: python examples/m0_sampling_params.py
"""

from __future__ import annotations

from typing import Any

import _tree  # noqa: F401 - folovllm is this tree's

from folovllm import CacheConfig, EngineConfig, SamplingParams

STRATEGIES: list[dict[str, Any]] = [
    {},
    {"temperature": 0},
    {"temperature": 1e-6},  # too small to divide by: greedy
    {"temperature": 0.8, "top_p": 0.95, "seed": 42},
    {"n": 2, "best_of": 4, "stop": "\n"},
    {"use_beam_search": True, "best_of": 4, "length_penalty": 0.8},
]

WRONG: list[dict[str, Any]] = [
    {"top_p": 0},
    {"top_k": 0},
    {"temperature": float("nan")},  # compares false with every limit, so it needs a check of its own
    {"n": True},  # a bool is an int to Python, not to us
    {"n": 3, "best_of": 2},
    {"temperature": 0, "n": 2},  # two greedy sequences would be the same one twice
    {"stop": "END", "detokenize": False},
    {"length_penalty": 0.5},  # would have no effect: refused, not ignored
]


def main() -> None:
    print("What the settings amount to")
    for kwargs in STRATEGIES:
        params = SamplingParams(**kwargs)
        print(f"  {params.sampling_type.name:12} best_of={params.best_of} stop={params.stop!s:8} from {kwargs}")

    print("\nWhat is refused, and in which words")
    for kwargs in WRONG:
        try:
            SamplingParams(**kwargs)
        except ValueError as error:
            print(f"  {error}")

    # The engine's configuration is built from flat keywords; each goes to the layer that has the field.
    print("\nThe builder")
    config = EngineConfig.from_kwargs(max_model_len=1024, block_size=32, max_num_seqs=8)
    print(f"  block_size -> {config.cache_config}")
    print(f"  max_model_len -> model {config.model_config.max_model_len}, and copied down to the scheduler "
          f"{config.scheduler_config.max_model_len}")  # fmt: skip
    try:
        EngineConfig.from_kwargs(blocksize=32)
    except TypeError as error:
        print(f"  {error}")
    try:
        CacheConfig(gpu_memory_utilization=1.5)
    except ValueError as error:
        print(f"  {error}")


if __name__ == "__main__":
    main()
