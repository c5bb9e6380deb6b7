"""`folovllm bench speculation`: what it counts, by hand, and the shape of what it writes; never how long it took."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from folovllm import LLMEngine, ModelConfig, SamplingParams
from folovllm.bench.speculation import OracleProposer, _decode, _prompts
from folovllm.core.draft_length import DraftLength
from folovllm.engine.defaults import config_for_llm
from folovllm.model_loader import load_tokenizer
from folovllm.request import Request
from tests.bench.support import bench, refusal
from tests.helpers import make_hf_folder, no_warning_of_its_length


def test_guesses_are_right_as_often_as_is_said() -> None:
    oracle = OracleProposer(0.75, seed=0)
    seq = Request("r", None, [1, 2], SamplingParams()).first_seq()
    assert [len(draft) for draft in oracle.propose([seq, seq], [4, 1])] == [4, 1]
    guesses = [guess == 7 for _ in range(500) for guess in oracle.propose([seq], [4])[0]]
    assert 0.68 < sum(guesses) / len(guesses) < 0.82  # 7 standard deviations


def test_gain_counts_the_tokens_behind_the_prompts(tmp_path: Path) -> None:
    """All guesses are right: 9 tokens are the prompt's one and two steps of 4."""
    folder = make_hf_folder(tmp_path / "model", "qwen3")
    options = {"dtype": "float32", "skip_tokenizer_init": True, "max_model_len": 64, "num_kv_blocks": 40}
    speculative = {"method": "ngram", "num_speculative_tokens": 3}
    oracle = OracleProposer(1.0, seed=0)
    prompts = [[5, 6, 7], [8, 9]]
    plain = _decode(LLMEngine(config_for_llm(str(folder), **options)), prompts, 9)
    assert (plain.num_tokens, plain.steps) == (16, 16)
    engine = LLMEngine(config_for_llm(str(folder), **options, speculative_config=speculative), choose=oracle.choose)
    engine.scheduler.drafts.length = DraftLength(3, None)
    found = _decode(engine, prompts, 9)
    assert (found.num_tokens, found.steps) == (16, 4)
    assert (found.guesses.num_drafts, found.guesses.num_accepted_tokens_per_pos) == (4, (4, 4, 4))


def test_texts_longer_than_the_model_s_longest_are_cut_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = load_tokenizer(ModelConfig("embedded"))
    with no_warning_of_its_length(tokenizer, caplog):
        engine = SimpleNamespace(tokenizer=tokenizer)
        prompts = _prompts(engine, 3, 32, tokenizer.vocab_size, 0)  # type: ignore[arg-type]
    assert [len(prompt) for prompt in prompts] == [32, 32, 32]


@pytest.mark.slow
def test_report(tmp_path: Path) -> None:
    options = ["--shape", "qwen3-tiny", "--dtype", "float32", "--batch-sizes", "1", "2", "--rounds", "1"]
    rows = bench(["speculation", *options, "--output-len", "8"], tmp_path / "speculation-x.json")
    assert [(row["method"], row["requests"]) for row in rows] == [("oracle, 80% right", 1), ("oracle, 80% right", 2)]
    for row in rows:
        assert row["ratio"] == pytest.approx(row["tokens_per_s"] / row["plain_tokens_per_s"])
        assert 1 <= row["gain"] <= 5
        assert row["gain"] - 1 <= row["drafted"] + 1e-9


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--acceptance", "1.5"], "acceptance must be from 0 to 1, got 1.5"),
        (["--batch-sizes", "0"], "batch_sizes must be at least 1, got 0"),
        (["--num-speculative-tokens", "0"], "num_speculative_tokens must be at least 1, got 0"),
    ],
)
def test_wrong_options_are_refused(options: list[str], text: str, capsys) -> None:
    assert text in refusal(["speculation", "--shape", "qwen3-tiny", *options], capsys)
