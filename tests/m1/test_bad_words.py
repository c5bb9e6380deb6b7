"""bad_words: what is banned is what was asked for, by Hugging Face's own processor over the same token ids."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import NoBadWordsLogitsProcessor, PreTrainedTokenizerFast

from folovllm import EngineConfig, SamplingParams
from folovllm.engine.input_processor import InputProcessor
from folovllm.sample.logits_processors import TokenMasks
from tests.m1.sampling_reference import make_row

WORDS = ["cat", "Ġcat", "Ċ", "ĊĊ", "Ġ", "Ġdog", "ĠĊ"]  # Ġ is the space and Ċ the line break of a byte-level BPE


@pytest.fixture(scope="module")
def tokenizer():
    """Byte-level BPE in which a word, and the word after a space, are one token each, as in GPT-2 and Qwen."""
    letters = sorted({letter for word in WORDS for letter in word} | set("xy."))
    merges = [("c", "a"), ("ca", "t"), ("Ġ", "cat"), ("Ċ", "Ċ"), ("d", "o"), ("do", "g"), ("Ġ", "dog"), ("Ġ", "Ċ")]
    made = dict.fromkeys([*letters, *(a + b for a, b in merges)])
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(made)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


BANNED = {  # what may not be said any more, as texts of one token
    "\n": ["\n"],
    "\n\n": ["\n\n"],
    " ": [" "],
    " \n": [" \n"],
    "cat": ["cat", " cat"],
    " cat": [" cat"],
    "dog": ["dog", " dog"],
}


def resolve(tokenizer: PreTrainedTokenizerFast, word: str) -> SamplingParams:
    """As the engine resolves them for a request."""
    processor = InputProcessor(
        tokenizer, len(tokenizer), EngineConfig.from_kwargs(model="some/model", max_model_len=64)
    )
    return processor.process("r", [0], SamplingParams(bad_words=[word])).sampling_params


@pytest.mark.parametrize("word", BANNED)
def test_only_what_is_asked_is_banned(tokenizer, word):
    params = resolve(tokenizer, word)
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in BANNED[word]]
    assert all(len(one) == 1 for one in ids)
    logits = torch.randn(1, len(tokenizer), generator=torch.Generator().manual_seed(0))
    masks = TokenMasks()
    masks.update([make_row(params, bad_words_token_ids=params.bad_words_token_ids)])
    expected = NoBadWordsLogitsProcessor(ids)(torch.tensor([[0]]), logits.clone())
    assert torch.equal(masks.apply(logits.clone()), expected)


def test_a_word_of_several_tokens_is_banned_at_its_last_one(tokenizer):
    params = resolve(tokenizer, "x.y")
    x, dot, y, space = (tokenizer.convert_tokens_to_ids(token) for token in ("x", ".", "y", "Ġ"))
    assert params.bad_words_token_ids == [[x, dot, y], [space, x, dot, y]]
    for said in ([], [x], [x, dot], [space, x, dot], [y, x, dot], [dot]):
        logits, masks = torch.zeros(1, len(tokenizer)), TokenMasks()
        masks.update([make_row(params, output=said, bad_words_token_ids=params.bad_words_token_ids)])
        expected = NoBadWordsLogitsProcessor([[x, dot, y]])(torch.tensor([[0, *said]]), logits.clone())
        assert torch.equal(masks.apply(logits.clone()), expected), said


class Counted(int):
    """A token id that counts how often any of them is compared."""

    compared = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return int(self) == other


def test_what_a_list_of_bad_words_costs_grows_with_its_length_alone():
    class Words:
        calls = 0

        def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
            self.calls += 1
            return {"input_ids": [Counted(letter) for letter in text.encode()]}

    tokenizer, words = Words(), [f"{number:03d}" for number in range(1000)]
    processor = InputProcessor(tokenizer, 256, EngineConfig.from_kwargs(model="some/model", max_model_len=64))
    params = SamplingParams(bad_words=[*words, *words])
    Counted.compared = 0
    for name in ("a", "b", "c"):  # prompts that come together
        resolved = processor.process(name, [0], params).sampling_params
    assert Counted.compared < 100 * len(words)  # pairs of words would be a million
    assert resolved.bad_words_token_ids == [list(text.encode()) for word in words for text in (word, " " + word)]
    assert tokenizer.calls == 2 * 2000
    other = processor.process("d", [0], SamplingParams(bad_words=["x"])).sampling_params
    assert other.bad_words_token_ids == [[120], [32, 120]]
