"""A draft model in the engine: the same tokens as without, whatever happens to them; and which drafts are refused."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from folovllm import LLM, SamplingParams
from folovllm.engine.builder.proposer import DRAFT_FOLDER
from folovllm.errors import ModelLoadError
from tests.helpers import edit_config
from tests.m7.support import FOLDERS, NAMES
from tests.m8.support import guess_always

PROMPTS = [[5, 99, 17, 3, 100, 41] * 4, [7, 7, 1], list(range(20, 60)), [5, 99, 17, 3, 100, 41] * 4 + [9]]


def drafting(**options: Any) -> LLM:
    speculative = {"method": "draft_model", "num_speculative_tokens": 4, **options.pop("speculative", {})}
    llm = LLM(dtype="float32", speculative_config=speculative, **options)
    guess_always(llm.engine)
    return llm


def tokens(llm: LLM, **params: Any) -> list[list[list[int]]]:
    outputs = llm.generate(PROMPTS, SamplingParams(**{"max_tokens": 24, "ignore_eos": True, **params}), use_tqdm=False)
    return [[list(each.token_ids) for each in output.outputs] for output in outputs]


@pytest.fixture(scope="module")
def plain() -> LLM:
    return LLM(dtype="float32")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"block_size": 4, "num_kv_blocks": 32, "max_model_len": 120},  # preempted, and their blocks are cached
        {"block_size": 4, "num_kv_blocks": 32, "max_model_len": 120, "preemption_mode": "swap", "swap_space": 0.01},
        {"max_num_batched_tokens": 16},
        {"enforce_eager": True},
        {"speculative": {"rejection_sample_method": "probabilistic"}},
    ],
    ids=["plain", "recompute", "swap", "chunks", "operator by operator", "probabilistic"],
)
def test_the_draft_changes_no_token(plain: LLM, options: dict[str, Any]) -> None:
    llm = drafting(**options)
    for params in ({"temperature": 0.0}, {"temperature": 0.9, "seed": 7, "n": 2}):
        assert tokens(llm, **params) == tokens(plain, **params)
    if "num_kv_blocks" in options:
        assert llm.engine.stats().preemptions > 0


def test_most_guesses_are_right_where_the_draft_has_learnt(plain: LLM) -> None:
    question = [{"role": "user", "content": "What is paged attention?"}]
    llm, params = drafting(block_size=4), SamplingParams(temperature=0, max_tokens=100)
    (answer,) = llm.chat(question, params, use_tqdm=False)
    assert answer.outputs[0].text == plain.chat(question, params, use_tqdm=False)[0].outputs[0].text
    assert llm.engine.stats().steps < 0.5 * len(answer.outputs[0].token_ids)
    # Once more, its prompt in the prefix cache: the draft's keys are there, too.
    steps = llm.engine.stats().steps
    (again,) = llm.chat(question, params, use_tqdm=False)
    assert again.num_cached_tokens
    assert llm.engine.stats().steps - steps <= steps


def changed(folder: Path, **fields: Any) -> str:
    return str(edit_config(Path(shutil.copytree(DRAFT_FOLDER, folder)), **fields))


def test_a_draft_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    other = changed(tmp_path / "other", vocab_size=3000)
    with pytest.raises(ValueError) as caught:
        drafting(speculative={"model": other})
    assert str(caught.value) == (
        f"speculative_config['model'] must have the large model's vocabulary of 3,072 tokens, got {other!r} with "
        "3,000; name the folder of a draft that was made for it"
    )


def test_a_draft_that_cannot_be_computed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"^speculative_config\['model'\]: .*tensor model.layers.0.mlp"):
        drafting(speculative={"model": changed(tmp_path / "wrong", intermediate_size=200)})


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError) as caught:
        drafting(speculative={"model": str(tmp_path / "none")})
    assert str(caught.value).startswith(
        f"speculative_config['model']: model must be 'embedded', a folder or a hub id, got {str(tmp_path / 'none')!r}"
    )


def test_a_draft_that_has_learnt_less_is_taken_with_a_warning(
    tmp_path: Path, plain: LLM, caplog: pytest.LogCaptureFixture
) -> None:
    """A longer one needs no word."""
    short = changed(tmp_path / "short", max_position_embeddings=16)
    with caplog.at_level(logging.WARNING, logger="folovllm"):
        llm = drafting(speculative={"model": short}, max_model_len=120)
    assert f"the draft model {short} has learnt 16 tokens, max_model_len is 120: beyond, its proposals are worse" in (
        caplog.text
    )
    assert tokens(llm, temperature=0.0) == tokens(plain, temperature=0.0)


def test_a_quantised_draft_guesses_as_well() -> None:
    """Here it is the model itself, so that all of its guesses are right: 24 tokens in runs of 5."""
    folder = str(FOLDERS / NAMES[0])
    llm = LLM(folder, dtype="float32", skip_tokenizer_init=True)
    drafts = drafting(model=folder, skip_tokenizer_init=True, speculative={"model": folder})
    prompts, params = [[5, 99, 17], [7, 7, 1]], SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    outputs = [each.generate(prompts, params, use_tqdm=False) for each in (llm, drafts)]
    assert len({tuple(tuple(one.outputs[0].token_ids) for one in output) for output in outputs}) == 1
    assert drafts.engine.stats().steps == 6
