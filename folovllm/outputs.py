"""What comes back from the engine: one RequestOutput per request, one CompletionOutput per sequence.

Plain data. `LLM.generate` returns them whole; while streaming, `text`, `token_ids` and `logprobs` hold
only what is new since the one before.

vLLM: vllm/outputs.py
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from folovllm.sampling_params import SamplingParams

FinishReason = Literal["stop", "length", "abort"]

LEAST_LOGPROB = -9999.0
"""In place of -inf wherever outputs become JSON, which knows no infinity; it is what vLLM writes."""


@dataclass(slots=True)
class Logprob:
    """One token at one position: its log-probability, its rank (1 is the likeliest), its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One generated sequence.

    `finish_reason` is "stop" (EOS, a stop string or a stop id), "length" (max_tokens or max_model_len),
    "abort", or None while it runs. `stop_reason` is the string or id that stopped it, None for EOS.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """When things happened to a request, in seconds of `time.time()`, and the durations that follow from that.

    arrival ──── ttft ────▶ first token ── tpot ─▶ · ── tpot ─▶ · … finished
    └──────────────────────── e2e_latency ───────────────────────────┘

    `first_scheduled_time` is when the first step began that it took part in.
    """

    arrival_time: float
    first_token_time: float | None = None
    finished_time: float | None = None
    num_output_tokens: int = 0
    first_scheduled_time: float | None = None

    @property
    def ttft(self) -> float | None:
        """Time to first token: waiting and prefill, the delay before a reader sees anything."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first (all of n's sequences together): the speed of decoding."""
        if self.first_token_time is None or self.finished_time is None or self.num_output_tokens < 2:
            return None
        return (self.finished_time - self.first_token_time) / (self.num_output_tokens - 1)

    @property
    def e2e_latency(self) -> float | None:
        """From arrival to the last token of the last sequence."""
        return None if self.finished_time is None else self.finished_time - self.arrival_time


@dataclass(slots=True)
class RequestOutput:
    """One request: its prompt, and the n sequences that came of it.

    `prompt_logprobs` has one entry per prompt token; the first is None, since nothing comes before it.
    `num_cached_tokens` counts the prompt tokens whose keys and values did not have to be computed. `pooling_output` is
    the vector that answers pooling parameters; PoolingRequestOutput.of() makes the output of it.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    metrics: RequestMetrics | None = None
    num_cached_tokens: int = 0
    pooling_output: list[float] | None = None


@dataclass(slots=True)
class PoolingOutput:
    """An embedding, the probabilities of labels, or one score."""

    data: list[float]
    embedding = probs = property(lambda self: self.data)
    score = property(lambda self: self.data[0])


@dataclass(slots=True)
class PoolingRequestOutput:
    """One prompt, or one pair of texts, and the vector that came of it."""

    request_id: str
    outputs: PoolingOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int
    finished: bool = True

    @classmethod
    def of(cls, output: RequestOutput) -> PoolingRequestOutput:
        made = PoolingOutput(output.pooling_output or [])
        return cls(output.request_id, made, output.prompt_token_ids, output.num_cached_tokens)


@dataclass
class OutputDelta:
    """From outputs with everything so far to what is new in each: remembers how much of each completion was given out.

    vLLM: sampling_params.py (RequestOutputKind.DELTA)
    """

    seen: dict[int, tuple[int, int]] = field(default_factory=dict)
    """index -> (characters, tokens)."""

    def since_last(self, output: RequestOutput) -> RequestOutput:
        """`output` with each completion cut down to what it gained since the last call."""
        return replace(output, outputs=[self._cut(completion) for completion in output.outputs])

    def _cut(self, completion: CompletionOutput) -> CompletionOutput:
        num_chars, num_tokens = self.seen.get(completion.index, (0, 0))
        self.seen[completion.index] = len(completion.text), len(completion.token_ids)
        return replace(
            completion,
            text=completion.text[num_chars:],
            token_ids=completion.token_ids[num_tokens:],
            logprobs=None if completion.logprobs is None else completion.logprobs[num_tokens:],
        )


def check_can_stream(params: SamplingParams | None) -> None:
    """Raises ValueError where the winners are known only at the end."""
    if isinstance(params, SamplingParams) and params.use_beam_search:
        raise ValueError("use_beam_search must be False when streaming: which beam wins is known only at the end")
    if isinstance(params, SamplingParams) and params.best_of != params.n:
        raise ValueError(f"best_of ({params.best_of}) must equal n ({params.n}) when streaming")
