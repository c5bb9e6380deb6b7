"""Everything at once on the GPU: chunks, blocks that are found again, preemption, steps ahead and CUDA graphs, and the
tokens are Hugging Face's.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from folovllm import LLM, SamplingParams
from tests.helpers import hf_greedy, make_hf_model

pytestmark = pytest.mark.gpu  # conftest.py skips without a CUDA device


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[tuple[int, ...], list[int]]]:
    """A model of a head size that every backend takes; prompts that begin alike, each with its greedy answer."""
    folder = tmp_path_factory.mktemp("model")
    hf: Any = make_hf_model("qwen3", head_dim=64, max_position_embeddings=512)
    hf.save_pretrained(folder)
    rng = random.Random(0)
    prefix = [rng.randrange(256) for _ in range(100)]
    prompts = [[*prefix[:cut], *(rng.randrange(256) for _ in range(rng.randrange(1, 40)))] for cut in (100, 64, 17) * 4]
    hf.cuda()
    return folder, {tuple(prompt): hf_greedy(hf, prompt, 24) for prompt in prompts}


@pytest.mark.parametrize("eager", [False, True], ids=["graphs", "eager"])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("budget", [16, 64, 2048])
def test_greedy_tokens_are_hugging_faces_cold_and_warm(answers: Any, budget: int, mode: str, eager: bool) -> None:
    folder, expected = answers
    llm = LLM(
        str(folder),
        skip_tokenizer_init=True,
        dtype="float32",
        device="cuda",
        max_model_len=256,
        block_size=16,
        num_kv_blocks=24,
        max_num_batched_tokens=budget,
        preemption_mode=mode,
        async_scheduling=True,
        enforce_eager=eager,
        swap_space=0.1,
    )
    prompts = [list(prompt) for prompt in expected]
    for _ in range(2):
        outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=24), use_tqdm=False)
        assert [output.outputs[0].token_ids for output in outputs] == list(expected.values())
    llm.engine.scheduler.check_invariants()
    stats = llm.engine.stats()
    assert stats.prefix_cache_hits > 0
    assert stats.preemptions > 0
    assert stats.kv_blocks_used == 0
