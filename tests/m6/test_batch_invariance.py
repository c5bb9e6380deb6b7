"""batch_invariant=True: what a request gets is bit for bit what it gets alone, whatever the engine does beside it.

The oracle is the same engine with one request at a time, no chunks, no cache and room for all. In float32 its greedy
tokens are Hugging Face's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from folovllm import LLM, LLMEngine, SamplingParams
from folovllm.engine.builder.defaults import config_for_llm
from folovllm.models.one_call import OneCallOps
from folovllm.outputs import RequestOutput
from folovllm.utils import cpu_kernels
from tests.helpers import make_hf_folder
from tests.m2.support import assert_idle
from tests.m3.oracle import Oracle
from tests.m6.test_parity_m6 import prompts_that_begin_alike

REASON = cpu_kernels.unavailable_reason()
needs_kernels = pytest.mark.skipif(REASON is not None, reason=f"the CPU kernels cannot run: {REASON}")
# The dtype, and whether the CPU has bf16 units.
KINDS = {"float32": ("float32", "no"), "bfloat16": ("bfloat16", "no"), "bfloat16 with units": ("bfloat16", "yes")}
PROMPTS = [*prompts_that_begin_alike(), [i * 7 % 256 for i in range(33)], [i * 5 % 256 for i in range(64)]]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=9, logprobs=3, prompt_logprobs=2),
    SamplingParams(temperature=0.8, top_p=0.9, seed=1, n=2, max_tokens=8, logprobs=1),
    SamplingParams(seed=2, max_tokens=12, logprobs=2, logprobs_mode="processed", repetition_penalty=1.2),
    SamplingParams(use_beam_search=True, n=2, best_of=2, temperature=0, max_tokens=5, logprobs=2),
    SamplingParams(seed=3, top_k=20, min_p=0.02, n=3, max_tokens=7),
    SamplingParams(temperature=0, max_tokens=14),
    SamplingParams(seed=4, min_p=0.1, max_tokens=6, logprobs=0, prompt_logprobs=0),
]
ASKED = [(prompt, PARAMS[i % len(PARAMS)]) for i, prompt in enumerate(PROMPTS)]
LONGEST = 96
Bits = tuple[Any, ...]


@pytest.fixture(scope="module", params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    if REASON is not None:
        pytest.skip(f"the CPU kernels cannot run: {REASON}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOLOVLLM_CPU_BF16", KINDS[request.param][1])
        yield request.param


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hf_folder(tmp_path_factory.mktemp("model"), max_position_embeddings=128)


@pytest.fixture(scope="module")
def alone(folder: Path, kind: str) -> list[Bits]:
    engine = make_engine(folder, kind, enable_chunked_prefill=False, enable_prefix_caching=False)
    return [serve(engine, [number], [0])[0] for number in range(len(ASKED))]


def make_engine(folder: Path, kind: str, **kwargs: Any) -> LLMEngine:
    options = {"batch_invariant": True, "max_model_len": LONGEST, "block_size": 4, "skip_tokenizer_init": True}
    return LLMEngine(config_for_llm(str(folder), dtype=KINDS[kind][0], device="cpu", **{**options, **kwargs}))


def serve(engine: LLMEngine, numbers: list[int], waits: list[int]) -> list[Bits]:
    """The bits of these requests, of which each comes so many steps after the one before."""
    coming, done, wait = list(zip(numbers, waits, strict=True)), dict[str, RequestOutput](), 0
    while coming or engine.has_unfinished_requests():
        while coming and wait >= coming[0][1]:
            (number, _), wait = coming.pop(0), 0
            prompt, params = ASKED[number]
            engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
        done |= {output.request_id: output for output in engine.step() if output.finished}
        wait += 1
    assert_idle(engine)
    return [bits(done[str(number)]) for number in numbers]


def bits(output: RequestOutput) -> Bits:
    """All that was computed for a request. A float's hex shows its last bit."""

    def of(entries: Any) -> list[Any]:
        return [e and [(i, lp.logprob.hex(), lp.rank) for i, lp in e.items()] for e in entries or []]

    texts = [(c.token_ids, of(c.logprobs), (c.cumulative_logprob or 0.0).hex()) for c in output.outputs]
    return texts, of(output.prompt_logprobs)


schedules = st.fixed_dictionaries(
    {
        "max_num_batched_tokens": st.sampled_from([5, 16, 33, 256]),
        "max_num_seqs": st.sampled_from([3, 16]),
        "enable_prefix_caching": st.booleans(),
        "async_scheduling": st.booleans(),
        "preemption_mode": st.sampled_from(["recompute", "swap"]),
        "num_kv_blocks": st.sampled_from([26, 400]),
        "block_size": st.sampled_from([4, 16]),
    }
)


@given(data=st.data(), schedule=schedules)
@settings(max_examples=3)
def test_a_request_has_the_bits_that_it_has_alone(
    folder: Path, kind: str, alone: list[Bits], data: st.DataObject, schedule: dict[str, Any]
) -> None:
    numbers = data.draw(st.permutations(range(len(ASKED))))[: data.draw(st.integers(2, len(ASKED)))]
    waits = data.draw(st.lists(st.integers(0, 3), min_size=len(numbers), max_size=len(numbers)))
    engine = make_engine(folder, kind, **schedule)
    for tensor in engine.runner.kv_cache.tensors:
        tensor.fill_(torch.nan)  # what no token has written takes no part
    assert serve(engine, numbers, waits) == [alone[number] for number in numbers]


def test_they_stay_when_blocks_are_short_and_when_all_is_cached(folder: Path, kind: str, alone: list[Bits]) -> None:
    numbers = list(range(len(ASKED)))
    engine = make_engine(folder, kind, num_kv_blocks=26, max_num_batched_tokens=24)
    for mode in range(2):
        assert serve(engine, numbers, [mode] * len(numbers)) == alone
    stats = engine.stats()
    assert stats.preemptions > 0
    assert stats.prefix_cache_hits > 0


@needs_kernels
def test_greedy_tokens_are_hugging_faces(oracle: Oracle) -> None:
    llm = LLM(
        str(oracle.folder), skip_tokenizer_init=True, dtype="float32", batch_invariant=True, max_model_len=LONGEST
    )
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=16, logprobs=2), use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == [oracle.greedy(prompt, 16) for prompt in PROMPTS]
    for output in outputs:
        oracle.assert_logprobs(output)


@needs_kernels
@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"dtype": "float16"}, "^dtype must be 'float32' or 'bfloat16' with batch_invariant=True, got 'float16'"),
        (
            {"attention_backend": "paged_torch"},
            "^attention_backend 'paged_torch' cannot keep batch_invariant=True: .*leave",
        ),
        ({"head_dim": 8}, "^batch_invariant=True cannot be kept with heads of 8 on a CPU: .* multiples of 16; leave"),
        ({"attention_backend": "dense"}, "^attention_backend 'dense' cannot keep batch_invariant=True"),
    ],
)
def test_what_cannot_keep_it_is_refused_by_name(
    folder: Path, kwargs: dict[str, Any], text: str, tmp_path: Path
) -> None:
    if "head_dim" in kwargs:
        kwargs = dict(kwargs)
        folder = make_hf_folder(tmp_path, head_dim=kwargs.pop("head_dim"))
    with pytest.raises(ValueError, match=text):
        LLM(str(folder), **{"skip_tokenizer_init": True, "device": "cpu", "batch_invariant": True, **kwargs})


def test_without_the_compiled_kernels_it_says_that_it_needs_a_compiler(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOLOVLLM_CPU_KERNELS", "no")
    text = "^batch_invariant=True needs the compiled CPU kernels, .*: FOLOVLLM_CPU_KERNELS=no; install a C.. compiler "
    with pytest.raises(ValueError, match=text):
        make_engine(folder, "float32")


@needs_kernels
def test_its_own_backend_may_be_named_and_all_layers_are_one_call(folder: Path) -> None:
    engine = make_engine(folder, "float32", attention_backend="cpu_invariant")
    assert engine.runner.kv_cache.backend.name == "cpu_invariant"
    serve(engine, [0], [0])
    ops = engine.runner.model.model.ops
    assert isinstance(ops, OneCallOps)
    assert ops.prepared is not None
