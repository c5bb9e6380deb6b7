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

from folovllm.config import EngineConfig, ModelConfig
from folovllm.engine.lora_loader import LoRALoader
from folovllm.errors import PromptTooLongError
from folovllm.lora.request import LoRARequest
from folovllm.model_loader.hf_config import load_generation_config, load_hf_config
from folovllm.pooling_params import PoolingParams, resolve_pooling_params
from folovllm.request import Request
from folovllm.sample.loaded_processors import resolve_extra_args
from folovllm.sample.structured.grammars import GrammarCompiler
from folovllm.sample.structured.processor import KEY
from folovllm.sampling_params import SamplingParams
from folovllm.utils.checks import check_int, check_utf8
from folovllm.utils.logging import init_logger


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
class ProcessedInputs:
    """A prompt with its parameters, for one request, as `InputProcessor.check` found them right."""

    text: str | None
    token_ids: list[int]
    params: SamplingParams
    cache_salt: str | None
    pooling_params: PoolingParams | None = None


Prompt = str | Sequence[int] | Mapping[str, Any] | ProcessedInputs
"""Text, token ids (numpy's, too), or a dict: {"prompt": text}, or {"prompt_token_ids": [...]} with an optional "prompt"
to show beside them; and in it, if wanted, "cache_salt": cached blocks are shared with prompts of the same salt only. Or
one that has been checked, its parameters included."""
PROMPT_KEYS = {"prompt", "prompt_token_ids", "cache_salt"}


AnyParams = SamplingParams | PoolingParams
DRAWS_NOTHING = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False)
"""Beside pooling parameters: one sequence, which would end with its first token."""


class InputProcessor:
    """Args:
    tokenizer: a Hugging Face tokenizer, or None when skip_tokenizer_init leaves token ids only.
    vocab_size: rows of the LM head: ids from 0 to vocab_size - 1 exist.
    config: the engine's, with all that it has decided filled in.
    grammars: another processor's, with what it has compiled; None makes one when a form is first asked for.
    """

    def __init__(
        self, tokenizer: Any | None, vocab_size: int, config: EngineConfig, grammars: GrammarCompiler | None = None
    ) -> None:
        self.tokenizer, self.vocab_size = tokenizer, vocab_size
        self.max_model_len, self.config = config.model_config.max_model_len, config
        self._grammars, self.lora_loader = grammars, LoRALoader(config)
        self._bad_words: tuple[list[str], list[list[int]]] = ([], [])  # the newest, and their tokens

    @property
    def grammars(self) -> GrammarCompiler:
        if self._grammars is None:
            eos_token_ids = ends_of_text(self.config.model_config, self.tokenizer, warn=False)
            self._grammars = GrammarCompiler(self.tokenizer, self.vocab_size, eos_token_ids)
        return self._grammars

    def process(
        self, request_id: str, prompt: Prompt, params: AnyParams | None, priority: int = 0, key: int | str = "",
        lora_request: LoRARequest | None = None,
    ) -> Request:  # fmt: skip
        """Raises ValueError: priority without that policy; as LoRALoader.load; as check, unless that has been done."""
        check_int("priority", priority)
        if priority != 0 and self.config.scheduler_config.policy != "priority":
            raise ValueError(f"priority must be 0 under policy 'fcfs', got {priority}; set policy='priority' to use it")
        if not isinstance(prompt, ProcessedInputs):
            (prompt,) = self.check([prompt], params)
        elif params is not None:
            raise ValueError(f"sampling_params must be None beside a prompt that has been checked, got {params!r}")
        lora = None if lora_request is None else self.lora_loader.load(lora_request)
        return Request(
            request_id, prompt.text, prompt.token_ids, prompt.params,
            priority=priority, key=key, cache_salt=prompt.cache_salt, lora=lora, pooling_params=prompt.pooling_params,
        )  # fmt: skip

    def check(self, prompts: Iterable[Prompt], params: AnyParams | None) -> Iterator[ProcessedInputs]:
        """One after the other, the parameters once: they are the same for all.

        Raises:
            ValueError: a prompt of no known kind, an empty one, an id outside the vocabulary, text without a tokenizer,
                a parameter that is wrong or more than the engine allows (check_bounds), a form that cannot be
                compiled.
            PromptTooLongError: no room is left for even one new token, where one is drawn.
        """
        pooling = resolve_pooling_params(params, self.config.pooler_config)
        resolved = None if pooling is None else DRAWS_NOTHING
        for prompt in prompts:
            text, token_ids = self._tokenize(prompt)
            cache_salt = prompt.get("cache_salt") if isinstance(prompt, Mapping) else None
            if cache_salt is not None and (not isinstance(cache_salt, str) or not cache_salt):
                raise ValueError(f"cache_salt must be a string that is not empty, got {cache_salt!r}")
            self._check_prompt(token_ids)
            resolved = resolved or self._resolve_params(params)  # type: ignore[arg-type]  # no PoolingParams
            own = copy.copy(resolved)  # its lists are shared, and never changed
            own.max_tokens = own.max_tokens or self.max_model_len - len(token_ids)
            check_beams_fit(len(token_ids), own, self.config)
            yield ProcessedInputs(text, token_ids, own, cache_salt, pooling)

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
        draws = self.config.pooler_config is None
        if len(token_ids) > self.max_model_len - draws:
            num_blocks = self.config.cache_config.num_kv_blocks or 0
            num_tokens = self.config.kv_cache_groups.longest(num_blocks, self.max_model_len)
            raise PromptTooLongError(
                f"prompt has {len(token_ids)} tokens, but max_model_len is {self.max_model_len}"
                f"{' and must leave room for at least one new token' if draws else ''} (the KV cache holds "
                f"{num_tokens} tokens): shorten the prompt, or raise max_model_len and, if need be, num_kv_blocks"
            )
        for token_id in token_ids:
            if isinstance(token_id, bool) or not isinstance(token_id, int):
                raise ValueError(f"prompt_token_ids must be integers, got {token_id!r}")
            if not 0 <= token_id < self.vocab_size:
                raise ValueError(f"prompt_token_ids must be in [0, {self.vocab_size}), got {token_id}")

    def _resolve_params(self, params: SamplingParams | None) -> SamplingParams:
        """A copy, so that what the caller does to theirs later changes nothing here."""
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise ValueError(f"sampling_params must be SamplingParams, got {params!r}")
        params = params.clone()
        params.validate()  # fields may have been set since it was made
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(params, name) == -1:
                setattr(params, name, self.vocab_size)
        check_bounds(params, self.config)  # before all of its sequences are made
        if params.use_beam_search and params.stop:
            raise ValueError(
                f"stop must not be given with use_beam_search=True, got {params.stop}: beams have no text before they "
                "end; use stop_token_ids"
            )
        validate_against_vocab(params, self.vocab_size)
        if params.structured_outputs is not None:
            form = self.grammars.compile(params.structured_outputs)
            params.extra_args = {**(params.extra_args or {}), KEY: form}
        resolve_extra_args(params, self.config.model_config.logits_processors)
        if self.tokenizer is None and (params.stop or params.bad_words):
            raise ValueError(
                "stop and bad_words are text, but skip_tokenizer_init leaves no tokenizer: use stop_token_ids"
            )
        params.bad_words_token_ids = self._tokenize_bad_words(params.bad_words or [])
        return params

    def _tokenize_bad_words(self, words: list[str]) -> list[list[int]]:
        """Each word as it is tokenised at the start of a text and after a space: both must be kept out. One that begins
        with a space, or a line break, is banned as it is: a space before it is no part of it.

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


def check_bounds(params: SamplingParams, config: EngineConfig) -> None:
    """Whoever starts an engine limits what a request may ask for: a log-probability costs a dict entry per token, a
    sequence costs rows, blocks and text. One request could hold up all the others.

    Raises:
        ValueError: n or best_of is above max_n, logprobs or prompt_logprobs above max_logprobs; -1 allows any.
    """
    for bound, most, names in (
        ("max_n", config.scheduler_config.max_n, ("n", "best_of")),
        ("max_logprobs", config.model_config.max_logprobs, ("logprobs", "prompt_logprobs")),
    ):
        for name in names:
            value = getattr(params, name)
            if value is not None and most != -1 and value > most:
                raise ValueError(f"{name} must be at most {most}, got {value}; raise {bound}, or -1 for any")


def check_beams_fit(prompt_len: int, params: SamplingParams, config: EngineConfig) -> None:
    """A load that is too large waits; a request that is too large by itself would wait for ever. Sampled sequences can
    run one after the other, and one alone always fits. Beams must run together.

    Raises:
        ValueError: more beams than sequences in a batch, or than the KV cache can hold.
    """
    width, most = params.best_of, config.scheduler_config.max_num_seqs
    if not params.use_beam_search:
        return
    if width > most:
        raise ValueError(
            f"best_of must be at most {most} with use_beam_search=True, got {width}: beams run together; raise "
            f"max_num_seqs"
        )
    max_model_len = config.model_config.max_model_len
    groups, num_blocks = config.kv_cache_groups, config.cache_config.num_kv_blocks
    longest = min(prompt_len + (params.max_tokens or max_model_len), max_model_len)
    # At worst the beams have only the prompt's full blocks in common. Where there are windows, not even these: one that
    # comes back may find that the others have given back what it would read of the prompt.
    shared = 0 if groups.have_windows else prompt_len // groups.block_size
    needed = shared + width * (groups.most_blocks(longest) - shared)
    if needed > num_blocks:
        raise ValueError(
            f"best_of must be small enough for its beams to fit into the KV cache, got {width}: {width} sequences "
            f"of up to {longest} tokens may need {needed} blocks of {num_blocks}; lower best_of or max_tokens, or "
            f"raise num_kv_blocks"
        )


def validate_against_vocab(params: SamplingParams, vocab_size: int) -> None:
    """What SamplingParams cannot know when it is made: ids and counts that only fit some vocabularies."""
    for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
        for token_id in getattr(params, name) or ():
            if not 0 <= token_id < vocab_size:
                raise ValueError(
                    f"{name} must hold token ids in [0, {vocab_size}), the model's vocabulary, got {token_id}"
                )
    for name in ("logprobs", "prompt_logprobs"):
        count = getattr(params, name)
        if count is not None and count > vocab_size:
            raise ValueError(f"{name} must be at most {vocab_size}, the model's vocabulary, got {count}")


def ends_of_text(model_config: ModelConfig, tokenizer: Any | None, *, warn: bool = True) -> frozenset[int]:
    """The ids that the model's files name, and the tokenizer's eos_token: of some chat models, only that one ends a
    turn."""
    named = frozenset(load_generation_config(model_config).eos_token_ids)
    end = getattr(tokenizer, "eos_token_id", None)
    vocab_size = getattr(load_hf_config(model_config).get_text_config(), "vocab_size", None)
    if end is None or end in named or (vocab_size is not None and end >= vocab_size):
        return named
    if warn:
        text = "%s: the tokenizer's eos_token %r (%d) ends a text, too; the model's files name %s"
        init_logger(__name__).warning(text, model_config.model, tokenizer.eos_token, end, sorted(named))  # type: ignore[union-attr]
    return named | {end}
