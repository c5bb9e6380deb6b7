"""What the user gets to see: text, cut at stop strings, log-probabilities with their tokens, metrics.

    EngineCoreOutputs ─▶ OutputProcessor ─▶ RequestOutputs, and sequences that a stop string has ended
       token ids            text

It belongs to whoever asks: LLMEngine, or a client of a core elsewhere. A stop string can begin inside text that has
been generated and end in text that has not, so while a sequence runs the last len(longest stop) - 1 characters are held
back:

    stop = ["END"]    generated  "... and the E"     shown "... and the"     the E could become END

Where there is no stop string to look for, the text waits until it is asked for: a request whose output is
fetched once has its text made once.

vLLM: v1/engine/output_processor.py, v1/engine/detokenizer.py, v1/engine/logprobs.py
"""

from __future__ import annotations

import time
from typing import Any

from folovllm.engine.detokenizer import IncrementalDetokenizer, SupportsDecode
from folovllm.engine.messages import EngineCoreOutput, EngineCoreOutputs, Key
from folovllm.outputs import CompletionOutput, FinishReason, Logprob, RequestMetrics, RequestOutput
from folovllm.sampling_params import SamplingParams
from folovllm.worker.model_runner_output import LogprobsRow


class SequenceState:
    """One sequence: its tokens, and its text."""

    def __init__(self, prompt_token_ids: list[int], params: SamplingParams, decoder: SupportsDecode | None) -> None:
        self.params = params
        self.token_ids: list[int] = []
        self.logprobs: list[dict[int, Logprob]] = []
        self.cumulative_logprob = 0.0
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.text = ""
        self.made: CompletionOutput | None = None  # as it has been since the newest token
        self._num_read = 0  # tokens that `text` was made of; counted where there are no stop strings
        self._detokenizer: IncrementalDetokenizer | None = None
        """None also once `text` has all tokens, down to an incomplete character at its end."""
        if decoder is not None and params.detokenize:
            self._detokenizer = IncrementalDetokenizer(
                decoder, prompt_token_ids, skip_special_tokens=params.skip_special_tokens
            )
        self.stops = list(params.stop or ()) if self._detokenizer is not None else []
        keep_stop = params.include_stop_str_in_output
        self._holdback = 0 if keep_stop else max((len(stop) for stop in self.stops), default=1) - 1

    def add(self, token_ids: list[int], ended: FinishReason | None, stop_reason: int | str | None = None) -> int:
        """`ended`: what the last of these tokens brings about by its id. Returns how many of them count: what comes
        after a stop string does not. One that became complete says more than a length that ran out."""
        self.made = None
        num_tokens = len(token_ids)
        if self.stops:
            for place, token_id in enumerate(token_ids, start=1):
                if self._finds_stop(token_id, ended if place == num_tokens else None, len(self.token_ids) + place):
                    num_tokens, ended, stop_reason = place, "stop", self.stop_reason
                    break
        self.token_ids += token_ids[:num_tokens]
        self.finish_reason, self.stop_reason = ended, stop_reason
        return num_tokens

    def _finds_stop(self, token_id: int, ended: FinishReason | None, num_tokens: int) -> bool:
        """Extend the text by a token; whether a stop string became complete by it."""
        assert self._detokenizer is not None
        ended_by_token = ended == "stop"
        if ended_by_token and not self.params.include_stop_str_in_output:
            added = self._detokenizer.finish()  # the stop token itself is not part of the text
        else:
            added = self._detokenizer.add(token_id)
            if ended is not None:
                added += self._detokenizer.finish()
        self.text += added
        # A run of bytes is held back, but a stop string in it ends the sequence: Llama 2's newline is such a byte.
        waiting = self._detokenizer.finish() if ended is None and self._detokenizer.in_run else ""
        # As for EOS, the first token that may end the sequence is the one after min_tokens.
        may_stop = (added or waiting) and not ended_by_token and num_tokens > self.params.min_tokens
        complete, self.text = self.text, self.text + waiting
        if may_stop and self._cut_at_stop(len(added + waiting)):
            return True
        self.text = complete
        return False

    def _cut_at_stop(self, num_added: int) -> bool:
        """Whether a stop string ends in the newest `num_added` characters; the earliest one cuts the text."""
        found = [
            (at, stop)
            for stop in self.stops
            if (at := self.text.find(stop, max(0, len(self.text) - num_added - len(stop) + 1))) >= 0
        ]
        if not found:
            return False
        at, stop = min(found, key=lambda hit: hit[0])
        self.text = self.text[: at + (len(stop) if self.params.include_stop_str_in_output else 0)]
        self.stop_reason = stop
        return True

    def shown_text(self) -> str:
        if self._detokenizer is not None and not self.stops:
            self._read(self._detokenizer)
        if self._holdback == 0 or self.finish_reason is not None:
            return self.text
        return self.text[: -self._holdback]

    def _read(self, detokenizer: IncrementalDetokenizer) -> None:
        end = len(self.token_ids)
        if self.finish_reason == "stop" and not self.params.include_stop_str_in_output:
            end -= 1  # the stop token itself is not part of the text
        self.text += detokenizer.add(*self.token_ids[self._num_read : end])
        self._num_read = end
        if self.finish_reason is not None:
            self.text, self._detokenizer = self.text + detokenizer.finish(), None

    def completion(self, index: int) -> CompletionOutput:
        """What has not changed is not made again: of thousands of sequences few run in a step."""
        if self.made is None or self.made.index != index:
            params = self.params
            self.made = CompletionOutput(
                index=index,
                text=self.shown_text(),
                token_ids=list(self.token_ids),
                cumulative_logprob=self.cumulative_logprob if params.needs_logprobs or params.use_beam_search else None,
                logprobs=list(self.logprobs) if params.logprobs is not None else None,
                finish_reason=self.finish_reason,
                stop_reason=self.stop_reason,
            )
        return self.made


class RequestState:
    """One request, from its beginning to its last output, which is what `output` returns once it is `finished`."""

    def __init__(
        self, key: Key, request_id: str, prompt: str | None, prompt_token_ids: list[int], params: SamplingParams,
        decoder: SupportsDecode | None, *, final_only: bool = False,
    ) -> None:  # fmt: skip
        """final_only: no output is asked for before the last."""
        self.key, self.request_id, self.params, self.final_only = key, request_id, params, final_only
        self.prompt, self.prompt_token_ids, self._decoder = prompt, prompt_token_ids, decoder
        self.prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self.num_cached_tokens = 0
        self.pooling_output: list[float] | None = None
        self.metrics = RequestMetrics(time.time())
        self.sequences: dict[int, SequenceState] = {}  # of those that have a token
        self._num_finished, self.finished = 0, False
        self.late: list[EngineCoreOutput] | None = None
        """What comes while a thread makes an output; None: no thread does."""

    def take(self, output: EngineCoreOutput, tokenizer: Any | None, now: float) -> bool:
        """Whether a stop string has ended a sequence that the core goes on with."""
        if self.metrics.first_token_time is None:
            self.metrics.first_token_time = now
        if not output.new_token_ids and output.finish_reason is None:
            return False
        if (seq := self.sequences.get(output.seq_index)) is None:
            seq = SequenceState(self.prompt_token_ids, self.params, self._decoder)
            self.sequences[output.seq_index] = seq
        if seq.finish_reason is not None:
            return False  # it comes after a stop string, of which the core did not know yet
        self.pooling_output = output.pooling_output
        num_tokens = seq.add(output.new_token_ids, output.finish_reason, output.stop_reason)
        self.metrics.num_output_tokens += num_tokens
        if seq.finish_reason is not None:
            self._num_finished += 1  # of a beam search all winners come together
            self.finished = self.params.use_beam_search or self._num_finished == self.params.best_of
        if output.new_logprobs is not None:
            rows = output.new_logprobs[:num_tokens]
            seq.cumulative_logprob += sum(row.logprobs[0] for row in rows)
            if self.params.logprobs is not None:
                seq.logprobs += [decode_row(row, tokenizer) for row in rows]
        if output.cumulative_logprob is not None:
            seq.cumulative_logprob = output.cumulative_logprob
        return seq.finish_reason is not None and output.finish_reason is None

    def take_token(self, token_id: int, now: float) -> bool:
        """As take(), where its only sequence gained a token and nothing else."""
        seq = self.sequences.get(0)
        if seq is None or seq.finish_reason is not None or seq.stops:
            return self.take(EngineCoreOutput(self.key, 0, [token_id]), None, now)
        seq.made = None
        seq.token_ids.append(token_id)
        self.metrics.num_output_tokens += 1
        return False

    def output(self) -> RequestOutput:
        """The request as it is, its sequences that have begun. Of a finished one the best n of best_of sequences, best
        first. What comes later does not change it."""
        params, numbered = self.params, sorted(self.sequences.items())
        if self.finished and params.best_of > params.n and not params.use_beam_search:
            ranked = sorted((seq for _, seq in numbered), key=lambda seq: seq.cumulative_logprob, reverse=True)
            numbered = list(enumerate(ranked[: params.n]))
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            prompt_logprobs=self.prompt_logprobs,
            outputs=[seq.completion(index) for index, seq in numbered],
            finished=self.finished,
            metrics=RequestMetrics(  # as they are at this step; dataclasses.replace() takes four times as long
                self.metrics.arrival_time,
                self.metrics.first_token_time,
                self.metrics.finished_time,
                self.metrics.num_output_tokens,
                self.metrics.first_scheduled_time,
            ),
            num_cached_tokens=self.num_cached_tokens,
            pooling_output=self.pooling_output,
        )


class OutputProcessor:
    """Keeps a RequestState from add_request() to the last output or abort_request().

    Args:
        tokenizer: a Hugging Face tokenizer, or None when skip_tokenizer_init leaves token ids only.
    """

    def __init__(self, tokenizer: Any | None) -> None:
        self.tokenizer = tokenizer
        self._decoder = None if tokenizer is None else fastest_decoder(tokenizer)
        self.request_states: dict[Key, RequestState] = {}

    def add_request(
        self, key: Key, request_id: str, prompt: str | None, prompt_token_ids: list[int], params: SamplingParams, *,
        final_only: bool = False,
    ) -> RequestState:  # fmt: skip
        asked = key, request_id, prompt, prompt_token_ids, params
        state = RequestState(*asked, self._decoder, final_only=final_only)
        self.request_states[key] = state
        return state

    def abort_request(self, key: Key) -> None:
        """Nothing more comes of it. One that has ended is no error."""
        self.request_states.pop(key, None)

    def process_outputs(self, message: EngineCoreOutputs) -> tuple[list[RequestState], list[tuple[RequestState, int]]]:
        """Returns the requests that have an output to be fetched, and the sequences, by index, that a stop string has
        ended."""
        now, states = time.time(), self.request_states
        for key, stats in message.prefill_stats.items():
            if key in states:
                states[key].num_cached_tokens, states[key].metrics.first_scheduled_time = stats
        for key, rows in message.prompt_logprobs.items():
            if key in states:  # nothing precedes the first prompt token, so nothing can be said about it
                states[key].prompt_logprobs = [None, *(decode_row(row, self.tokenizer) for row in rows)]
        changed: dict[RequestState, None] = {}
        stopped: list[tuple[RequestState, int]] = []
        for key, token_id in message.new_tokens.items():
            if (state := states.get(key)) is not None:
                if state.take_token(token_id, now):
                    stopped.append((state, 0))
                if state.finished or not state.final_only:
                    changed[state] = None
        for output in message.outputs:
            if (state := states.get(output.key)) is None:
                continue
            if state.late is not None:
                state.late.append(output)
                continue
            if state.take(output, self.tokenizer, now):
                stopped.append((state, output.seq_index))
            if state.finished or (not state.final_only and state.sequences):
                changed[state] = None
        for state in changed:
            if state.finished:
                state.metrics.finished_time = now
                del states[state.key]
        return list(changed), stopped


def decode_row(row: LogprobsRow, tokenizer: Any | None) -> dict[int, Logprob]:
    """{token id: Logprob}, the chosen token first. The others come in falling order: their rank is their place."""
    ranks = [row.rank, *range(1, len(row.token_ids))]
    decoded: dict[int, Logprob] = {}
    for token_id, logprob, rank in zip(row.token_ids, row.logprobs, ranks, strict=True):
        text = None if tokenizer is None else tokenizer.decode([token_id])
        decoded.setdefault(token_id, Logprob(logprob, rank, text))
    return decoded


def fastest_decoder(tokenizer: SupportsDecode) -> SupportsDecode:
    """The Rust tokenizer inside a Hugging Face one, where its answer is the same.

    It takes a third of the time per call, and with 64 sequences there are 128 calls a step.
    """
    from transformers import PreTrainedTokenizerFast

    is_plain = (
        isinstance(tokenizer, PreTrainedTokenizerFast)
        and type(tokenizer)._decode is PreTrainedTokenizerFast._decode
        and not tokenizer.clean_up_tokenization_spaces
    )
    return tokenizer.backend_tokenizer if is_plain else tokenizer  # type: ignore[attr-defined]
