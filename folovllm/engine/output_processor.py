"""What the user gets to see: text, cut at stop strings, log-probabilities with their tokens, metrics.

One SequenceOutput per running sequence holds its text and what of it may be shown. A stop string can begin inside
text that has been generated and end in text that has not, so while a sequence runs the last len(longest stop) - 1
characters are held back:

    stop = ["END"]    generated  "... and the E"     shown "... and the"     the E could become END

Where there is no stop string to look for, the text waits until it is asked for: a request whose output is
fetched once has its text made once.

vLLM: v1/engine/output_processor.py, v1/engine/detokenizer.py, v1/engine/logprobs.py
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from folovllm.engine.beams import BeamGroup
from folovllm.engine.core import Gained, SequenceChanges
from folovllm.engine.detokenizer import IncrementalDetokenizer, SupportsDecode
from folovllm.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from folovllm.request import Request, Sequence, SequenceStatus
from folovllm.worker.model_runner_output import LogprobsRow, ModelRunnerOutput

Logprobs = dict[Sequence, LogprobsRow | None]


class SequenceOutput:
    """The text side of one sequence."""

    def __init__(self, seq: Sequence, decoder: SupportsDecode | None) -> None:
        self.seq, self.params = seq, seq.sampling_params
        self.detokenizer = None
        if decoder is not None and self.params.detokenize:
            self.detokenizer = IncrementalDetokenizer(
                decoder, seq.data.prompt_token_ids, skip_special_tokens=self.params.skip_special_tokens
            )
        self.text, self.num_tokens = "", 0  # tokens that were added
        self.made: CompletionOutput | None = None  # as it has been since the newest token
        self.num_read = 0  # tokens that `text` was made of; counted where there are no stop strings
        self.is_whole = False  # `text` has all of them, and an incomplete character at its end
        self.stops = list(self.params.stop or ())
        keep_stop = self.params.include_stop_str_in_output
        self.holdback = 0 if keep_stop else max((len(stop) for stop in self.stops), default=1) - 1

    def add_token(self, token_id: int, ended: SequenceStatus | None) -> SequenceStatus | None:
        """Extend the text by the newest token.

        ended: the status that this token brings about by its id, if any. Returns the status all things considered: a
        stop string that became complete says more than a length that ran out.
        """
        self.num_tokens, self.made = self.num_tokens + 1, None
        if self.detokenizer is None or not self.stops:
            return ended
        ended_by_token = ended is SequenceStatus.FINISHED_STOPPED
        if ended_by_token and not self.params.include_stop_str_in_output:
            added = self.detokenizer.finish()  # the stop token itself is not part of the text
        else:
            added = self.detokenizer.add(token_id)
            if ended is not None:
                added += self.detokenizer.finish()
        self.text += added
        # A run of bytes is held back, but a stop string in it ends the sequence: Llama 2's newline is such a byte.
        waiting = self.detokenizer.finish() if ended is None and self.detokenizer.in_run else ""
        # As for EOS, the first token that may end the sequence is the one after min_tokens.
        may_stop = (added or waiting) and not ended_by_token and self.num_tokens > self.params.min_tokens
        complete, self.text = self.text, self.text + waiting
        if may_stop and self._cut_at_stop(len(added + waiting)):
            return SequenceStatus.FINISHED_STOPPED
        self.text = complete
        return ended

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
        self.seq.stop_reason = stop
        return True

    def shown_text(self) -> str:
        if self.detokenizer is not None and not self.stops and not self.is_whole:
            self._read(self.detokenizer, self.seq.data.output_token_ids)
        if self.holdback == 0 or self.seq.is_finished():
            return self.text
        return self.text[: -self.holdback]

    def _read(self, detokenizer: IncrementalDetokenizer, token_ids: list[int]) -> None:
        end = len(token_ids)
        if self.seq.status is SequenceStatus.FINISHED_STOPPED and not self.params.include_stop_str_in_output:
            end -= 1  # the stop token itself is not part of the text
        self.text += detokenizer.add(*token_ids[self.num_read : end])
        self.num_read = end
        if self.seq.is_finished():
            self.text, self.is_whole = self.text + detokenizer.finish(), True


class OutputProcessor:
    """Turns steps into RequestOutputs. State per request lives from begin() to the finished output or discard().

    Args:
        tokenizer: a Hugging Face tokenizer, or None when skip_tokenizer_init leaves token ids only.
        eos_token_ids, max_model_len: what ends a beam.
    """

    def __init__(self, tokenizer: Any | None, eos_token_ids: frozenset[int], max_model_len: int) -> None:
        self.tokenizer, self.eos_token_ids, self.max_model_len = tokenizer, eos_token_ids, max_model_len
        self._decoder = None if tokenizer is None else fastest_decoder(tokenizer)
        self.sequences: dict[str, SequenceOutput] = {}  # of those that have a token
        self.beams: dict[str, BeamGroup] = {}  # by request id

    def begin(self, request: Request) -> None:
        if request.sampling_params.use_beam_search:
            self.beams[request.request_id] = BeamGroup(request, self.eos_token_ids, self.max_model_len)

    def discard(self, request: Request) -> None:
        self.beams.pop(request.request_id, None)
        for seq in request.get_seqs():
            self.sequences.pop(seq.seq_id, None)

    def process_outputs(
        self, requests: dict[str, Request], rows: list[Sequence], output: ModelRunnerOutput, gained: Gained
    ) -> tuple[list[Request], int, SequenceChanges]:
        """Take in a step, whose tokens are appended already.

        requests: the unfinished ones by id. rows: the sequences that took part. gained: what EngineCore.step() says.
        Where draft tokens were right a sequence has gained several tokens, each of which may end it.

        Returns the requests that changed, for make_output(), how many tokens came, and what becomes of sequences.
        """
        for seq in rows if output.prompt_logprobs else ():
            if seq.seq_id in output.prompt_logprobs and not seq.is_finished():
                request = requests[seq.request_id]
                # Nothing precedes the first prompt token, so nothing can be said about it.
                request.prompt_logprobs = [None, *map(self._decode_row, output.prompt_logprobs[seq.seq_id])]
        logprobs = dict(zip(rows, output.logprobs, strict=True))
        later = {seq_id: iter(found) for seq_id, found in output.later_logprobs.items()}
        changed: dict[str, Request] = {}
        changes, num_tokens = SequenceChanges(), 0
        done: set[Sequence] = set()
        for seq, ended in gained:
            if seq.status is not SequenceStatus.RUNNING or seq in done:
                continue  # its request failed in this step, or a stop string came before this token
            num_tokens += 1
            request = changed[seq.request_id] = requests[seq.request_id]
            if request.metrics.first_token_time is None:
                request.metrics.first_token_time = time.time()
            request.metrics.num_output_tokens += 1
            row = logprobs.pop(seq) if seq in logprobs else next(later.get(seq.seq_id, iter(())), None)
            if row is not None:
                seq.cumulative_logprob += row.logprobs[0]
                if seq.sampling_params.logprobs is not None:
                    seq.output_logprobs.append(self._decode_row(row))
            if (state := self.sequences.get(seq.seq_id)) is None:
                state = self.sequences[seq.seq_id] = SequenceOutput(seq, self._decoder)
            ended = state.add_token(seq.data.output_token_ids[state.num_tokens], ended)
            if ended is not None:
                done.add(seq)
                changes.ended.append((request, seq, ended))
                if state.num_tokens < seq.get_output_len():
                    changes.cut.append((seq, state.num_tokens))
        if self.beams:
            num_tokens += self._advance_beams(requests, logprobs, changed, changes)
        return list(changed.values()), num_tokens, changes

    def _advance_beams(
        self, requests: dict[str, Request], logprobs: Logprobs, changed: dict[str, Request], changes: SequenceChanges
    ) -> int:
        """One step of every beam search whose beams took part; its output comes at the end, not on the way. Returns
        how many beams did."""
        rows = {
            seq: row
            for seq, row in logprobs.items()
            if row is not None and seq.status is SequenceStatus.RUNNING and seq.request_id in self.beams
        }
        for request_id in {seq.request_id for seq in rows}:
            request, group = requests[request_id], self.beams[request_id]
            if request.metrics.first_token_time is None:
                request.metrics.first_token_time = time.time()
            if group.advance(rows, changes):
                self._adopt(request, group.winners())
                request.metrics.num_output_tokens = sum(seq.get_output_len() for seq in request.sequences.values())
                changed[request_id] = request
        return len(rows)

    def _adopt(self, request: Request, winners: list[tuple[Sequence, list[LogprobsRow]]]) -> None:
        """These finished sequences, best first, are what came of a request; their text is made here, all at once."""
        self.discard(request)
        request.sequences = {seq.seq_id: seq for seq, _ in winners}
        for seq, rows in winners:
            state = self.sequences[seq.seq_id] = SequenceOutput(seq, self._decoder)
            token_ids = seq.data.output_token_ids
            for place, token_id in enumerate(token_ids, start=1):
                state.add_token(token_id, seq.status if place == len(token_ids) else None)
            if seq.sampling_params.logprobs is not None:
                seq.output_logprobs = [self._decode_row(row.cut(seq.sampling_params.logprobs)) for row in rows]

    def make_output(self, request: Request) -> RequestOutput:
        """The request as it is, its sequences that have begun; a finished one is asked for once. Of that, the best n of
        best_of sequences, best first."""
        finished = request.is_finished()
        sequences: Iterable[Sequence] = request.sequences.values()
        if finished:
            sequences = self._choose_best(request)
            request.metrics.finished_time = time.time()
        outputs: list[CompletionOutput] = []
        for index, seq in enumerate(sequences):
            if (state := self.sequences.get(seq.seq_id)) is not None:
                outputs.append(self._completion(index, seq, state))
        if finished:
            self.discard(request)
        return RequestOutput(
            request_id=request.request_id,
            prompt=request.prompt,
            prompt_token_ids=request.prompt_token_ids,
            prompt_logprobs=request.prompt_logprobs,
            outputs=outputs,
            finished=finished,
            metrics=RequestMetrics(  # as they are at this step; dataclasses.replace() takes four times as long
                request.metrics.arrival_time,
                request.metrics.first_token_time,
                request.metrics.finished_time,
                request.metrics.num_output_tokens,
                request.metrics.first_scheduled_time,
            ),
            num_cached_tokens=request.num_cached_tokens or 0,
        )

    def _choose_best(self, request: Request) -> list[Sequence]:
        """The n sequences with the highest cumulative logprob; the others become FINISHED_IGNORED."""
        params = request.sampling_params
        if params.use_beam_search or params.best_of == params.n:
            return request.get_seqs()
        ranked = sorted(request.get_seqs(), key=lambda seq: seq.cumulative_logprob, reverse=True)
        for loser in ranked[params.n :]:
            if loser.status is not SequenceStatus.FINISHED_ABORTED:
                loser.transition(SequenceStatus.FINISHED_IGNORED)
        return ranked[: params.n]

    def _completion(self, index: int, seq: Sequence, state: SequenceOutput) -> CompletionOutput:
        """What has not changed is not made again: of thousands of sequences few run in a step."""
        params = seq.sampling_params
        if state.made is not None and state.made.index == index:
            return state.made
        state.made = CompletionOutput(
            index=index,
            text=state.shown_text(),
            token_ids=list(seq.data.output_token_ids),
            cumulative_logprob=seq.cumulative_logprob if params.needs_logprobs or params.use_beam_search else None,
            logprobs=list(seq.output_logprobs) if params.logprobs is not None else None,
            finish_reason=None if seq.status is SequenceStatus.RUNNING else SequenceStatus.finish_reason(seq.status),
            stop_reason=seq.stop_reason,
        )
        return state.made

    def _decode_row(self, row: LogprobsRow) -> dict[int, Logprob]:
        """{token id: Logprob}, the chosen token first. The others come in falling order: their rank is their place."""
        ranks = [row.rank, *range(1, len(row.token_ids))]
        decoded: dict[int, Logprob] = {}
        for token_id, logprob, rank in zip(row.token_ids, row.logprobs, ranks, strict=True):
            text = None if self.tokenizer is None else self.tokenizer.decode([token_id])
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
