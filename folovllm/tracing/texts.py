"""Texts of a trace: prompts, and what each sequence has said, piece by piece.

    tokens in the trace    3: 1184 264 9213           a step writes ids only: no decoding while the engine runs
    pieces in the page     3: " a" " litt" "le"       decoded when the page is made, if the tokenizer is there

A piece is what its token added to the text that a user would have been shown; "" where a character was not complete.

vLLM: none
"""

from __future__ import annotations

import os
from typing import Any

from folovllm.config import EMBEDDED_MODEL, ModelConfig
from folovllm.engine.detokenizer import IncrementalDetokenizer, SupportsDecode
from folovllm.tracing.page import Said, Texts
from folovllm.tracing.reader import Trace, endings, num_drawn, rows_of
from folovllm.tracing.records import Arrival

MOST_TOKENS = 200_000
"""Of a trace with more, a page shows no texts: it would be too large for a browser."""


class NoTextsError(ValueError):
    """Why texts of a trace cannot be shown."""


def find_tokenizer(trace: Trace, name: str | None = None) -> Any:
    """The tokenizer that the trace names, or `name`: a folder, or the model that ships here. It is only looked for on
    this machine: what a trace names must not make a program fetch anything.

    Raises:
        NoTextsError: there is none, or the trace has no texts.
    """
    if not trace.header.texts:
        raise NoTextsError(f"trace {trace.name} was written without texts: --trace-texts writes them")
    num_tokens = sum(map(num_drawn, trace.steps))
    if num_tokens > MOST_TOKENS:
        raise NoTextsError(f"trace {trace.name} has {num_tokens:,} tokens; a page shows texts of {MOST_TOKENS:,}")
    name = name or trace.header.tokenizer or trace.header.model
    if name != EMBEDDED_MODEL and not os.path.exists(os.path.expanduser(name)):
        raise NoTextsError(f"tokenizer {name!r} of trace {trace.name} is no folder here: name one with --tokenizer")
    from folovllm.model_loader import load_tokenizer

    try:
        return load_tokenizer(ModelConfig(name, tokenizer=name, load_format="dummy"))
    except (ValueError, OSError) as error:
        raise NoTextsError(f"tokenizer {name!r} of trace {trace.name} cannot be read: {error}") from error


def texts_of(trace: Trace, tokenizer: SupportsDecode) -> Texts:
    """All of them. Special tokens are left out, and so is nothing else: also what comes after a stop string."""
    texts, open_ = Texts({}, {}), dict[tuple[int, str], IncrementalDetokenizer]()
    arrivals: list[Arrival] = []
    for (place, record, numbers), ends in zip(trace.walk(), endings(trace), strict=True):
        for arrival in record.arrived:
            prompt = arrival.prompt
            if prompt is None and arrival.prompt_ids:
                prompt = tokenizer.decode(arrival.prompt_ids, skip_special_tokens=False)
            if prompt is not None:
                texts.prompts[len(arrivals)] = prompt
            arrivals.append(arrival)
        for row in rows_of(record):
            if not row.token_ids or row.token_ids[0] < 0:
                continue
            request = numbers.get(row.request_id, -1)
            name = request, row.seq_id
            if name not in texts.said:
                context = arrivals[request].context if request >= 0 else []
                open_[name] = IncrementalDetokenizer(tokenizer, context, skip_special_tokens=True)
                texts.said[name] = Said()
            for token in row.token_ids if name in open_ else ():
                texts.said[name].steps.append(place)
                texts.said[name].pieces.append(open_[name].add(token))
        for request, seq_id, *_ in ends:
            if (name := (request, seq_id)) in open_:
                texts.said[name].pieces[-1] += open_.pop(name).finish()
    return texts
