"""The table of n-grams, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from folovllm import LLM, SamplingParams
from folovllm.request import Sequence, SequenceData
from folovllm.spec_decode.ngram_table import NgramTable, NgramTableProposer

THE, CAT, SAT, ON, MAT, SOFA = range(6)
CORPUS = [
    [THE, CAT, SAT, ON, THE, MAT],
    [THE, CAT, SAT, ON, THE, SOFA],
    [THE, CAT, SAT, ON, THE, MAT],
    [CAT, ON, THE, SOFA],
    [CAT, ON, THE, SOFA, MAT],
    [MAT],
]


@pytest.fixture
def table() -> NgramTable:
    return NgramTable.of(CORPUS, vocab_size=6)


@pytest.mark.parametrize(
    ("tail", "guess"),
    [
        ([SAT, ON, THE], [MAT]),  # 2 of 3, and after "on the mat" nothing came twice
        ([CAT, ON, THE], [SOFA]),
        ([SOFA, ON, THE], [SOFA]),  # no such 3; of "on the" 3 of 5
        ([THE, CAT], [SAT, ON, THE, MAT]),  # a guess is the next context's last token
        ([MAT, THE, CAT], [SAT, ON, THE, MAT]),
        ([SOFA, MAT], []),
        ([THE], []),  # 1 token says too little
        ([THE, SOFA], []),  # occurred once with a token behind it
        ([], []),
    ],
)
def test_the_longest_known_context_says_what_followed_most_often(
    table: NgramTable, tail: list[int], guess: list[int]
) -> None:
    assert table.continuation(tail, 9) == guess
    assert table.continuation(tail, 1) == guess[:1]
    assert table.continuation(tail, 0) == []


def test_a_context_is_a_number_in_the_base_of_the_vocabulary(table: NgramTable) -> None:
    assert table.following[2] == {THE * 6 + CAT: SAT, CAT * 6 + SAT: ON, CAT * 6 + ON: THE, SAT * 6 + ON: THE,
                                  ON * 6 + THE: SOFA}  # fmt: skip
    assert table.following[3][(SAT * 6 + ON) * 6 + THE] == MAT


def test_of_tokens_that_followed_equally_often_the_smallest_is_taken() -> None:
    assert NgramTable.of([[1, 2, 5], [1, 2, 4]], 6).following[2] == {1 * 6 + 2: 4}


def test_a_context_does_not_reach_over_the_end_of_a_text() -> None:
    assert NgramTable.of([[1, 2], [3, 1, 2], [3]], 6).following == {3: {}, 2: {}}


def test_a_file_holds_the_table_as_it_was(table: NgramTable, tmp_path: Path) -> None:
    table.save(tmp_path / "table")
    assert NgramTable.load(str(tmp_path / "table"), 6).following == table.following


def test_the_proposer_looks_at_the_end_of_prompt_and_output(table: NgramTable) -> None:
    seqs = [
        Sequence("a-0", "a", SequenceData([MAT, SAT, ON], [THE]), SamplingParams()),
        Sequence("b-0", "b", SequenceData([MAT], [SOFA, CAT, ON, THE]), SamplingParams()),
        Sequence("c-0", "c", SequenceData([THE, CAT]), SamplingParams()),
    ]
    assert NgramTableProposer(table).propose(seqs, [4, 4, 2]) == [[MAT], [SOFA], [SAT, ON]]


def test_guesses_of_a_table_change_no_token(tmp_path: Path) -> None:
    """A table of the model's own answer, so that guesses are taken."""
    prompt, params = [[5, 6, 7, 8]], SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    expected = LLM(dtype="float32").generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids
    NgramTable.of([[*prompt[0], *expected]] * 2, 3072).save(tmp_path / "table")
    speculative = {"method": "ngram_table", "num_speculative_tokens": 4, "model": str(tmp_path / "table")}
    llm = LLM(dtype="float32", speculative_config=speculative)
    assert llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids == expected
    assert llm.engine.stats().steps < 25


def refusal(path: str | None, vocab_size: int = 6) -> str:
    with pytest.raises(ValueError) as caught:
        NgramTable.load(path, vocab_size)
    return str(caught.value)


def test_a_table_of_another_vocabulary_is_refused(table: NgramTable, tmp_path: Path) -> None:
    name = "speculative_config['model']"
    assert refusal(None) == f"{name} must name a table's file with method 'ngram_table', got None"
    table.save(tmp_path / "table")
    assert refusal(str(tmp_path / "table"), 3072) == (
        f"{name} must be a table of the model's 3,072 tokens, got {str(tmp_path / 'table')!r}, which is one of 6"
    )


def test_a_vocabulary_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^vocab_size must be below 2097152, got 3000000$"):
        NgramTable.of([], 3_000_000)
