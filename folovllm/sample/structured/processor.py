"""The logits processor of structured outputs: what the form forbids gets -inf.

It comes by the interface that every processor has, so the engine need not know of it. A request with one never runs
ahead, since its mask depends on the last token. The masks are made on the host while a GPU computes the logits that
they are for.

vLLM: v1/structured_output/utils.py (apply_grammar_bitmask)
"""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor

from folovllm.sample.logits_processors import LogitsProcessor, register_logits_processor
from folovllm.sample.row import SamplingRow
from folovllm.sample.structured.grammars import Grammar
from folovllm.sampling_params import SamplingParams
from folovllm.utils.checks import wrong
from folovllm.utils.upload import upload

KEY = "structured_outputs"


@register_logits_processor(KEY)
class StructuredOutputs(LogitsProcessor):
    """A complete text may only end. Then min_tokens gives way: there is nothing else that could follow."""

    @classmethod
    def validate(cls, params: SamplingParams) -> None:
        form = (params.extra_args or {})[KEY]
        if not isinstance(form, Grammar):
            way_out = "give it as SamplingParams(structured_outputs=StructuredOutputsParams(...))"
            raise wrong(f"extra_args[{KEY!r}]", "be a compiled form", form, way_out)
        if params.use_beam_search:
            raise ValueError("structured_outputs must not be given with use_beam_search=True: use n or best_of")

    def apply(self, logits: Tensor) -> Tensor:
        vocab_size = logits.shape[-1]
        masks = np.stack([_form(row).allowed(row.known_token_ids, row.ahead, vocab_size) for row in self.rows])
        (allowed,) = upload(logits.device, masks)
        logits.masked_fill_(~allowed, -torch.inf)
        for index, row in enumerate(self.rows):
            if len(row.output_token_ids) < row.params.min_tokens:
                open_ids = np.flatnonzero(masks[index])
                if set(open_ids.tolist()) <= row.eos_token_ids:  # banned by min_tokens, and all that is left
                    (open_at,) = upload(logits.device, open_ids)
                    logits[index, open_at] = logits.new_zeros(())
        return logits


def _form(row: SamplingRow) -> Grammar:
    return cast(Grammar, (row.params.extra_args or {})[KEY])
