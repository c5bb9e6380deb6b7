"""AsyncLLM steps in a thread of its own, where CUDA's current device is that thread's; and so on a second device."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from folovllm import LLM, AsyncLLM, SamplingParams
from tests.gpu.places import Place, on_every_place
from tests.helpers import hf_greedy, make_hf_model
from tests.m2.support import assert_idle

PROMPTS = [[i + 2] * (1 + 5 * (i % 4)) + [11, i] for i in range(8)]
Answers = tuple[Path, list[list[int]]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """A model and what Hugging Face says to each prompt, on the CPU."""
    folder = tmp_path_factory.mktemp("model")
    hf: Any = make_hf_model("qwen3", head_dim=64)
    hf.save_pretrained(folder)
    return folder, [hf_greedy(hf, prompt, 20) for prompt in PROMPTS]


def settings(folder: Path, device: str) -> dict[str, Any]:
    return {
        "model": str(folder), "skip_tokenizer_init": True, "dtype": "float32", "device": device, "max_num_seqs": 6,
        "num_kv_blocks": 200, "block_size": 16, "max_model_len": 128, "swap_space": 0.1,
    }  # fmt: skip


async def answer_all(llm: AsyncLLM) -> list[list[int]]:
    """Every prompt from a user of its own, and one that leaves in the middle of its answer."""
    params = SamplingParams(temperature=0, max_tokens=20)

    async def read(prompt: list[int], most: int = 20) -> list[int]:
        said: list[int] = []
        async for output in llm.generate(prompt, params):
            said = output.outputs[0].token_ids
            if len(said) >= most:
                break
        return said

    *said, cut = await asyncio.gather(*(read(prompt) for prompt in PROMPTS), read([1, 2, 3], most=2))
    assert len(cut) >= 2
    return said


def serve(folder: Path, device: str) -> list[list[int]]:
    async def main() -> list[list[int]]:
        async with AsyncLLM(**settings(folder, device)) as llm:
            said = await answer_all(llm)
            engine = llm.engine
        assert_idle(engine)
        return said

    return asyncio.run(asyncio.wait_for(main(), 300))


@on_every_place
def test_users_get_hugging_faces_tokens_out_of_the_thread(answers: Answers, place: Place) -> None:
    folder, expected = answers
    assert serve(folder, place.device) == expected


def second_device() -> str:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs a second CUDA device")
    return "cuda:1"


@pytest.mark.gpu
def test_an_engine_on_the_second_device_leaves_the_first_alone(answers: Answers) -> None:
    device, (folder, expected) = second_device(), answers
    torch.cuda.set_device(0)
    before = torch.cuda.memory_allocated(0)
    llm = LLM(**settings(folder, device))
    params = SamplingParams(temperature=0, max_tokens=20)
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == expected
    assert torch.cuda.memory_allocated(0) == before
    assert torch.cuda.memory_allocated(1) > 0


@pytest.mark.gpu
def test_the_thread_serves_the_second_device_too(answers: Answers) -> None:
    device, (folder, expected) = second_device(), answers
    torch.cuda.set_device(0)
    assert serve(folder, device) == expected
