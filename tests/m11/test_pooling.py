"""An answer that is a vector is that of transformers' hidden states, pooled by torch: through chunks, cached prefixes,
preemption, steps in turn or ahead, in float32.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import torch

from folovllm import LLM, AsyncLLM, PoolingParams
from folovllm.errors import LogitsNotFiniteError, PromptTooLongError
from tests.helpers import edit_config, edit_tensors, names, some, thinned
from tests.m6.support import caching_engine
from tests.m6.test_parity_m6 import CHUNKS, PRESSURES
from tests.m9.ranks_support import rank_threads
from tests.m9.support import RankThread
from tests.m11.pooling_support import (
    add_modules,
    close,
    embeddings,
    logits,
    make_folder,
    pooled,
    prompts_that_begin_alike,
    saved,
    serve,
)

__all__ = ["rank_threads"]
PROMPTS = prompts_that_begin_alike()
MODES = {
    "LAST": {"pooling_mode": "lasttoken"},
    "MEAN": {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True},
}
PLAIN: dict[str, Any] = {"dtype": "float32", "max_model_len": 64, "block_size": 4, "num_kv_blocks": 64}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> torch.nn.Module:
    return make_folder(tmp_path_factory.mktemp("pooling") / "qwen3")


@pytest.fixture(scope="module")
def folders(model: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By pooling type."""
    return {
        name: add_modules(saved(model, tmp_path_factory.mktemp(name)), mode, "Normalize")
        for name, mode in MODES.items()
    }


@pytest.mark.parametrize(
    ("kind", "chunk", "pressure", "ahead"),
    thinned(names(MODES), names(CHUNKS), names(PRESSURES), {"in turn": False, "ahead": True}),
)
def test_vectors_are_those_of_transformers_hidden_states(
    model: torch.nn.Module, folders: dict[str, Path], kind: str, chunk: str, pressure: str, ahead: bool
) -> None:
    """They come twice, the second time to what the first left in the cache."""
    options = {**PRESSURES[pressure], **CHUNKS[chunk], "async_scheduling": ahead}
    engine = caching_engine(folders[kind], max_model_len=64, block_size=4, **options)
    wanted = embeddings(model, PROMPTS, kind)
    for seed in range(2):
        close(serve(engine, PROMPTS, seed=seed), wanted)
    assert engine.runner.pooler is not None
    assert not engine.runner.pooler._sums


def test_a_prefix_serves_the_last_row_and_never_a_mean(model: torch.nn.Module, folders: dict[str, Path]) -> None:
    for kind, cached in (("LAST", 60), ("MEAN", 0)):
        llm = LLM(str(folders[kind]), **PLAIN)
        first, second = (llm.embed(PROMPTS[-1])[0] for _ in range(2))
        assert (first.num_cached_tokens, second.num_cached_tokens) == (0, cached)
        close([first.outputs.embedding, second.outputs.embedding], embeddings(model, PROMPTS[-1:] * 2, kind))


def test_a_mean_that_was_preempted_on_its_way_begins_anew(model: torch.nn.Module, folders: dict[str, Path]) -> None:
    engine = caching_engine(folders["MEAN"], max_model_len=64, block_size=4, num_kv_blocks=16, max_num_batched_tokens=8)
    engine.add_request("a", PROMPTS[0], PoolingParams())
    engine.step()
    engine.scheduler.start_over()
    while not (outputs := engine.step()):
        pass
    close([outputs[0].pooling_output], embeddings(model, PROMPTS[:1], "MEAN"))


def test_a_prompt_may_fill_max_model_len(model: torch.nn.Module, folders: dict[str, Path]) -> None:
    llm = LLM(str(folders["LAST"]), **PLAIN)
    assert len(PROMPTS[-1]) == 64
    close([llm.embed(PROMPTS[-1])[0].outputs.embedding], embeddings(model, PROMPTS[-1:]))
    with pytest.raises(PromptTooLongError, match=r"^prompt has 65 tokens, but max_model_len is 64 \(the KV cache"):
        llm.embed([PROMPTS[-1] + [1]])


def test_what_was_aborted_leaves_no_sum(folders: dict[str, Path]) -> None:
    engine = caching_engine(folders["MEAN"], max_model_len=64, block_size=4, num_kv_blocks=64, max_num_batched_tokens=8)
    engine.add_request("a", PROMPTS[-1], PoolingParams())
    engine.step()
    pooler = engine.runner.pooler
    assert pooler is not None
    assert len(pooler._sums) == 1
    engine.abort_request("a")
    engine.add_request("b", [1], PoolingParams())
    engine.step()
    assert not pooler._sums


def test_dimensions_and_activation_are_each_requests_own(model: torch.nn.Module, folders: dict[str, Path]) -> None:
    llm = LLM(str(folders["MEAN"]), **PLAIN)
    plain, wanted = pooled(model, PROMPTS[:3], "MEAN"), [PoolingParams(), PoolingParams(8), PoolingParams(8, False)]
    found = [output.outputs.data for output in llm.embed(PROMPTS[:3], pooling_params=wanted)]
    close(found[0], torch.nn.functional.normalize(plain[0], dim=-1))
    close(found[1], torch.nn.functional.normalize(plain[1, :8], dim=-1))
    close(found[2], plain[2, :8])


def test_each_spelling_of_the_mode_is_read(model: torch.nn.Module, tmp_path: Path) -> None:
    folder = saved(model, tmp_path)
    for mode, kind in (
        ({"pooling_mode_lasttoken": True}, "LAST"),
        ({"pooling_mode": ["mean"]}, "MEAN"),
        ({"pooling_mode_cls_token": False}, "MEAN"),  # sentence-transformers' default
    ):
        llm = LLM(str(add_modules(folder, mode)), **PLAIN)  # without a Normalize
        close([output.outputs.embedding for output in llm.embed(PROMPTS)], pooled(model, PROMPTS, kind))


def test_bare_names_under_a_causal_architecture_are_read(model: torch.nn.Module, tmp_path: Path) -> None:
    """As Qwen3-Embedding has them: which names there are is decided by the file."""
    folder = add_modules(
        edit_config(saved(model, tmp_path), architectures=["Qwen3ForCausalLM"]), MODES["LAST"], "Normalize"
    )
    close([output.outputs.embedding for output in LLM(str(folder), **PLAIN).embed(PROMPTS)], embeddings(model, PROMPTS))


def test_a_language_model_pools_where_it_is_asked_to(tmp_path: Path) -> None:
    hf = make_folder(tmp_path, "ForCausalLM", tie_word_embeddings=False)
    llm = LLM(str(tmp_path), runner="pooling", **PLAIN)
    close([output.outputs.embedding for output in llm.embed(PROMPTS)], embeddings(hf.base_model, PROMPTS))
    assert llm.engine.runner.model.lm_head.tied  # its own is not read


@pytest.mark.parametrize(
    ("kind", "over"),
    some(
        [
            ("llama", {}),
            ("gpt2", {"pad_token_id": None}),
            ("qwen2", {}),
            ("mistral", {"sliding_window": 12}),
            ("gemma2", {}),
            ("qwen3_moe", {}),
        ],
        2,
    ),
)
def test_other_decoders_embed_and_classify(tmp_path: Path, kind: str, over: dict[str, Any]) -> None:
    hf = make_folder(tmp_path / "embeds", kind=kind, **over)
    llm = LLM(str(tmp_path / "embeds"), **PLAIN)
    for _ in range(2):
        close([output.outputs.embedding for output in llm.embed(PROMPTS)], embeddings(hf, PROMPTS))
    if kind != "qwen3_moe":
        hf = make_folder(tmp_path / "classifies", "ForSequenceClassification", kind, num_labels=3, **over)
        llm = LLM(str(tmp_path / "classifies"), **PLAIN)
        close([output.outputs.probs for output in llm.classify(PROMPTS)], logits(hf, PROMPTS).softmax(dim=-1))


@pytest.mark.parametrize(
    ("num_labels", "fields", "function"),
    [
        (3, {}, lambda x: x.softmax(dim=-1)),
        (1, {}, torch.sigmoid),
        (3, {"problem_type": "multi_label_classification"}, torch.sigmoid),
        (1, {"problem_type": "regression"}, lambda x: x),
        (1, {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, lambda x: x),
    ],
)
def test_labels_have_the_probabilities_that_the_files_ask_for(
    tmp_path: Path, num_labels: int, fields: dict[str, Any], function: Any
) -> None:
    hf = make_folder(tmp_path, "ForSequenceClassification", num_labels=num_labels)
    llm = LLM(str(edit_config(tmp_path, **fields)), **PLAIN)
    wanted = logits(hf, PROMPTS)
    close([output.outputs.probs for output in llm.classify(PROMPTS)], function(wanted))
    raw = llm.classify(PROMPTS, pooling_params=PoolingParams(use_activation=False))
    close([output.outputs.probs for output in raw], wanted)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("how", ["overrides", "LogitScore"])
def test_yes_and_no_are_a_head_of_one_row(tmp_path: Path, tied: bool, how: str) -> None:
    """P(yes) of the two, of the language model's own logits."""
    hf = make_folder(tmp_path, "ForCausalLM", tie_word_embeddings=tied)
    options: dict[str, Any] = {
        "hf_overrides": {"classifier_from_token": ["n", "y"], "is_original_qwen3_reranker": True}
    }
    if how == "LogitScore":
        add_modules(tmp_path, {"true_token_id": ord("y"), "false_token_id": ord("n")}, "LogitScore")
        options = {}
    llm = LLM(str(tmp_path), **PLAIN, **options)
    wanted = logits(hf, PROMPTS)[:, [ord("n"), ord("y")]].softmax(dim=-1)[:, 1:]
    close([output.outputs.probs for output in llm.classify(PROMPTS)], wanted)


def test_pairs_are_scored_by_cosine_or_by_a_cross_encoder(
    model: torch.nn.Module, folders: dict[str, Path], tmp_path: Path
) -> None:
    query, texts = "a cat", ["a dog", "the cat sat", "x"]
    vectors = embeddings(model, [list(text.encode()) for text in [query, *texts]])
    found = LLM(str(folders["LAST"]), **PLAIN).score(query, texts)
    close([output.outputs.score for output in found], vectors[1:] @ vectors[0])
    assert found[0].prompt_token_ids == list(b"a cata dog")
    hf = make_folder(tmp_path, "ForSequenceClassification", num_labels=1)
    llm = LLM(str(tmp_path), **PLAIN)
    joined = [list((query + text).encode()) for text in texts]
    close([output.outputs.score for output in llm.score(query, texts)], logits(hf, joined).sigmoid()[:, 0])
    template = "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{% endfor %}{# query, document #}?"
    joined = [list(f"<q>{text}<d>{query}?".encode()) for text in texts]
    found = llm.score(texts, [query] * 3, chat_template=template)
    close([output.outputs.score for output in found], logits(hf, joined).sigmoid()[:, 0])


def test_the_asynchronous_client_gives_each_vector_once(model: torch.nn.Module, folders: dict[str, Path]) -> None:
    async def ask(llm: AsyncLLM, prompt: list[int]) -> list[float]:
        async with aclosing(llm.encode(prompt, PoolingParams())) as outputs:
            (only,) = [output async for output in outputs]
        return only.outputs.embedding

    async def ask_all() -> list[list[float]]:
        async with AsyncLLM(str(folders["LAST"]), **PLAIN) as llm:
            return await asyncio.gather(*(ask(llm, prompt) for prompt in PROMPTS))

    close(asyncio.run(ask_all()), embeddings(model, PROMPTS))


@pytest.mark.parametrize("kind", some(MODES))
def test_ranks_make_the_same_vectors(
    model: torch.nn.Module, folders: dict[str, Path], rank_threads: list[RankThread], kind: str
) -> None:
    engine = caching_engine(folders[kind], max_model_len=64, num_kv_blocks=64, tensor_parallel_size=2)
    close(serve(engine, PROMPTS), embeddings(model, PROMPTS, kind))


def test_a_row_that_is_not_finite_fails_its_request_alone(model: torch.nn.Module, tmp_path: Path) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors["embed_tokens.weight"][99] = float("nan")

    engine = caching_engine(edit_tensors(saved(model, tmp_path), spoil), max_model_len=64, num_kv_blocks=64)
    for name, prompt in (("good", [1, 2, 3]), ("bad", [1, 99, 3])):
        engine.add_request(name, prompt, PoolingParams())
    with pytest.raises(LogitsNotFiniteError, match="bad"):
        engine.step()
    (output,) = engine.step()
    close([output.pooling_output], embeddings(model, [[1, 2, 3]]))


def test_a_vector_needs_no_head_and_no_draw(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = caching_engine(folders["LAST"], max_model_len=64, num_kv_blocks=64)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a head, or a draw")

    monkeypatch.setattr(engine.runner.model, "compute_logits", never)
    monkeypatch.setattr(engine.runner.sampling, "draw", never)
    assert serve(engine, PROMPTS).shape == (len(PROMPTS), 64)
    assert engine.stats().output_tokens == 0
