"""speculative_config: what it may say, and what it answers to what it may not."""

from __future__ import annotations

import re

import pytest

from folovllm import LLM, EngineConfig
from folovllm.__main__ import main
from folovllm.speculative_config import SpeculativeConfig

NGRAM = {"method": "ngram", "num_speculative_tokens": 4}


def test_it_comes_as_a_dict_or_as_an_object():
    config = EngineConfig.from_kwargs(speculative_config=NGRAM)
    assert config.speculative_config == SpeculativeConfig("ngram", 4)
    assert EngineConfig.from_kwargs(speculative_config=SpeculativeConfig("ngram", 4)) == config
    assert EngineConfig.from_kwargs().speculative_config is None


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"method": "eagle3"},
            "method must be one of 'ngram', 'ngram_table', 'draft_model', 'eagle', 'mtp', got 'eagle3'",
        ),
        ({"method": "mtp", "model": "a"}, "model must be None with method 'mtp', which needs none, got 'a'"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens must be positive, got 0"),
        ({"num_speculative_tokens": True}, "num_speculative_tokens must be an integer, got True"),
        ({"prompt_lookup_min": 0}, "prompt_lookup_min must be positive, got 0"),
        ({"prompt_lookup_min": 5}, "prompt_lookup_max must be at least 5, got 4"),
        ({"method": "ngram_table", "model": "t", "prompt_lookup_max": 3}, "prompt_lookup_max must be None with method"),
        ({"model": "a"}, "model must be None with method 'ngram', which needs none, got 'a'"),
        ({"rejection_sample_method": "probabilistic"}, "rejection_sample_method must be 'strict' with method 'ngram'"),
        ({"num_tokens": 3}, "speculative_config has an unknown key 'num_tokens'"),
    ],
)
def test_what_is_refused(changes, text):
    with pytest.raises(ValueError) as caught:
        EngineConfig.from_kwargs(speculative_config={**NGRAM, **changes})
    assert text in str(caught.value)


@pytest.mark.parametrize("name", ["method", "num_speculative_tokens"])
def test_what_is_left_out(name):
    given = {key: value for key, value in NGRAM.items() if key != name}
    with pytest.raises(ValueError, match=f"speculative_config must have '{name}', got {{"):
        EngineConfig.from_kwargs(speculative_config=given)


def test_another_type():
    with pytest.raises(ValueError, match="speculative_config must be a dict or a SpeculativeConfig, got 4"):
        EngineConfig.from_kwargs(speculative_config=4)


def test_llm_takes_it():
    llm = LLM(speculative_config={**NGRAM, "prompt_lookup_min": 1})
    assert llm.engine.config.speculative_config == SpeculativeConfig("ngram", 4, prompt_lookup_min=1)
    assert llm.engine.runner.speculation is not None
    assert LLM().engine.runner.speculation is None


def test_the_command_takes_json(capsys):
    asked = ["generate", "a b a b", "--temperature", "0", "--max-tokens", "4"]
    assert main([*asked, "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 2}']) == 0
    with_guesses = capsys.readouterr().out
    assert main(asked) == 0
    assert capsys.readouterr().out == with_guesses
    with pytest.raises(SystemExit):
        main([*asked, "--speculative-config", "ngram"])
    assert re.search(r"must be .*JSON, got 'ngram'", capsys.readouterr().err)
    assert main([*asked, "--speculative-config", '{"method": "ngram"}']) == 2
    assert "speculative_config must have 'num_speculative_tokens'" in capsys.readouterr().err
