"""A step with draft tokens waits for the device once, on the stand-in for a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from folovllm import LLM, SamplingParams
from folovllm.request import Sequence
from folovllm.worker.prompt_graph import PromptGraphs
from folovllm.worker.prompt_shape import PromptShape
from tests.fake_cuda import FakeCuda, fake_cuda_machine
from tests.helpers import make_hf_folder
from tests.m2.support import assert_idle
from tests.m8.support import Prophet, guess_always
from tests.m8.test_speculation_cuda import PROMPTS, SMALL, folder
from tests.m8.test_speculation_engine import answers_of

pytest.importorskip("triton")
__all__ = ["folder"]
GREEDY = SamplingParams(max_tokens=6, ignore_eos=True, temperature=0.0)
SEEDED = SamplingParams(max_tokens=6, ignore_eos=True, seed=3, top_k=9)


@pytest.fixture
def fake_cuda() -> Iterator[FakeCuda]:
    """With graphs for steps with prompts."""
    with fake_cuda_machine(total_bytes=2 << 30, prompt_graphs=True) as machine:
        yield machine


def steps_with_drafts(llm: LLM, cuda: FakeCuda) -> list[tuple[list[str], set[str]]]:
    """Of each such step: what the host waits for, and what is launched; filled while the engine runs. The others wait
    for nothing, and all are replayed."""
    found: list[tuple[list[str], set[str]]] = []
    launch = llm.engine.runner.execute_model

    def watched(scheduled: Any) -> Any:
        cuda.reset_counts()
        step = launch(scheduled)
        if scheduled.num_lookahead_tokens:
            found.append(([what for what, _ in cuda.waits], set(cuda.launches)))
        else:
            assert cuda.waits == []
        assert not cuda.launches.keys() & {"_paged_decode", "_paged_prefill"}
        return step

    llm.engine.runner.execute_model = watched  # type: ignore[method-assign]
    return found


@pytest.mark.exhaustive
def test_drafts_are_rows_of_a_tile_in_graphs_and_all_drawn_at_once(
    folder: Path, fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy ones and seeded ones, some with fewer drafts than others; the tokens are those without drafts."""
    replayed: list[list[int]] = []
    replay = PromptGraphs.replay

    def watched(self: PromptGraphs, inputs: Any, shape: PromptShape) -> Any:
        if shape.draft_len == 3:
            replayed.append(inputs.num_new.tolist())
        return replay(self, inputs, shape)

    class Ragged(Prophet):
        def propose(self, seqs: list[Sequence], counts: list[int]) -> list[list[int]]:
            return [draft[: 3 - 2 * at] for at, draft in enumerate(super().propose(seqs, counts))]

    monkeypatch.setattr(PromptGraphs, "replay", watched)
    asked = [GREEDY, SEEDED]
    plain = LLM(str(folder), **SMALL).generate(PROMPTS, asked, use_tqdm=False)
    llm = LLM(str(folder), speculative_config={"method": "ngram", "num_speculative_tokens": 3}, **SMALL)
    guess_always(llm.engine, Ragged(answers_of(plain)))
    steps = steps_with_drafts(llm, fake_cuda)
    guessed = llm.generate(PROMPTS, asked, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in guessed] == [output.outputs[0].token_ids for output in plain]
    assert sum(llm.engine.scheduler.drafts.num_accepted_per_pos) >= 3
    assert steps
    for waits, launches in steps:
        assert waits == ["tolist"]
        assert "graph" in launches
    assert [4, 2] in replayed


LONG: dict[str, Any] = {**SMALL, "max_model_len": 24, "num_kv_blocks": 24, "max_num_batched_tokens": 16}


def draft_llm(folder: Path, draft: Path, **settings: Any) -> LLM:
    speculative = {"method": "draft_model", "num_speculative_tokens": 3, "model": str(draft)}
    llm = LLM(str(folder), speculative_config=speculative, **{**LONG, **settings})
    guess_always(llm.engine)
    return llm


@pytest.mark.exhaustive
def test_a_draft_model_is_replayed_and_its_tokens_stay_on_the_device(folder: Path, fake_cuda: FakeCuda) -> None:
    """It is the model itself, so all drafts are right, and each lacks the keys of its last one: one replay more."""
    asked = [GREEDY, SamplingParams(max_tokens=8, ignore_eos=True, seed=3, top_k=9)]
    plain = LLM(str(folder), **LONG).generate(PROMPTS, asked, use_tqdm=False)
    llm = draft_llm(folder, folder)
    steps = steps_with_drafts(llm, fake_cuda)
    guessed = llm.generate(PROMPTS, asked, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in guessed] == [output.outputs[0].token_ids for output in plain]
    assert llm.engine.scheduler.drafts.num_accepted_per_pos[2] >= 1
    assert len(steps) >= 2
    for waits, launches in steps:
        assert waits == ["tolist"]
        assert "graph" in launches
    assert_idle(llm.engine)


@pytest.mark.exhaustive
def test_a_draft_that_is_mostly_wrong_changes_no_token(folder: Path, fake_cuda: FakeCuda, tmp_path: Path) -> None:
    """Beside preemption, and a sequence that edits its logits: then the host must know the drafts."""
    other = make_hf_folder(tmp_path, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, seed=5)
    pressed = {"num_kv_blocks": 6, "max_num_seqs": 3}
    edits = SamplingParams(max_tokens=10, ignore_eos=True, temperature=0.0, repetition_penalty=1.3)
    asked = [GREEDY, edits, SEEDED]
    prompts = [*PROMPTS, [8, 3]]
    plain = LLM(str(folder), **{**LONG, **pressed}).generate(prompts, asked, use_tqdm=False)
    llm = draft_llm(folder, other, **pressed)
    for some in (prompts, [prompts[0], prompts[2]]):  # among themselves, those two are drawn at once
        which = [prompts.index(prompt) for prompt in some]
        guessed = llm.generate(some, [asked[i] for i in which], use_tqdm=False)
        assert [each.outputs[0].token_ids for each in guessed] == [plain[i].outputs[0].token_ids for i in which]
    assert llm.engine.stats().preemptions
    assert_idle(llm.engine)


@pytest.mark.exhaustive
def test_its_graphs_have_the_sizes_of_the_large_models_where_the_cache_cuts_sequences(
    folder: Path, fake_cuda: FakeCuda
) -> None:
    """A step is packed once for both: of 17 tokens in a graph of 20, since no sequence gets longer."""
    room = {"max_num_seqs": 1, "num_kv_blocks": 5, "max_num_batched_tokens": 32, "max_model_len": 40}
    llm = draft_llm(folder, folder, **room)
    shapes = llm.engine.runner.graphs.prompts.shapes
    assert sorted({shape.num_tokens for shape in shapes if not shape.draft_len}) == [16, 20]
    asked = SamplingParams(max_tokens=2, ignore_eos=True, temperature=0.0)
    said, wanted = (
        each.generate([[5] * 17], asked, use_tqdm=False)[0].outputs[0].token_ids
        for each in (llm, LLM(str(folder), **{**LONG, **room}))
    )
    assert said == wanted


@pytest.mark.exhaustive
def test_drafts_in_a_graph_of_decodes_read_the_keys_of_those_before(folder: Path, fake_cuda: FakeCuda) -> None:
    """One of four sequences has drafts, so most rows of a graph of drafts would be padding. The stand-in runs the last
    programs first: a row must not need what another program of its kernel stores."""
    asked, room = [GREEDY] * 4, {**SMALL, "max_num_seqs": 4, "num_kv_blocks": 16}
    prompts = [*PROMPTS, [8, 3], [4, 4]]
    plain = LLM(str(folder), **room).generate(prompts, asked, use_tqdm=False)
    llm = LLM(str(folder), speculative_config={"method": "ngram", "num_speculative_tokens": 3}, **room)
    guess_always(llm.engine, Prophet(answers_of(plain[:1]), wrong=0.0))
    guessed = llm.generate(prompts, asked, use_tqdm=False)
    assert [each.outputs[0].token_ids for each in guessed] == [each.outputs[0].token_ids for each in plain]
    drafts = llm.engine.scheduler.drafts
    assert sum(drafts.num_accepted_per_pos) == drafts.num_draft_tokens > 0
