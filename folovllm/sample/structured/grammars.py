"""Forms become matchers: compiled once for each form, and one matcher for each sequence that is held to it.

    {"type": "object", …} ── compile ──▶ matcher, at the beginning ── copy ──▶ one for each sequence
                              (kept)

A matcher reads a sequence's tokens one by one and tells which may come next. It is llguidance's: of the libraries that
were measured (workshop/structured_bench.py), it is the one that needs nearly nothing to start.

vLLM: v1/structured_output/__init__.py, v1/structured_output/backend_guidance.py
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from folovllm.errors import FoloVLLMError
from folovllm.structured_outputs import JSON_OPTIONS, StructuredOutputsParams, as_lark, kind_and_text
from folovllm.utils.checks import describe

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_FORM_CHARS = 2**16
"""Of a form as text. With a trie of 150,000 tokens, that compiles within some seconds at the most; no limit of
llguidance's own ends a list of 200,000 choices within minutes."""
LEXER_FUEL = 100_000
"""A tenth of what llguidance spends on a form's expressions unless told. `(a{1000}){1000}` has 15 characters, and its
first mask took four seconds with that; a third of one with this."""
MAX_KEPT = 256
"""Compiled forms that are kept. The one that was asked for longest ago gives way."""


class GrammarError(FoloVLLMError, ValueError):
    """A text cannot be held to its form any further. The request ends."""


class GrammarCompiler:
    """Compiles forms for one tokenizer. Threads may share it.

    Args:
        tokenizer: a fast Hugging Face tokenizer; None under skip_tokenizer_init.
        vocab_size: the length of a row of logits.
        eos_token_ids: what may end a text that is complete.
    """

    def __init__(self, tokenizer: Any | None, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self.tokenizer, self.vocab_size, self.eos_token_ids = tokenizer, vocab_size, eos_token_ids
        self._tokens: LLTokenizer | None = None
        self._kept: OrderedDict[tuple[str, str], LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, form: StructuredOutputsParams) -> Grammar:
        """Raises:
        ValueError: the form cannot be compiled, the tokenizer is no fast one, or llguidance is not installed.
        """
        key = kind, text = kind_and_text(form)
        with self._lock:
            matcher = self._kept.get(key)
        if matcher is None:
            matcher = self._compiled(kind, text)  # without the lock: others need not wait for it
        with self._lock:
            self._kept[key] = matcher
            self._kept.move_to_end(key)
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return Grammar(matcher, self)

    def _compiled(self, kind: str, text: str) -> LLMatcher:
        llguidance = _library()
        if len(text) > MAX_FORM_CHARS:
            raise ValueError(
                f"structured_outputs.{kind} must have at most {MAX_FORM_CHARS} characters as text, got {len(text)}: "
                "ask for a simpler form"
            )
        with self._lock:
            tokens = self._tokens = self._tokens or self._take_up()
        try:
            if kind == "json":
                grammar = llguidance.LLMatcher.grammar_from_json_schema(text, defaults=JSON_OPTIONS)
            elif kind == "grammar":
                grammar = llguidance.grammar_from("lark", as_lark(text))
            else:
                grammar = llguidance.grammar_from(kind, text)
            limits = llguidance.LLParserLimits(initial_lexer_fuel=LEXER_FUEL)
            fails, said = llguidance.LLMatcher.validate_grammar_with_warnings(grammar, tokens, limits=limits)
            problem = next((each for each in said if fails or each.startswith("Unimplemented")), None)
        except ValueError as error:
            problem = str(error)
        if problem:
            raise ValueError(
                f"structured_outputs.{kind} must be something that can be compiled, got {describe(text)}: "
                f"{_in_our_words(problem)}"
            )
        matcher = llguidance.LLMatcher(tokens, grammar, log_level=0, limits=limits)
        if not matcher.is_error():
            self.mask(matcher)  # the first takes longest, and copies of the matcher know it: here, and not in a step
        if matcher.is_error():
            problem = _in_our_words(matcher.get_error())
            raise ValueError(f"structured_outputs.{kind} must be within bounds, got {describe(text)}: {problem}")
        return matcher

    def mask(self, matcher: LLMatcher) -> np.ndarray:
        """Which tokens may come next: a bit for each, lowest first."""
        bits = np.zeros(-(-self.vocab_size // 32), np.int32)
        matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        return bits

    def _take_up(self) -> LLTokenizer:
        from transformers import PreTrainedTokenizerFast

        if not isinstance(self.tokenizer, PreTrainedTokenizerFast):
            kind = type(self.tokenizer).__name__
            raise ValueError(f"structured_outputs needs a fast tokenizer to know each token's bytes, got {kind}")
        if not self.eos_token_ids:
            raise ValueError("structured_outputs needs a token that ends the text, but this model names none")
        import llguidance.hf

        eos = sorted(self.eos_token_ids)
        try:
            return llguidance.hf.from_tokenizer(self.tokenizer, n_vocab=self.vocab_size, eos_token=eos)
        except Exception as error:
            raise ValueError(f"structured_outputs cannot take up this model's tokenizer: {error}") from error


class Grammar:
    """A compiled form in a request's parameters: the matchers of its sequences.

    A sequence is known by its list of output tokens, which lives as long as it does. A copy of the form, as a clone of
    the parameters has it, begins with no sequences.
    """

    def __init__(self, start: LLMatcher, compiler: GrammarCompiler) -> None:
        self._start, self._compiler = start, compiler
        self._states: dict[int, _State] = {}
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> Grammar:
        return Grammar(self._start, self._compiler)

    def __repr__(self) -> str:
        return f"Grammar({len(self._states)} sequences)"

    def allowed(self, output_token_ids: list[int], ahead: list[int], vocab_size: int) -> np.ndarray:
        """Which tokens may come next, [vocab_size] bool. ahead: tokens of the sequence that its list does not have yet.

        Raises: as look().
        """
        state = self.look(output_token_ids, ahead)
        if state.bits is None:
            mask = np.zeros(vocab_size, bool)
        else:
            mask = np.unpackbits(state.bits.view(np.uint8), bitorder="little")[:vocab_size].astype(bool)
        eos = [token_id for token_id in self._compiler.eos_token_ids if token_id < vocab_size]
        mask[eos] = state.ended or state.matcher.is_accepting()
        return mask

    def look(self, output_token_ids: list[int], ahead: Sequence[int] = ()) -> _State:
        """This sequence's state after all of its tokens. A thread may look ahead for the step that is to come.

        Raises:
            GrammarError: the tokens so far are not of this form: something else in the request put one there. Or the
                form has become too complex for llguidance's limits.
        """
        with self._lock:
            state = self._states.get(id(output_token_ids))
            if state is None:
                state = self._states[id(output_token_ids)] = _State(output_token_ids, self._start.deep_copy())
        with state.lock:
            state.look(self._compiler, ahead)
        return state


class _State:
    """One sequence's matcher, how many of its tokens it has read, and which may come next; None: only the end."""

    def __init__(self, tokens: list[int], matcher: LLMatcher) -> None:
        self.tokens, self.matcher = tokens, matcher  # the live list: holding it keeps its id() its own
        self.num_read = 0
        self.ended = False
        self.bits: np.ndarray | None = None
        self.lock = threading.Lock()

    def look(self, compiler: GrammarCompiler, ahead: Sequence[int]) -> None:
        if self.num_read == len(self.tokens) + len(ahead) and self.bits is not None:
            return
        self.bits = None
        self.catch_up([*self.tokens, *ahead] if ahead else self.tokens, compiler.eos_token_ids)
        if not self.ended:
            bits = compiler.mask(self.matcher)
            if self.matcher.is_error():
                raise self._ended_early()
            self.bits = bits

    def _ended_early(self) -> GrammarError:
        problem, count = self.matcher.get_error(), len(self.tokens)
        is_dead_end = "NoExtension" in problem or "ff_tokens" in problem
        must = "lead to a text that ends, and did not" if is_dead_end else "be within bounds, and was not"
        return GrammarError(f"structured_outputs must {must} after {count} tokens: {_in_our_words(problem)}")

    def catch_up(self, tokens: list[int], eos_token_ids: frozenset[int]) -> None:
        """Read what the sequence gained. After its end, which ignore_eos may leave behind, only an end can follow."""
        while self.num_read < len(tokens) and not self.ended:
            token_id = tokens[self.num_read]
            if token_id in eos_token_ids and self.matcher.is_accepting():
                self.ended = True
            elif not self.matcher.consume_token(token_id):
                if "too many" in self.matcher.get_error().lower():
                    raise self._ended_early()
                raise GrammarError(f"structured_outputs does not allow token {token_id} at place {self.num_read}")
            self.num_read += 1


_REASONS = {
    "NoExtension": "no text fits it, as where a $ref leads to nothing but itself",
    "ff_tokens": "a part of it must hold itself, without end",
    "Unimplemented keys": "texts cannot be held to these words of a schema: leave them out, and check the answer",
    "Failed to generate regex for": "a limit of a number is too large: it may have 18 digits at most",
    "number out of range": "a limit of a number is too large: it may have 18 digits at most",
    "does not exist": "a $ref points to nothing; an $id beside or above it moves where it is looked for: leave $id out",
}
"""By what llguidance's messages have in them."""


def _in_our_words(problem: str) -> str:
    """Why a form was refused. What llguidance adds about its own state helps nobody."""
    plain = " ".join(problem.split()).partition(" <state>")[0]
    found = next((reason for part, reason in _REASONS.items() if part in plain), None)
    return plain if found is None else f"{found} ({plain[:200]})"


def _library() -> Any:
    try:
        import llguidance
    except ImportError:
        raise ValueError("structured_outputs needs the package llguidance: pip install llguidance") from None
    return llguidance
