"""A prompt and its SamplingParams become a Request, or one clear error.

Everything that can be wrong with a request is found here, before the engine holds anything of it: a refused request
leaves nothing behind and the others go on. A server does so in threads of its own, and hands the engine what has been
checked.

vLLM: v1/engine/input_processor.py, inputs/llm.py (TextPrompt, TokensPrompt)
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

import numpy as np

from folovllm.config import EngineConfig
from folovllm.engine.ceilings import check_ceilings
from folovllm.engine.chat_messages import plain_messages, render
from folovllm.errors import PromptTooLongError
from folovllm.hf_config import load_generation_config
from folovllm.request import Request
from folovllm.sample.logits_processors import validate_extra_args
from folovllm.sample.row import validate_against_vocab
from folovllm.sample.structured.grammars import GrammarCompiler
from folovllm.sample.structured.processor import KEY
from folovllm.sampling_params import SamplingParams
from folovllm.utils.checks import check_utf8


class TextPrompt(TypedDict):
    """A prompt as text."""

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt as token ids; `prompt` is the text to show beside them."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


@dataclass(frozen=True, slots=True)
class Checked:
    """A prompt with its parameters, for one request, as `InputProcessor.check` found them right."""

    text: str | None
    token_ids: list[int]
    params: SamplingParams
    cache_salt: str | None


Prompt = str | Sequence[int] | Mapping[str, Any] | Checked
"""Text, token ids (numpy's, too), or a dict: {"prompt": text}, or {"prompt_token_ids": [...]} with an optional "prompt"
to show beside them; and in it, if wanted, "cache_salt": cached blocks are shared with prompts of the same salt only. Or
one that has been checked, its parameters included."""
PROMPT_KEYS = {"prompt", "prompt_token_ids", "cache_salt"}


@dataclass(frozen=True, slots=True)
class Room:
    """What the engine can hold of a single request. A load that is too large waits; a request that is too large by
    itself would wait for ever, so it is refused when it comes.

    Sequences end at max_model_len tokens, which never exceeds the KV cache's num_blocks * block_size.
    """

    max_model_len: int
    num_blocks: int
    block_size: int
    max_num_seqs: int

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * self.block_size

    def check(self, prompt_len: int, params: SamplingParams) -> None:
        """Sampled sequences can run one after the other, and one alone always fits. Beams must run together.

        Raises:
            ValueError: more beams than sequences in a batch, or than the KV cache can hold.
        """
        if not params.use_beam_search:
            return
        width = params.best_of
        if width > self.max_num_seqs:
            raise ValueError(
                f"best_of must be at most {self.max_num_seqs} with use_beam_search=True, got {width}: beams run "
                f"together; raise max_num_seqs"
            )
        longest = min(prompt_len + (params.max_tokens or self.max_model_len), self.max_model_len)
        shared = prompt_len // self.block_size  # at worst the beams have only the prompt's full blocks in common
        needed = shared + width * (-(-longest // self.block_size) - shared)
        if needed > self.num_blocks:
            raise ValueError(
                f"best_of must be small enough for its beams to fit into the KV cache, got {width}: {width} sequences "
                f"of up to {longest} tokens may need {needed} blocks of {self.num_blocks}; lower best_of or "
                f"max_tokens, or raise num_kv_blocks"
            )


class InputProcessor:
    """Args:
    tokenizer: a Hugging Face tokenizer, or None when skip_tokenizer_init leaves token ids only.
    vocab_size: rows of the LM head: ids from 0 to vocab_size - 1 exist.
    room: what the engine can hold of one request.
    grammars: another processor's, with what it has compiled; None makes one when a form is first asked for.
    """

    def __init__(
        self,
        tokenizer: Any | None,
        vocab_size: int,
        room: Room,
        config: EngineConfig,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self.tokenizer, self.vocab_size = tokenizer, vocab_size
        self.room, self.max_model_len, self.config = room, room.max_model_len, config
        self._grammars = grammars
        self._bad_words: tuple[list[str], list[list[int]]] = ([], [])  # the newest, and their tokens

    @property
    def grammars(self) -> GrammarCompiler:
        if self._grammars is None:
            eos_token_ids = frozenset(load_generation_config(self.config.model_config).eos_token_ids)
            self._grammars = GrammarCompiler(self.tokenizer, self.vocab_size, eos_token_ids)
        return self._grammars

    def process(self, request_id: str, prompt: Prompt, params: SamplingParams | None) -> Request:
        """Raises: as check, unless the prompt has been checked."""
        if not isinstance(request_id, str):
            raise ValueError(f"request_id must be a string, got {request_id!r}")
        if not isinstance(prompt, Checked):
            (prompt,) = self.check([prompt], params)
        elif params is not None:
            raise ValueError(f"sampling_params must be None beside a prompt that has been checked, got {params!r}")
        return Request(request_id, prompt.text, prompt.token_ids, prompt.params, cache_salt=prompt.cache_salt)

    def check(self, prompts: Iterable[Prompt], params: SamplingParams | None) -> Iterator[Checked]:
        """One after the other, the parameters once: they are the same for all.

        Raises:
            ValueError: a prompt of no known kind, an empty one, an id outside the vocabulary, text without a tokenizer,
                a parameter that is wrong or more than the engine allows (check_ceilings), a form that cannot be
                compiled.
            PromptTooLongError: no room is left for even one new token.
        """
        resolved: SamplingParams | None = None
        for prompt in prompts:
            text, token_ids = self._tokenize(prompt)
            cache_salt = prompt.get("cache_salt") if isinstance(prompt, Mapping) else None
            if cache_salt is not None and (not isinstance(cache_salt, str) or not cache_salt):
                raise ValueError(f"cache_salt must be a string that is not empty, got {cache_salt!r}")
            self._check_prompt(token_ids)
            resolved = resolved or self._resolve_params(params)
            own = copy.copy(resolved)  # its lists are shared, and nobody changes them
            if own.max_tokens is None:
                own.max_tokens = self.max_model_len - len(token_ids)
            self.room.check(len(token_ids), own)
            yield Checked(text, token_ids, own, cache_salt)

    def _tokenize(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise ValueError("prompt is text, but skip_tokenizer_init leaves no tokenizer: give token ids instead")
            check_utf8("prompt", prompt)
            return prompt, list(self.tokenizer(prompt)["input_ids"])
        if isinstance(prompt, Mapping):
            if "prompt_token_ids" not in prompt and not isinstance(prompt.get("prompt"), str):
                raise ValueError(
                    f"prompt must have the key 'prompt_token_ids', got the keys {sorted(prompt)}; or a text as 'prompt'"
                )
            if unknown := sorted(prompt.keys() - PROMPT_KEYS):
                raise ValueError(f"prompt must have no other keys than {sorted(PROMPT_KEYS)}, got {unknown}")
            if "prompt_token_ids" not in prompt:
                return self._tokenize(prompt["prompt"])
            token_ids = prompt["prompt_token_ids"]
            if not _is_list(token_ids):
                raise ValueError(f"prompt_token_ids must be a list of token ids, got {token_ids!r}")
            return prompt.get("prompt"), _plain_ids(token_ids)
        if _is_list(prompt):
            return None, _plain_ids(prompt)
        raise ValueError(f"prompt must be a str, a list of token ids or {{'prompt_token_ids': [...]}}, got {prompt!r}")

    def _check_prompt(self, token_ids: list[int]) -> None:
        if not token_ids:
            raise ValueError("prompt must have at least one token, got none")
        if len(token_ids) >= self.max_model_len:
            raise PromptTooLongError(
                f"prompt has {len(token_ids)} tokens, but max_model_len is {self.max_model_len} and must leave room "
                f"for at least one new token (the KV cache holds {self.room.num_tokens} tokens): shorten the prompt, "
                f"or raise max_model_len and with it, if need be, num_kv_blocks"
            )
        for token_id in token_ids:
            if isinstance(token_id, bool) or not isinstance(token_id, int):
                raise ValueError(f"prompt_token_ids must be integers, got {token_id!r}")
            if not 0 <= token_id < self.vocab_size:
                raise ValueError(f"prompt_token_ids must be in [0, {self.vocab_size}), got {token_id}")

    def _resolve_params(self, params: SamplingParams | None) -> SamplingParams:
        """A copy, so that what the caller does to theirs later changes nothing here."""
        if params is None:
            params = SamplingParams()
        if not isinstance(params, SamplingParams):
            raise ValueError(f"sampling_params must be SamplingParams, got {params!r}")
        params = params.clone()
        params.validate()  # fields may have been set since it was made
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(params, name) == -1:
                setattr(params, name, self.vocab_size)
        check_ceilings(params, self.config)  # before all of its sequences are made
        if params.use_beam_search and params.stop:
            raise ValueError(
                f"stop must not be given with use_beam_search=True, got {params.stop}: beams have no text before they "
                "end; use stop_token_ids"
            )
        validate_against_vocab(params, self.vocab_size)
        if params.structured_outputs is not None:
            form = self.grammars.compile(params.structured_outputs)
            params.extra_args = {**(params.extra_args or {}), KEY: form}
        validate_extra_args(params)
        if self.tokenizer is None and (params.stop or params.bad_words):
            raise ValueError(
                "stop and bad_words are text, but skip_tokenizer_init leaves no tokenizer: use stop_token_ids"
            )
        params.bad_words_token_ids = self._tokenize_bad_words(params.bad_words or [])
        return params

    def _tokenize_bad_words(self, words: list[str]) -> list[list[int]]:
        """Each word as it is tokenised at the start of a text and after a space: both must be kept out. One that begins
        with a space, or a line break, is banned as it is: what stands before it is no part of it.

        Prompts that come together have the same words, so the newest are kept."""
        if self.tokenizer is None:
            return []
        known, ids = self._bad_words  # both at once: threads may share this object
        if known != words:
            texts = (text for word in words for text in ((word,) if word[0].isspace() else (word, " " + word)))
            found = (tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts)
            ids = [list(tokens) for tokens in dict.fromkeys(found) if tokens]
            self._bad_words = words, ids
        return ids


def _is_list(value: object) -> bool:
    """bytes are a sequence of integers, too, but they are meant as a text."""
    if isinstance(value, np.ndarray):
        return value.ndim == 1
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))


def _plain_ids(token_ids: Any) -> list[int]:
    """A list of its own, numpy's integers made Python's. Anything else in it stays, for _check_prompt to name it."""
    if isinstance(token_ids, np.ndarray):
        return token_ids.tolist()  # type: ignore[no-any-return]
    if any(issubclass(kind, np.integer) for kind in set(map(type, token_ids))):
        return [int(token_id) if isinstance(token_id, np.integer) else token_id for token_id in token_ids]
    return [*token_ids]


def chat_to_prompt(tokenizer: Any | None, messages: list[dict[str, Any]], **template_args: Any) -> Prompt:
    """Messages through the chat template, straight to token ids.

    Not to text that is then tokenised: the template writes the special tokens itself, and tokenising its text would
    put a second BOS before the first.
    """
    if tokenizer is None:
        raise ValueError("messages need a tokenizer, but skip_tokenizer_init leaves none: give token ids to generate()")
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError("messages need a chat template, but this model's tokenizer has none: use generate()")
    text = render(tokenizer, plain_messages(messages), **template_args)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return {"prompt": text, "prompt_token_ids": list(ids)}
