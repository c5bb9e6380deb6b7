"""From "everything so far" to "what is new": the difference between two outputs of one request.

vLLM: sampling_params.py (RequestOutputKind.DELTA)
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from folovllm.outputs import CompletionOutput, RequestOutput
from folovllm.sampling_params import SamplingParams


def check_can_stream(params: SamplingParams | None) -> None:
    """Raises ValueError where the winners are known only at the end."""
    if isinstance(params, SamplingParams) and params.use_beam_search:
        raise ValueError("use_beam_search must be False when streaming: which beam wins is known only at the end")
    if isinstance(params, SamplingParams) and params.best_of != params.n:
        raise ValueError(f"best_of ({params.best_of}) must equal n ({params.n}) when streaming")


@dataclass
class OutputDelta:
    """Remembers how much of each completion has been given out."""

    seen: dict[int, tuple[int, int]] = field(default_factory=dict)
    """index -> (characters, tokens)."""

    def since_last(self, output: RequestOutput) -> RequestOutput:
        """`output` with each completion cut down to what it gained since the last call."""
        return dataclasses.replace(output, outputs=[self._cut(completion) for completion in output.outputs])

    def _cut(self, completion: CompletionOutput) -> CompletionOutput:
        num_chars, num_tokens = self.seen.get(completion.index, (0, 0))
        self.seen[completion.index] = len(completion.text), len(completion.token_ids)
        return dataclasses.replace(
            completion,
            text=completion.text[num_chars:],
            token_ids=completion.token_ids[num_tokens:],
            logprobs=None if completion.logprobs is None else completion.logprobs[num_tokens:],
        )
