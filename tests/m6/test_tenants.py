"""Prompts of different salts: no tenant finds, names or notices what another has computed."""

from __future__ import annotations

import pytest

from folovllm import LLM, SamplingParams
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
