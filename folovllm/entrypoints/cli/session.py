"""What the commands that talk to a model share: loading it, printing a stream, the closing line. vLLM: none"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from folovllm.entrypoints.cli.console import PlainConsole
from folovllm.outputs import CompletionOutput, RequestOutput

if TYPE_CHECKING:
    from folovllm.entrypoints.llm import LLM

# What is not the answer itself goes to stderr, so that `folovllm generate … > file` keeps the text alone.
notes = PlainConsole(stderr=True, soft_wrap=True)


def load_llm(kwargs: dict[str, Any]) -> LLM:
    """Load the model. Its seed is drawn anew, because two runs of one command without --seed should differ."""
    with notes.status(f"loading {kwargs['model']} …"):
        from folovllm.entrypoints.llm import LLM

        return LLM(**kwargs, seed=random.SystemRandom().getrandbits(31))


@dataclass
class Streamed:
    """One streamed completion, put together again, with its times on the reader's side."""

    text: str = ""
    num_tokens: int = 0
    ttft: float = 0.0
    """Seconds to the first token."""
    decode_seconds: float = 0.0
    """From the first token to the last."""
    finish_reason: str | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """Speed of decoding: the first token belongs to the prefill."""
        return (self.num_tokens - 1) / self.decode_seconds if self.decode_seconds > 0 else None

    def summary(self) -> str:
        speed = f", then {self.tokens_per_s:,.0f} tokens/s" if self.tokens_per_s else ""
        text = f"{self.num_tokens} tokens: the first after {self.ttft * 1000:,.0f} ms{speed}"
        return text + (f" · finish_reason {self.finish_reason}" if self.finish_reason else "")


def print_stream(stream: Iterator[RequestOutput]) -> Streamed:
    """Write each piece of text to stdout as it comes. Ctrl-C ends the answer, not the program."""
    done = Streamed()
    start = first = time.perf_counter()
    try:
        for output in stream:
            piece = output.outputs[0]
            if done.num_tokens == 0:
                first = time.perf_counter()
                done.ttft = first - start
            done.num_tokens += len(piece.token_ids)
            done.decode_seconds = time.perf_counter() - first
            done.text += piece.text
            done.finish_reason = piece.finish_reason
            sys.stdout.write(piece.text)
            sys.stdout.flush()
    except KeyboardInterrupt:
        done.finish_reason = "abort"
    finally:
        stream.close()  # type: ignore[attr-defined]  # a generator: closing it early aborts the request
    sys.stdout.write("\n")
    sys.stdout.flush()
    return done


def summarize(output: RequestOutput) -> str:
    """The closing line of an output that was not streamed."""
    num_tokens = sum(len(completion.token_ids) for completion in output.outputs)
    reasons = ", ".join(str(completion.finish_reason) for completion in output.outputs)
    text = f"{num_tokens} tokens"
    metrics = output.metrics
    if metrics is not None and metrics.ttft is not None:
        text += f": the first after {metrics.ttft * 1000:,.0f} ms"
        if metrics.tpot:
            text += f", then {1 / metrics.tpot:,.0f} tokens/s"
    return f"{text} · finish_reason {reasons}"


def logprobs_lines(completion: CompletionOutput) -> Iterator[tuple[str, str, str]]:
    """(token, its log-probability, the likeliest ones) for each generated token."""
    for token_id, entry in zip(completion.token_ids, completion.logprobs or [], strict=True):
        chosen = entry[token_id]
        ranked = sorted(entry.values(), key=lambda logprob: logprob.rank or 0)
        others = "  ".join(f"{other.decoded_token!r} {other.logprob:.2f}" for other in ranked)
        yield repr(chosen.decoded_token), f"{chosen.logprob:.2f}", others
