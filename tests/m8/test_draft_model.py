"""The draft model's guesses are what Hugging Face's model of its weights says next, whatever its cache went through.

A wrong key shows in them: the prompts are texts that the draft has learnt, and it follows what they say.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from tokenizers import Tokenizer

from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.model_loader.model_files import EMBEDDED_FOLDER
from folovllm.request import Sequence
from folovllm.spec_decode import draft_model
from folovllm.spec_decode.draft_model import DraftModelProposer
from tests.m8.draft_support import BLOCK_SIZE, WAYS, Oracle, compute, draft_proposer, sequence

TEXTS = (
    "Paged attention keeps keys and values in blocks",
    "<|im_start|>user\nWhat is a prefix cache?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\n什么是分页注意力？<|im_end|>\n<|im_start|>assistant\n",
    "Once upon a time",
)
Make = Callable[[str], Sequence]


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(EMBEDDED_FOLDER / "tokenizer.json"))
    return [tokenizer.encode(text).ids for text in TEXTS]


@pytest.fixture(params=WAYS)
def proposer(request: pytest.FixtureRequest) -> DraftModelProposer:
    return draft_proposer(request.param)


@pytest.fixture
def one_call() -> DraftModelProposer:
    return draft_proposer(WAYS[0])


@pytest.fixture
def seqs(prompts: list[list[int]]) -> list[Sequence]:
    """Their blocks are not in order, and none is another's."""
    numbers = random.Random(0).sample(range(1, 161), 160)
    return [sequence(f"r{i}", ids, numbers[40 * i : 40 * i + 40]) for i, ids in enumerate(prompts)]


def take(seq: Sequence, tokens: list[int]) -> None:
    """The large model keeps these."""
    for token in tokens:
        seq.add_token_id(token)
    seq.num_computed_tokens = seq.get_len() - 1


def test_guesses_are_what_hugging_face_says(proposer: DraftModelProposer, seqs: list[Sequence], oracle: Oracle) -> None:
    compute(proposer, seqs, [seq.get_len() for seq in seqs])
    for seq in seqs:
        take(seq, oracle.says(seq, 1))
    counts = [3, 0, 6, 1]
    expected = [oracle.says(seq, count) for seq, count in zip(seqs, counts, strict=True)]
    assert proposer.propose(seqs, counts) == expected
    assert proposer.propose(seqs, [0] * 4) == [[]] * 4


def test_so_they_are_after_runs_that_were_right_wrong_and_not_asked_for(
    proposer: DraftModelProposer, seqs: list[Sequence], oracle: Oracle
) -> None:
    """All that a sequence can gain in a step: the first guesses and another token, or a token without any guess."""
    rng = random.Random(1)
    compute(proposer, seqs, [seq.get_len() for seq in seqs])
    for seq in seqs:
        take(seq, oracle.says(seq, 1))
    for _ in range(12):
        counts = [rng.choice([0, 0, 1, 2, 4]) for _ in seqs]
        guesses = proposer.propose(seqs, counts)
        for seq, guess, count in zip(seqs, guesses, counts, strict=True):
            assert guess == oracle.says(seq, count)
            right = rng.randint(0, count)
            extra = guess[right] ^ 1 if right < count else oracle.says(seq, count + 1)[-1]
            take(seq, [*guess[:right], extra])


def test_a_prompt_in_chunks_beside_a_sequence_that_goes_on(
    proposer: DraftModelProposer, seqs: list[Sequence], oracle: Oracle
) -> None:
    going, coming = seqs[0], seqs[1]
    compute(proposer, [going], [going.get_len()])
    take(going, oracle.says(going, 1))
    for start in range(0, coming.get_len(), 5):
        chunk = min(5, coming.get_len() - start)
        compute(proposer, [going, coming], [1, chunk])
        take(going, oracle.says(going, 1))
    take(coming, oracle.says(coming, 1))
    assert proposer.propose([going, coming], [4, 4]) == [oracle.says(going, 4), oracle.says(coming, 4)]


def test_a_prefix_in_the_cache_is_not_computed_again(
    proposer: DraftModelProposer, seqs: list[Sequence], oracle: Oracle
) -> None:
    first = seqs[1]
    compute(proposer, [first], [first.get_len()])
    full = first.get_len() // BLOCK_SIZE - 1
    again = sequence("again", list(first.data.prompt_token_ids), [*first.block_ids[:full], 170, 171, 172, 173])
    again.num_computed_tokens = full * BLOCK_SIZE
    compute(proposer, [again], [again.get_len() - again.num_computed_tokens])
    take(again, oracle.says(again, 1))
    assert proposer.propose([again], [5]) == [oracle.says(again, 5)]


def test_a_fork_shares_blocks_until_it_writes(prompts: list[list[int]], oracle: Oracle) -> None:
    """Its last block is copied before it does, as the scheduler says: the draft's keys with it."""
    proposer = draft_proposer(WAYS[0], num_swap_blocks=4)
    parent = sequence("r", prompts[1][: BLOCK_SIZE * 3 + 2], [10, 20, 30, 40, 50, 60])
    compute(proposer, [parent], [parent.get_len()])
    child = parent.fork("r-1")
    child.block_ids = [10, 20, 30, 41, 51, 61]
    proposer.move(SchedulerOutput(blocks_to_copy=[(40, 41)]))
    take(parent, [11])
    take(child, [12])
    expected = [oracle.says(parent, 5), oracle.says(child, 5)]
    assert proposer.propose([parent, child], [5, 5]) == expected


def test_preempted_sequences_come_back(one_call: DraftModelProposer, seqs: list[Sequence], oracle: Oracle) -> None:
    """By recompute: other blocks, and all tokens are computed once more. By swap: the blocks' keys move along."""
    seq, other = seqs[0], seqs[1]
    compute(one_call, [seq], [seq.get_len()])
    take(seq, oracle.says(seq, 1))
    take(seq, [*one_call.propose([seq], [3])[0], 7])
    one_call.forget(seq.seq_id)
    compute(one_call, [other], [other.get_len()])
    seq.block_ids, seq.num_computed_tokens = seqs[2].block_ids, 0
    compute(one_call, [seq], [seq.get_len()])
    take(seq, oracle.says(seq, 1))
    assert one_call.propose([seq], [4]) == [oracle.says(seq, 4)]


def test_swapped_blocks_take_the_drafts_keys_along(prompts: list[list[int]], oracle: Oracle) -> None:
    proposer = draft_proposer(WAYS[0], num_swap_blocks=20)
    held = -(-len(prompts[1]) // BLOCK_SIZE)
    seq = sequence("r", prompts[1], list(range(1, held + 4)))
    compute(proposer, [seq], [seq.get_len()])
    proposer.move(SchedulerOutput(blocks_to_swap_out=[(block, block) for block in range(1, held + 1)]))
    proposer.forget(seq.seq_id)
    for tensor in proposer.kv_cache.tensors:
        tensor[:, 1 : held + 4] = torch.nan  # another's
    proposer.move(SchedulerOutput(blocks_to_swap_in=[(block, block + 100) for block in range(1, held + 1)]))
    seq.block_ids = [*range(101, 101 + held), 150, 151, 152]
    take(seq, oracle.says(seq, 1))
    assert proposer.propose([seq], [4]) == [oracle.says(seq, 4)]


def test_one_that_lacks_much_is_brought_on_step_by_step(
    monkeypatch: pytest.MonkeyPatch, proposer: DraftModelProposer, seqs: list[Sequence], oracle: Oracle
) -> None:
    monkeypatch.setattr(draft_model, "MAX_ROWS", 10)
    compute(proposer, seqs[:2], [seq.get_len() for seq in seqs[:2]])
    take(seqs[0], oracle.says(seqs[0], 18))
    take(seqs[1], oracle.says(seqs[1], 1))
    assert proposer.propose(seqs[:2], [2, 2]) == [[], oracle.says(seqs[1], 2)]
    assert proposer.propose(seqs[:2], [2, 2]) == [oracle.says(seqs[0], 2), oracle.says(seqs[1], 2)]


@pytest.mark.parametrize("way", WAYS)
def test_keys_that_were_never_written_give_tokens_all_the_same(way: str) -> None:
    proposer = draft_proposer(way)
    seq = sequence("r", [5] * 30, list(range(1, 20)), temperature=1.0)
    take(seq, [6])
    tokens, probs = proposer.propose_with_probabilities([seq], [3])
    assert len(tokens[0]) == 3
    assert torch.allclose(probs[0].sum(-1), torch.ones(3))
    (guess,) = proposer.propose([seq], [3])
    assert all(0 <= token < 3072 for token in guess)


def test_a_draft_whose_activations_overflowed_still_names_tokens(one_call: DraftModelProposer) -> None:
    """NaN are no probabilities: DraftedRows does not heed them."""
    seqs = [sequence(name, [5], [place], temperature=1.0) for place, name in enumerate("ab", start=1)]
    logits = torch.zeros(2, 3072)
    logits[0] = torch.nan
    rows: list[list[torch.Tensor]] = [[], []]
    tokens = one_call._drawn(logits, seqs, rows)
    assert 0 <= tokens[0] < 3072
    assert rows[1][0].allclose(torch.full((3072,), 1 / 3072))


def test_drawn_guesses_come_with_the_distributions_they_were_drawn_from(
    one_call: DraftModelProposer, prompts: list[list[int]], oracle: Oracle
) -> None:
    greedy, warm = sequence("a", prompts[0], list(range(1, 40))), sequence("b", prompts[1], list(range(41, 80)))
    warm.sampling_params = warm.sampling_params.__class__(temperature=1.5)
    compute(one_call, [greedy, warm], [greedy.get_len(), warm.get_len()])
    for seq in (greedy, warm):
        take(seq, [5])
    tokens, probs = one_call.propose_with_probabilities([greedy, warm], [2, 4])
    assert tokens[0] == oracle.says(greedy, 2)
    assert probs[0].tolist() == torch.nn.functional.one_hot(torch.tensor(tokens[0]), 3072).tolist()
    expected = (oracle.logits([*warm.get_token_ids(), *tokens[1]])[-5:-1] / 1.5).softmax(-1)
    assert torch.allclose(probs[1], expected, atol=1e-5)


def test_guesses_are_drawn_as_often_as_they_are_likely(one_call: DraftModelProposer, prompts: list[list[int]]) -> None:
    """Chi-square over the likeliest tokens and all others; beyond 45 lies less than one in 10,000 for 15 degrees."""
    draws = 1500
    seqs = [sequence(str(i), prompts[0], list(range(1, 12)), temperature=1.0) for i in range(draws)]
    compute(one_call, seqs[:1], [seqs[0].get_len()])
    for seq in seqs:
        take(seq, [5])
    tokens, probs = one_call.propose_with_probabilities(seqs, [1] * draws)
    values, top = probs[0][0].topk(15)
    counts = torch.bincount(torch.tensor(tokens).flatten(), minlength=3072)
    expected = torch.cat([values, 1 - values.sum(0, keepdim=True)]) * draws
    found = torch.cat([counts[top], draws - counts[top].sum(0, keepdim=True)])
    assert ((found - expected) ** 2 / expected).sum() < 45
