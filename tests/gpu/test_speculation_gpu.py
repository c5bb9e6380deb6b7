"""Guesses on a GPU: Hugging Face's tokens out of replayed steps, seeds as without guesses, drawn ones in proportion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from folovllm import LLM, SamplingParams
from folovllm.sample.rejection import DraftedRows
from folovllm.worker.batch_sampler import BatchSampler
from folovllm.worker.input_batch import InputBatch
from tests.gpu.places import Place, on_every_place, waits_forbidden
from tests.gpu.test_async_gpu import PROMPTS, Answers, answers
from tests.m1.sampling_reference import assert_fits, distribution
from tests.m2.support import assert_idle
from tests.m8.draft_support import sequence
from tests.m8.support import Prophet, guess_always
from tests.m8.test_speculation_engine import FEATURES, answers_of

__all__ = ["answers"]


def make_llm(folder: Path, place: Place, speculative: dict[str, Any] | None = None, **settings: Any) -> LLM:
    return LLM(
        str(folder), skip_tokenizer_init=True, dtype="float32", device=place.device, max_num_seqs=6, block_size=16,
        num_kv_blocks=200, max_model_len=128, speculative_config=speculative, **settings,
    )  # fmt: skip


def drafted(llm: LLM, answers: dict[Any, list[int]]) -> LLM:
    guess_always(llm.engine, Prophet(answers))
    return llm


@on_every_place
@pytest.mark.parametrize("enforce_eager", [False, True])
def test_tokens_are_hugging_faces(
    answers: Answers, place: Place, enforce_eager: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    prepare = InputBatch.prepare

    def watched(self: InputBatch, *args: Any, **settings: Any) -> Any:
        inputs = prepare(self, *args, **settings)
        if len(inputs.packed) and inputs.logits_at is None:  # replayed, without prompts
            rows.append(int(inputs.num_new.sum()) - len(inputs.rows))
        return inputs

    monkeypatch.setattr(InputBatch, "prepare", watched)
    folder, expected = answers
    llm = make_llm(folder, place, {"method": "ngram", "num_speculative_tokens": 4}, enforce_eager=enforce_eager)
    known = {(tuple(prompt), 0): said for prompt, said in zip(PROMPTS, expected, strict=True)}
    outputs = drafted(llm, known).generate(PROMPTS, SamplingParams(temperature=0, max_tokens=20), use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == expected
    assert sum(llm.engine.scheduler.drafts.num_accepted_per_pos) > 30
    assert (max(rows, default=0) > 6) == (place.device == "cuda" and not enforce_eager)  # guesses in replayed steps
    assert_idle(llm.engine)


@on_every_place
@pytest.mark.parametrize("feature", FEATURES)
def test_each_feature_is_as_without_guesses(answers: Answers, place: Place, feature: str) -> None:
    asked = SamplingParams(**{"max_tokens": 12, **FEATURES[feature]})
    plain = make_llm(answers[0], place).generate(PROMPTS[:4], asked, use_tqdm=False)
    llm = make_llm(answers[0], place, {"method": "ngram", "num_speculative_tokens": 3})
    guessed = drafted(llm, answers_of(plain)).generate(PROMPTS[:4], asked, use_tqdm=False)
    said, wanted = ([[one.token_ids for one in output.outputs] for output in some] for some in (guessed, plain))
    assert said == wanted
    assert sum(llm.engine.scheduler.drafts.num_accepted_per_pos) > 0
    assert_idle(llm.engine)


@on_every_place
@pytest.mark.parametrize("method", ["strict", "probabilistic"])
def test_the_model_as_its_own_draft_is_nearly_always_right(answers: Answers, place: Place, method: str) -> None:
    folder, expected = answers
    speculative = {"method": "draft_model", "num_speculative_tokens": 3, "model": str(folder)}
    llm = make_llm(folder, place, {**speculative, "rejection_sample_method": method})
    guess_always(llm.engine)
    greedy, drawn = SamplingParams(temperature=0, max_tokens=20), SamplingParams(max_tokens=20, ignore_eos=True)
    outputs = llm.generate(PROMPTS[:4], greedy, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == expected[:4]
    assert llm.engine.scheduler.drafts.num_accepted_per_pos[0] > 15
    before = llm.engine.scheduler.drafts.num_accepted_per_pos[0]
    llm.generate(PROMPTS[:4], drawn, use_tqdm=False)
    assert (llm.engine.scheduler.drafts.num_accepted_per_pos[0] - before > 15) == (method == "probabilistic")
    assert_idle(llm.engine)


VOCAB, ROWS = 12, 3000
WAYS: list[dict[str, Any]] = [
    {"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.8, "logit_bias": {2: 1.5}}, {"min_p": 0.2, "temperature": 1.5},
]  # fmt: skip


@pytest.mark.gpu  # the interpreter has no time for so many rows
@pytest.mark.parametrize("params", WAYS, ids=str)
def test_drawn_guesses_leave_the_distribution(params: dict[str, Any]) -> None:
    """Its rehearsal is tests/m8/test_speculation_cuda.py."""
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(0)) * 1.5
    edited = logits.clone()
    for token, bias in params.get("logit_bias", {}).items():
        edited[token] += bias
    wanted = distribution(edited.tolist(), **{name: value for name, value in params.items() if name != "logit_bias"})
    device = torch.device("cuda")
    sampling = BatchSampler(VOCAB, frozenset(), device, uses_kernel=True)
    seqs = [sequence(str(i), [1], [1], **{"temperature": 1.0, **params}) for i in range(ROWS)]
    for seq in seqs:
        sampling.add(seq)
    torch.manual_seed(1234)
    far = (-logits).softmax(-1).expand(ROWS, -1)  # what the draft thinks
    guesses = DraftedRows(far.multinomial(1).squeeze(1).to(device), far.to(device))
    rows = logits.expand(ROWS, -1).to(device), torch.arange(ROWS, device=device)
    sampling.draw(seqs, *rows, drafted=guesses)  # compiles
    with waits_forbidden():
        output, failures = sampling.draw(seqs, *rows, drafted=guesses)
    assert not failures
    assert_fits(np.bincount(output.token_ids.cpu(), minlength=VOCAB), wanted)
