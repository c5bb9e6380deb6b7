"""Whether a row of logits can be drawn from, and what is said of one that cannot.

    as the model gave it            NaN, +inf, or nothing but -inf      NOT_FINITE    activations have overflowed
    after masks, biases, penalties  the same                            NO_TOKEN      the request's own doing

-inf beside finite logits is a mask, and fine. The largest logit tells all of this, since NaN wins every maximum. What
is wrong stands in the place of the token id. So it comes to the host together with the tokens: it needs no copy of its
own, and nothing waits for it.

vLLM: v1/worker/gpu_model_runner.py (_get_nans_in_logits), which counts such rows where it is told to, and draws
"""

from __future__ import annotations

import torch
from torch import Tensor

from folovllm.errors import LogitsNotFiniteError, NoTokenLeftError
from folovllm.sampling_params import SamplingParams

NOT_FINITE, NO_TOKEN = -1, -2
"""In place of a token id, which is never negative."""


def mark_undrawable(drawn: Tensor, raw: Tensor, edited: Tensor, path: str) -> Tensor:
    """`drawn` [b], with NOT_FINITE or NO_TOKEN for the rows that could not be drawn from.

    raw, edited: [b, vocab], the same tensor where nothing was edited. path: the rows' group; on "greedy" and "beam",
    `drawn` is the argmax, so its logit is the largest. Masks may leave a beam nothing: that ends the beam, it is no
    error.
    """
    if path in ("greedy", "beam"):
        largest = edited.gather(1, drawn.unsqueeze(-1)).squeeze(-1)
    else:
        largest = edited.amax(dim=-1)
    bad = ~(largest < torch.inf) if path == "beam" else _is_not_finite(largest)
    if edited is raw:
        return drawn.masked_fill(bad, NOT_FINITE)
    return drawn.masked_fill(bad, NO_TOKEN).masked_fill_(_is_not_finite(raw.amax(dim=-1)), NOT_FINITE)


def _is_not_finite(values: Tensor) -> Tensor:
    """Half as many calls as ~isfinite(): infinity minus itself is NaN, which equals nothing."""
    return values.sub(values).ne(0)


def undrawable(code: int, request_id: str, params: SamplingParams) -> Exception:
    """The error for a request of which a row has this code."""
    if code == NOT_FINITE:
        return LogitsNotFiniteError(
            f"request {request_id!r}: its logits are not finite, the model's activations overflowed: use "
            f"dtype='float32' or 'bfloat16', whose range is wider than that of float16, or check the weights"
        )
    return NoTokenLeftError(
        f"request {request_id!r}: no token is left to draw, all logits are -inf, or some are NaN or +inf, after "
        f"{', '.join(_editing_fields(params))}: relax these"
    )


def _editing_fields(params: SamplingParams) -> list[str]:
    """The fields of a request that change its logits, as they were set."""
    off = SamplingParams()
    names = ["allowed_token_ids", "bad_words", "min_tokens", "logit_bias", "extra_args"]
    names += ["repetition_penalty", "frequency_penalty", "presence_penalty"]
    return [name for name in names if getattr(params, name) not in (None, {}, getattr(off, name))]
