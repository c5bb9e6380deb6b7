"""Prompts of different salts: no tenant finds, names or notices what another has computed."""

from __future__ import annotations

import pytest

from folovllm import LLM, SamplingParams
from folovllm.request import SequenceStatus
from tests.m2.support import assert_idle
from tests.m3.oracle import Oracle
from tests.m6.test_prefix_caching_engine import PROMPT, ask, make, salted


def test_salts_keep_tenants_apart(oracle: Oracle) -> None:
    """Whoever guesses a prompt of another tenant sees what he would see had it never been asked."""
    secret = [*PROMPT, 1, 2, 3, 4]
    alone = ask(make(oracle), salted(secret, "attacker"))
    engine = make(oracle)
    ask(engine, salted(secret, "victim"))
    for guess, salt in ((secret, "attacker"), (secret[:5], "attacker2"), (secret, None), (secret, "victim ")):
        answer, cached = ask(engine, salted(guess, salt))
        assert (answer, cached) == (oracle.greedy(guess, 8), 0)
    assert ask(engine, salted(secret, "attacker3")) == alone
    assert ask(engine, salted(secret, "victim")) == (oracle.greedy(secret, 8), 12)
    assert ask(engine, secret) == (oracle.greedy(secret, 8), 12)  # the one without a salt has been here, too


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_two_tenants_never_name_one_block(oracle: Oracle, mode: str) -> None:
    """Side by side, with forks and under pressure. A block that changes hands has lost its name before."""
    engine = make(oracle, num_kv_blocks=16, max_model_len=48, preemption_mode=mode)
    salts = {str(i): ("victim", "attacker", None)[i % 3] for i in range(9)}
    for name, salt in salts.items():
        engine.add_request(name, salted(PROMPT, salt), SamplingParams(n=2, top_k=1, max_tokens=10))
    first: dict[str | None, int] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            assert all(
                completion.token_ids == oracle.greedy(PROMPT, 10)[: len(completion.token_ids)]
                for completion in output.outputs
            )
            first.setdefault(salts[output.request_id], output.num_cached_tokens)
        engine.scheduler.check_invariants()
        owners: dict[int, set[str | None]] = {}
        for request in engine.scheduler.running:
            for seq in request.get_seqs(SequenceStatus.RUNNING):
                for block_id in seq.block_ids:
                    owners.setdefault(block_id, set()).add(request.cache_salt)
        assert all(len(salts_of_block) == 1 for salts_of_block in owners.values())
    assert first == {"victim": 0, "attacker": 0, None: 0}
    assert engine.stats().preemptions > 0


def test_a_salt_needs_no_token_ids(text_model_folder) -> None:
    llm = LLM(str(text_model_folder), dtype="float32", device="cpu", block_size=4)
    for salt, expected in (("a", 0), ("a", 12), ("b", 0)):
        prompt = {"prompt": "once upon a time", "cache_salt": salt}
        (output,) = llm.generate(prompt, SamplingParams(max_tokens=1), use_tqdm=False)
        assert output.prompt == "once upon a time"
        assert output.num_cached_tokens == expected + 4 * (expected > 0)


def test_any_string_is_a_salt(oracle: Oracle) -> None:
    engine = make(oracle)
    for salt in ("\ud800", "租户", "\0"):
        assert [ask(engine, salted(PROMPT, salt))[1] for _ in range(2)] == [0, 8]


@pytest.mark.parametrize("salt", ["", " ", 7, b"x", ["a"], True])
def test_what_is_no_salt_is_refused(oracle: Oracle, salt: object) -> None:
    engine = make(oracle)
    with pytest.raises(ValueError, match="^cache_salt must .*got "):
        engine.add_request("r", {"prompt_token_ids": PROMPT, "cache_salt": salt})
    assert_idle(engine)


def test_a_misspelt_key_is_not_taken_for_no_salt(oracle: Oracle) -> None:
    engine = make(oracle)
    with pytest.raises(ValueError, match=r"^prompt must have no other keys than .*'cache_salt'.*got \['cachesalt'\]"):
        engine.add_request("r", {"prompt_token_ids": PROMPT, "cachesalt": "a"})
    with pytest.raises(ValueError, match=r"prompt must have the key 'prompt_token_ids', got the keys \['cache_salt'\]"):
        engine.add_request("r", {"cache_salt": "a"})
    assert_idle(engine)
