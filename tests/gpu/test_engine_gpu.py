"""The engine on a CUDA device: graphs on and off, asynchronous or not, Hugging Face's tokens or as good as these."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from folovllm import LLM, SamplingParams
from folovllm.worker.cuda_graph import capture_sizes
from tests.gpu.places import forbid_waits_in_launches
from tests.m2.support import assert_idle
from tests.m3.oracle import Oracle
from tests.m4.ahead_support import Watch

pytestmark = pytest.mark.gpu  # conftest.py skips without a CUDA device

PROMPTS = [[i + 3] * (1 + 7 * (i % 4)) + [9, i] for i in range(9)]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    oracle = Oracle(tmp_path_factory.mktemp("oracle"))
    oracle.hf.cuda()
    return oracle


def make_llm(oracle: Oracle, **kwargs: Any) -> LLM:
    settings = {"dtype": "float32", "device": "cuda", "num_kv_blocks": 400, "block_size": 16, **kwargs}
    return LLM(str(oracle.folder), skip_tokenizer_init=True, **settings)


@torch.inference_mode()
def assert_greedy(oracle: Oracle, prompt: list[int], said: list[int], slack: float = 1e-3) -> None:
    """Each token is the likeliest in Hugging Face's eyes, or as likely but for rounding."""
    logits = oracle.hf(torch.tensor([prompt + said], device="cuda")).logits[0, len(prompt) - 1 : -1].float()
    chosen = logits.gather(1, torch.tensor(said, device="cuda")[:, None])[:, 0]
    assert float((logits.max(-1).values - chosen).max()) < slack


@pytest.mark.parametrize("enforce_eager", [False, True])
@pytest.mark.parametrize("run_ahead", [False, True])
def test_greedy_tokens_at_batches_from_one_to_nine(oracle: Oracle, run_ahead: bool, enforce_eager: bool) -> None:
    engine = make_llm(oracle, async_scheduling=run_ahead, enforce_eager=enforce_eager, max_num_seqs=10).engine
    assert (engine.runner.graphs is None) == enforce_eager
    watch, done = Watch(engine), {}
    for i, prompt in enumerate(PROMPTS):
        engine.add_request(str(i), prompt, SamplingParams(temperature=0, max_tokens=15 + i % 5))
        done |= {output.request_id: output for output in watch.step() if output.finished}
    done |= watch.run()
    for i, prompt in enumerate(PROMPTS):
        said = done[str(i)].outputs[0].token_ids
        assert len(said) == 15 + i % 5
        assert_greedy(oracle, prompt, said)
    assert bool(watch.ahead) == run_ahead
    assert_idle(engine)


def test_on_a_gpu_steps_run_ahead_and_are_replayed_unless_told_otherwise(oracle: Oracle) -> None:
    engine = make_llm(oracle, max_num_seqs=20).engine
    assert engine.runner.graphs is not None
    assert engine.runner.graphs.sizes == capture_sizes(20) == [1, 2, 4, 8, 16, 20]
    assert set(engine.runner.graphs.graph_bytes) == {1, 2, 4, 8, 16, 20}  # how many: others free memory meanwhile
    watch = Watch(engine)
    engine.add_request("a", [1, 2, 3], SamplingParams(temperature=0, max_tokens=9))
    assert_greedy(oracle, [1, 2, 3], watch.run()["a"].outputs[0].token_ids)
    assert len(watch.ahead) == 8


@pytest.mark.parametrize("n", [1, 3])
def test_a_seed_says_the_same_with_graphs_and_ahead(oracle: Oracle, n: int) -> None:
    params = SamplingParams(n=n, temperature=1.2, top_k=50, seed=3, max_tokens=16)
    told = []
    for settings in ({"enforce_eager": True, "async_scheduling": False}, {"async_scheduling": False}, {}):
        outputs = make_llm(oracle, max_num_seqs=16, **settings).generate(PROMPTS[:4], params, use_tqdm=False)
        told.append([completion.token_ids for output in outputs for completion in output.outputs])
    assert told[0] == told[1] == told[2]


def test_logprobs_and_prompt_logprobs(oracle: Oracle) -> None:
    params = SamplingParams(seed=1, max_tokens=10, logprobs=2, prompt_logprobs=1)
    outputs = make_llm(oracle).generate(PROMPTS[:5], params, use_tqdm=False)
    rows = [oracle.hf(torch.tensor([output.prompt_token_ids], device="cuda")).logits for output in outputs]
    for output, logits in zip(outputs, rows, strict=True):
        expected = logits[0].double().log_softmax(-1)
        for position, entry in enumerate(output.prompt_logprobs or []):
            for token_id, logprob in (entry or {}).items():
                assert abs(logprob.logprob - float(expected[position - 1, token_id])) < 1e-3
        assert len(output.outputs[0].logprobs or []) == 10


@pytest.mark.parametrize("params", [{"temperature": 0}, {"temperature": 1.0}], ids=["greedy", "sampled"])
def test_launching_a_decode_step_of_the_same_sequences_waits_for_nothing(oracle: Oracle, params: dict) -> None:
    engine = make_llm(oracle, max_num_seqs=8).engine
    for i in range(3):
        engine.add_request(str(i), PROMPTS[i], SamplingParams(max_tokens=40, **params))
    for _ in range(4):
        engine.step()
    sizes = forbid_waits_in_launches(engine)
    for _ in range(6):
        engine.step()
    assert sizes == [3] * 6


def test_what_a_graph_says_in_bfloat16_is_what_the_eager_step_says() -> None:
    """The embedded model, three sequences padded to four. Rounding may differ: only the first tokens are compared."""
    said = []
    for enforce_eager in (True, False):
        llm = LLM(device="cuda", dtype="bfloat16", enforce_eager=enforce_eager, max_num_seqs=8)
        outputs = llm.generate(
            ["Once upon a time", "从前", "One day"], SamplingParams(temperature=0, max_tokens=24), use_tqdm=False
        )
        said.append([output.outputs[0].token_ids[:4] for output in outputs])
    assert said[0] == said[1]
