"""Guesses on the stand-in for a GPU, where a kernel draws and steps without guesses are replayed from graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from folovllm import LLM, SamplingParams
from folovllm.sample import rejection
from folovllm.sample.logits_processors import LogitsProcessor, register_logits_processor
from folovllm.sample.rejection import DraftedRows
from folovllm.worker.batch_sampler import BatchSampler
from tests.fake_cuda import FakeCuda
from tests.helpers import make_hf_folder, some
from tests.m1.sampling_reference import assert_fits, distribution
from tests.m8.draft_support import sequence
from tests.m8.support import Prophet, guess_always
from tests.m8.test_speculation_engine import answers_of

pytest.importorskip("triton")
pytestmark = pytest.mark.slow  # interpreted: some seconds each
SMALL: dict[str, Any] = {
    "skip_tokenizer_init": True, "dtype": "float32", "max_num_seqs": 2, "max_model_len": 16, "num_kv_blocks": 8,
    "block_size": 4, "max_num_batched_tokens": 8, "swap_space": 0.001, "device": "cuda",
}  # fmt: skip
PROMPTS = [[5, 9, 17], [7, 7, 1, 30, 2]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hf_folder(
        tmp_path_factory.mktemp("model"), num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "params", some([{"seed": 3, "top_k": 9, "logprobs": 2}, {"temperature": 0.0}]), ids=["seeded", "greedy"]
)
def test_tokens_are_those_without_guesses(folder: Path, fake_cuda: FakeCuda, params: dict[str, Any]) -> None:
    asked = SamplingParams(max_tokens=6, ignore_eos=True, **params)
    plain = LLM(str(folder), **SMALL).generate(PROMPTS, asked, use_tqdm=False)
    llm = LLM(str(folder), speculative_config={"method": "ngram", "num_speculative_tokens": 3}, **SMALL)
    guess_always(llm.engine, Prophet(answers_of(plain)))
    fake_cuda.reset_counts()
    guessed = llm.generate(PROMPTS, asked, use_tqdm=False)
    for one, other in zip(plain, guessed, strict=True):
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
        assert [list(entry) for entry in one.outputs[0].logprobs or ()] == [
            list(entry) for entry in other.outputs[0].logprobs or ()
        ]
    assert sum(llm.engine.scheduler.drafts.num_accepted_per_pos) >= 4
    assert fake_cuda.compiled == []


@pytest.mark.exhaustive
def test_a_draft_model_guesses_there_too(folder: Path, fake_cuda: FakeCuda) -> None:
    """It is the model itself, so that all guesses are right: 1 token comes with the prompt, then 4, then 1."""
    asked = SamplingParams(max_tokens=6, ignore_eos=True, temperature=0)
    plain = LLM(str(folder), **SMALL).generate(PROMPTS[:1], asked, use_tqdm=False)
    speculative = {"method": "draft_model", "num_speculative_tokens": 3, "model": str(folder)}
    llm = LLM(str(folder), speculative_config=speculative, **SMALL)
    guess_always(llm.engine)
    fake_cuda.reset_counts()
    guessed = llm.generate(PROMPTS[:1], asked, use_tqdm=False)
    assert guessed[0].outputs[0].token_ids == plain[0].outputs[0].token_ids
    assert llm.engine.stats().steps == 3
    assert fake_cuda.compiled == []


def probabilistic(folder: Path, **settings: Any) -> LLM:
    """Its draft model is the model itself."""
    speculative = {"method": "draft_model", "num_speculative_tokens": 3, "model": str(folder)}
    speculative["rejection_sample_method"] = "probabilistic"
    llm = LLM(str(folder), speculative_config=speculative, **{**SMALL, **settings})
    guess_always(llm.engine)
    return llm


def test_a_guess_that_the_model_itself_has_drawn_is_kept(folder: Path, fake_cuda: FakeCuda) -> None:
    """1 token comes with the prompt, then 4, then 1."""
    llm = probabilistic(folder, enforce_eager=True)
    fake_cuda.reset_counts()
    asked = SamplingParams(max_tokens=6, ignore_eos=True)
    llm.generate(PROMPTS[:1], asked, use_tqdm=False)
    assert llm.engine.stats().steps == 3
    assert not [name for name, _ in fake_cuda.compiled if "sample" in name]


@pytest.mark.exhaustive
def test_greedy_and_seeded_tokens_are_those_without_guesses_beside_drawn_ones(
    folder: Path, fake_cuda: FakeCuda
) -> None:
    short = {"max_tokens": 4, "ignore_eos": True}
    asked = [
        SamplingParams(**short, temperature=0),
        SamplingParams(**short, seed=3, logit_bias={7: 2.0}, top_k=9, logprobs=1, logprobs_mode="processed"),
        SamplingParams(**short, seed=4),
        SamplingParams(**short),
    ]
    prompts = [[5], [7], [8], [6]]
    room = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "enforce_eager": True}
    expected = LLM(str(folder), **{**SMALL, **room}).generate(prompts, asked, use_tqdm=False)
    llm = probabilistic(folder, **room)
    outputs = llm.generate(prompts, asked, use_tqdm=False)
    for output, wanted in zip(outputs[:3], expected, strict=False):
        assert output.outputs[0].token_ids == wanted.outputs[0].token_ids
    assert llm.engine.scheduler.drafts.num_accepted_per_pos[1] >= 2  # of the greedy one, and of the last


VOCAB = 12
LOGITS = torch.randn(VOCAB, generator=torch.Generator().manual_seed(0)) * 1.5
FAR = (-LOGITS).softmax(-1)  # what the draft thinks
WAYS: list[dict[str, Any]] = [
    {"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.8, "logit_bias": {2: 1.5}}, {"min_p": 0.2, "temperature": 1.5},
]  # fmt: skip


def exact(params: dict[str, Any]) -> np.ndarray:
    logits = LOGITS.tolist()
    for token, bias in params.get("logit_bias", {}).items():
        logits[token] += bias
    return distribution(logits, **{name: value for name, value in params.items() if name != "logit_bias"})


def draw(asked: list[dict[str, Any]], probs: torch.Tensor | None, cuda: FakeCuda) -> list[int]:
    """A token for each, with guesses that are drawn from the rows of probs where these are probabilities. -5: its
    processor fails."""
    device = torch.device("cuda", 0)
    sampling = BatchSampler(VOCAB, frozenset(), device, uses_kernel=True)
    seqs = [sequence(str(i), [1], [1], **{"temperature": 1.0, **params}) for i, params in enumerate(asked)]
    torch.manual_seed(1234)
    for seq in seqs:
        sampling.add(seq)
    logits, positions = LOGITS.expand(len(seqs), -1).to(device), torch.arange(len(seqs)).to(device)
    drafted = None
    if probs is not None:
        ids = torch.where(probs > 0, probs, 1e-9).multinomial(1).squeeze(1)
        drafted = DraftedRows(ids.to(device), probs.to(device))
    with cuda.no_waits():
        output, failures = sampling.draw(seqs, logits, positions, drafted=drafted)
    tokens = output.token_ids.tolist()
    return [-5 if seq.seq_id in failures else token for seq, token in zip(seqs, tokens, strict=True)]


def keep_all(target: torch.Tensor, draft: torch.Tensor, drafted: torch.Tensor, _: Any) -> tuple[None, torch.Tensor]:
    return None, drafted


def test_a_guess_is_checked_against_the_distribution_after_the_filters(
    fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[torch.Tensor, torch.Tensor]] = []

    def note(target: torch.Tensor, draft: torch.Tensor, *args: Any) -> Any:
        asked.extend(zip(target, draft, strict=True))
        return keep_all(target, draft, *args)

    monkeypatch.setattr(rejection, "accept_or_replace", note)
    drafts = torch.rand(4, VOCAB).softmax(-1)
    draw(WAYS, drafts, fake_cuda)
    for (target, draft), params, wanted in zip(asked, WAYS, drafts, strict=True):
        np.testing.assert_allclose(target.cpu(), exact(params), atol=1e-6)
        assert draft.cpu().equal(wanted)


def test_rows_without_a_guess_draw_as_ever(fake_cuda: FakeCuda) -> None:
    """NaN is what a draft says whose activations overflowed."""
    asked = [*WAYS, {"temperature": 0}, {"logprobs": 1}, {"seed": 5}]
    none = torch.zeros(len(asked), VOCAB)
    none[::2] = torch.nan
    assert draw(asked, none, fake_cuda) == draw(asked, None, fake_cuda)


@register_logits_processor("m8_fails")
class Fails(LogitsProcessor):
    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("boom")


def test_a_processor_that_fails_leaves_the_others_their_guesses(
    fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rejection, "accept_or_replace", keep_all)
    asked = [{"top_k": 2}, {"extra_args": {"m8_fails": 1}}, {"min_p": 0.1}, {"top_k": 1}]
    assert draw(asked, torch.eye(VOCAB)[[4, 5, 6, 7]], fake_cuda) == [4, -5, 6, 7]


def counts_of(params: dict[str, Any], cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """The interpreter has no time for so many rows, so a kernel that is told what the filters keep takes its place."""

    def sample(logits: torch.Tensor, *_: Any, kept: torch.Tensor, **more: Any) -> torch.Tensor:
        kept.copy_(keeps.expand_as(kept))
        return kept.new_zeros(len(kept), dtype=torch.int64)

    monkeypatch.setattr("folovllm.sample.kernels.sampler.sample", sample)
    keeps = torch.from_numpy(exact(params) > 0).to(torch.device("cuda", 0))
    return np.bincount(draw([params] * 3000, FAR.expand(3000, -1), cuda), minlength=VOCAB)


@pytest.mark.parametrize("params", WAYS, ids=str)
def test_drawn_guesses_leave_the_distribution(
    fake_cuda: FakeCuda, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_fits(counts_of(params, fake_cuda, monkeypatch), exact(params))


@pytest.mark.exhaustive
def test_a_draft_model_has_keys_of_a_prompt_of_one_token(folder: Path, fake_cuda: FakeCuda) -> None:
    """It is the model itself, so all its tokens are right."""
    speculative = {"method": "draft_model", "num_speculative_tokens": 3, "model": str(folder)}
    llm = LLM(str(folder), speculative_config=speculative, **SMALL)
    guess_always(llm.engine)
    llm.generate([[5]], SamplingParams(max_tokens=9, ignore_eos=True, temperature=0.0), use_tqdm=False)
    drafts = llm.engine.scheduler.drafts
    assert sum(drafts.num_accepted_per_pos) == drafts.num_draft_tokens == 6
