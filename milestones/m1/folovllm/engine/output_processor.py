"""What the user gets to see: text, cut at stop strings, log-probabilities with their tokens, metrics.

One SequenceOutput per running sequence holds its text and what of it may be shown. A stop string can begin inside
text that has been generated and end in text that has not, so while a sequence runs the last len(longest stop) - 1
characters are held back:

    stop = ["END"]    generated  "... and the E"     shown "... and the"     the E could become END

vLLM: v1/engine/output_processor.py, v1/engine/detokenizer.py, v1/engine/logprobs.py
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from typing import Any

from folovllm.engine.detokenizer import IncrementalDetokenizer
from folovllm.outputs import CompletionOutput, Logprob, RequestOutput
from folovllm.request import Request, Sequence, SequenceStatus
from folovllm.worker.model_runner_output import LogprobsRow, ModelRunnerOutput


class SequenceOutput:
    """The text side of one sequence."""

    def __init__(self, seq: Sequence, tokenizer: Any | None) -> None:
        self.seq, self.params = seq, seq.sampling_params
        self.detokenizer = None
        if tokenizer is not None and self.params.detokenize:
            self.detokenizer = IncrementalDetokenizer(
                tokenizer, seq.data.prompt_token_ids, skip_special_tokens=self.params.skip_special_tokens
            )
        self.text = ""
        self.stops = list(self.params.stop or ())
        keep_stop = self.params.include_stop_str_in_output
        self.holdback = 0 if keep_stop else max((len(stop) for stop in self.stops), default=1) - 1

    def add_token(self, token_id: int, ended: SequenceStatus | None) -> SequenceStatus | None:
        """Extend the text by the newest token.

        ended: the status that this token brings about by its id, if any. Returns the status all things considered: a
        stop string that became complete says more than a length that ran out.
        """
        if self.detokenizer is None:
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
        waiting = self.detokenizer.finish() if self.stops and ended is None and self.detokenizer.in_run else ""
        # As for EOS, the first token that may end the sequence is the one after min_tokens.
        may_stop = self.stops and (added or waiting) and not ended_by_token
        may_stop = may_stop and self.seq.get_output_len() > self.params.min_tokens
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
        if self.holdback == 0 or self.seq.is_finished():
            return self.text
        return self.text[: -self.holdback]


class OutputProcessor:
    """Turns steps into RequestOutputs. State per request lives from begin() to the finished output or discard()."""

    def __init__(self, tokenizer: Any | None) -> None:
        self.tokenizer = tokenizer
        self.sequences: dict[str, SequenceOutput] = {}

    def begin(self, request: Request) -> None:
        for seq in request.get_seqs():
            self.sequences[seq.seq_id] = SequenceOutput(seq, self.tokenizer)

    def discard(self, request: Request) -> None:
        for seq in request.get_seqs():
            self.sequences.pop(seq.seq_id, None)

    def process(
        self, request: Request, seq: Sequence, step: ModelRunnerOutput, ended: SequenceStatus | None
    ) -> RequestOutput:
        """Take in `seq`'s newest token, already appended; `ended` is what check_stop said of it. Ends the sequence."""
        if request.metrics.first_token_time is None:
            request.metrics.first_token_time = time.time()
        request.metrics.num_output_tokens += 1
        self._record_logprobs(request, seq, step)
        ended = self.sequences[seq.seq_id].add_token(step.token_id, ended)
        if ended is not None:
            seq.transition(ended)
        return self.make_output(request)

    def make_output(self, request: Request) -> RequestOutput:
        """The request as it is. Once finished, the best n of best_of sequences, best first."""
        finished = request.is_finished()
        sequences: Iterable[Sequence] = request.sequences.values()
        if finished:
            sequences = self._choose_best(request)
            request.metrics.finished_time = time.time()
        outputs: list[CompletionOutput] = []
        for index, seq in enumerate(sequences):
            outputs.append(self._completion(index, seq))
        if finished:
            self.discard(request)
        return RequestOutput(
            request_id=request.request_id,
            prompt=request.prompt,
            prompt_token_ids=request.prompt_token_ids,
            prompt_logprobs=request.prompt_logprobs,
            outputs=outputs,
            finished=finished,
            metrics=dataclasses.replace(request.metrics),  # as they are at this step
        )

    def _choose_best(self, request: Request) -> list[Sequence]:
        """The n sequences with the highest cumulative logprob; the others become FINISHED_IGNORED."""
        params = request.sampling_params
        if params.best_of == params.n:
            return request.get_seqs()
        ranked = sorted(request.get_seqs(), key=lambda seq: seq.cumulative_logprob, reverse=True)
        for loser in ranked[params.n :]:
            if loser.status is not SequenceStatus.FINISHED_ABORTED:
                loser.transition(SequenceStatus.FINISHED_IGNORED)
        return ranked[: params.n]

    def _completion(self, index: int, seq: Sequence) -> CompletionOutput:
        state = self.sequences[seq.seq_id]
        return CompletionOutput(
            index=index,
            text=state.shown_text() if state.holdback else state.text,
            token_ids=list(seq.data.output_token_ids),
            cumulative_logprob=seq.cumulative_logprob if seq.sampling_params.needs_logprobs else None,
            logprobs=list(seq.output_logprobs) if seq.sampling_params.logprobs is not None else None,
            finish_reason=None if seq.status is SequenceStatus.RUNNING else SequenceStatus.finish_reason(seq.status),
            stop_reason=seq.stop_reason,
        )

    def _record_logprobs(self, request: Request, seq: Sequence, step: ModelRunnerOutput) -> None:
        if step.logprobs is not None:
            seq.cumulative_logprob += step.logprobs.logprobs[0]
            if seq.sampling_params.logprobs is not None:
                seq.output_logprobs.append(self._decode_row(step.logprobs))
        if step.prompt_logprobs is not None:
            # Nothing precedes the first prompt token, so nothing can be said about it.
            request.prompt_logprobs = [None, *map(self._decode_row, step.prompt_logprobs)]

    def _decode_row(self, row: LogprobsRow) -> dict[int, Logprob]:
        """{token id: Logprob}, the chosen token first. The others come in falling order: their rank is their place."""
        ranks = [row.rank, *range(1, len(row.token_ids))]
        decoded: dict[int, Logprob] = {}
        for token_id, logprob, rank in zip(row.token_ids, row.logprobs, ranks, strict=True):
            text = None if self.tokenizer is None else self.tokenizer.decode([token_id])
            decoded.setdefault(token_id, Logprob(logprob, rank, text))
        return decoded
