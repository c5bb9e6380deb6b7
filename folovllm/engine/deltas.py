"""Outputs as differences: one side encodes what each output gained, the other adds the differences up again.

    outputs, everything so far      A        A B      A B C
    DeltaEncoder                    A          B          C      on the wire
    DeltaDecoder                    A        A B      A B C

Sent as they are, the outputs of n tokens would cost n²/2 tokens on the wire. A slow reader gets the sum: the tokens
wait once, where they are added up. There they also become text, while the engine computes. The engine makes the text
only where it compares it with stop strings.

vLLM: v1/engine/__init__.py (EngineCoreOutput), v1/engine/output_processor.py (RequestOutputCollector, aggregation)
"""

from __future__ import annotations

import copy
import copyreg
import dataclasses
from operator import attrgetter

from folovllm.engine.detokenizer import IncrementalDetokenizer, SupportsDecode
from folovllm.engine.input_processor import Checked
from folovllm.outputs import CompletionOutput, Logprob, OutputDelta, RequestMetrics, RequestOutput
from folovllm.sampling_params import SamplingParams

# Of a dataclass pickle asks for each field by Python code. As calls with all fields they take about half the time.
for _kind in (RequestOutput, CompletionOutput, RequestMetrics, Logprob):
    _values = attrgetter(*(each.name for each in dataclasses.fields(_kind)))
    copyreg.pickle(_kind, lambda made, kind=_kind, values=_values: (kind, values(made)))  # type: ignore[misc]


class DeltaEncoder:
    """Cuts the outputs of one request down to what each gained."""

    def __init__(self, params: SamplingParams) -> None:
        self.is_whole = params.use_beam_search or params.best_of != params.n
        """The winners are known only at the end: there is one output, the last."""
        self._has_begun = False
        self._delta = OutputDelta()
        self._sent: dict[int, CompletionOutput] = {}  # by index

    def encode(self, output: RequestOutput) -> RequestOutput:
        """A completion that is the same object as before has gained nothing, and is left out."""
        changed = [each for each in output.outputs if self._sent.get(each.index) is not each]
        self._sent |= {each.index: each for each in changed}
        gained = self._delta.since_last(dataclasses.replace(output, outputs=changed))
        # The client has the prompt. Its log-probabilities are all known with the first output.
        gained.prompt, gained.prompt_token_ids = None, []
        if self._has_begun:
            gained.prompt_logprobs = None
        self._has_begun = True
        return gained


class DeltaDecoder:
    """Adds what the outputs of one request gained up to an output that holds everything so far.

    Args:
        checked: the request.
        decoder: makes the text where the engine does not; None: nobody does.
    """

    def __init__(self, checked: Checked, decoder: SupportsDecode | None = None) -> None:
        self._checked = checked
        makes_text = checked.params.detokenize and not checked.params.stop
        self._decoder = decoder if makes_text else None
        self._detokenizers: dict[int, IncrementalDetokenizer] = {}  # by completion
        self._newest: RequestOutput | None = None
        self._completions: dict[int, CompletionOutput] = {}
        self._given: dict[int, CompletionOutput] = {}  # copies of those that have not changed since

    @property
    def num_completions(self) -> int:
        return len(self._completions)

    def add(self, gained: RequestOutput) -> None:
        for piece in gained.outputs:
            self._given.pop(piece.index, None)
            if self._decoder is not None:
                piece.text = self._text_of(piece, self._decoder)
            known = self._completions.get(piece.index)
            if known is None:
                self._completions[piece.index] = piece
                continue
            known.text += piece.text
            known.token_ids += piece.token_ids
            if piece.logprobs is not None:
                known.logprobs = [*(known.logprobs or []), *piece.logprobs]
            known.cumulative_logprob = piece.cumulative_logprob
            known.finish_reason, known.stop_reason = piece.finish_reason, piece.stop_reason
        prompt_logprobs = gained.prompt_logprobs
        if self._newest is not None and prompt_logprobs is None:
            prompt_logprobs = self._newest.prompt_logprobs
        self._newest = dataclasses.replace(gained, prompt_logprobs=prompt_logprobs)

    def _text_of(self, piece: CompletionOutput, decoder: SupportsDecode) -> str:
        params, token_ids = self._checked.params, piece.token_ids
        if (detokenizer := self._detokenizers.get(piece.index)) is None:
            detokenizer = self._detokenizers[piece.index] = IncrementalDetokenizer(
                decoder, self._checked.token_ids, skip_special_tokens=params.skip_special_tokens
            )
        if piece.finish_reason == "stop" and not params.include_stop_str_in_output:
            token_ids = token_ids[:-1]  # the stop token itself is not part of the text
        text = detokenizer.add(*token_ids)
        return text if piece.finish_reason is None else text + detokenizer.finish()

    def output(self) -> RequestOutput:
        """Everything so far; what is added later does not change it.

        Raises:
            ValueError: nothing has been added.
        """
        if self._newest is None:
            raise ValueError("differences must have come before an output is asked for, got none")
        for index, each in self._completions.items():
            if index not in self._given:
                self._given[index] = copy.copy(each)
                self._given[index].token_ids = list(each.token_ids)
        completions = [self._given[index] for index in sorted(self._given)]
        return dataclasses.replace(
            self._newest, prompt=self._checked.text, prompt_token_ids=self._checked.token_ids, outputs=completions
        )
