"""transformers' own continuous batching as a peer: all prompts at once, joined and scheduled by its manager.

The manager generates in another thread and notes when each token was there. Tokens that came out of the
same forward pass are noted together, so the passes can be read off: a pass ends where a request comes again.

    request 0   t     t     t          passes: {0} {0, 1} {0, 1}
    request 1         t     t

vLLM: none
"""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

hf_engine: Any = import_module("hf_engine")  # which is beside this file, on the path of the worker that imports it

NEEDS = hf_engine.NEEDS
POLL_SECONDS = 1.0


class Engine(hf_engine.Engine):  # type: ignore[misc]
    """generate_batch()'s parts, one by one: so the cache is made, and all prompts are there, before the clock runs.

    max_batch_tokens limits what one pass computes, prompts and new tokens together; a longer set of prompts
    takes several passes. Nothing is shared between prompts.
    """

    max_batch_tokens = 2048

    def generate(self, prompts: list[list[int]], num_tokens: list[int]) -> dict[str, list[Any]]:
        from transformers import GenerationConfig

        # -1 is no token's id. None would be filled with the model's EOS.
        greedy = GenerationConfig(do_sample=False, max_new_tokens=max(num_tokens), eos_token_id=-1, pad_token_id=0)
        manager = self.model.init_continuous_batching(
            generation_config=greedy, continuous_batching_config=self._config(prompts, num_tokens)
        )
        try:
            manager.warmup()  # makes the cache; on a GPU it also captures graphs
            ids = [
                manager.add_request(prompt, max_new_tokens=count, record_timestamps=True)
                for prompt, count in zip(prompts, num_tokens, strict=True)
            ]
            start = time.perf_counter()
            manager.start()
            results = _collect(manager, len(ids))
        finally:
            manager.stop(block=True, hard_stop=True)  # also puts the model's own attention back
            manager.destroy()
        outputs = [results[request_id] for request_id in ids]
        if errors := [output.error for output in outputs if output.error is not None]:
            raise RuntimeError(f"continuous batching failed: {errors[0]}")
        steps = passes(start, [output.timestamps for output in outputs])
        return {"steps": steps, "tokens": [output.generated_tokens for output in outputs]}

    def _config(self, prompts: list[list[int]], num_tokens: list[int]) -> Any:
        """Blocks for every prompt and its new tokens, and no more.

        Left to itself it takes most of the free memory, and on a CPU all processes share that.
        """
        from transformers import ContinuousBatchingConfig

        config: Any = ContinuousBatchingConfig(
            max_batch_tokens=self.max_batch_tokens,
            allow_block_sharing=False,
            safety_margin=0.0,  # every block is spoken for: a reserve would only make the last prompts wait
        )
        page_size = getattr(config, "page_size", None) or config.block_size  # its name in older releases
        lengths = [len(prompt) + count for prompt, count in zip(prompts, num_tokens, strict=True)]
        config.num_blocks = sum(-(-length // page_size) for length in lengths)
        return config


def _collect(manager: Any, count: int) -> dict[str, Any]:
    """Every request's last output. The thread reports its end only by not running any more."""
    results: dict[str, Any] = {}
    while len(results) < count:
        running = manager.is_running()  # asked first: what it gave before it ended is then still collected
        output = manager.get_result(timeout=POLL_SECONDS)
        if output is not None and output.is_finished():
            results[output.request_id] = output
        elif output is None and not running:
            error = manager.background_thread_status.fatal_error
            raise RuntimeError(f"continuous batching ended after {len(results)} of {count} requests: {error}")
    return results


def passes(start: float, timestamps: list[list[float]]) -> list[tuple[float, int, bool]]:
    """The passes behind the times at which each request's tokens were noted: seconds, tokens, whether it is a prefill.

    Every running request gets a token in every pass, so a request's next token begins the next pass. As in the
    other contestants a pass is a prefill if some request's first token came from it.
    """
    tokens = sorted(
        (when, request, number) for request, times in enumerate(timestamps) for number, when in enumerate(times)
    )
    run: list[tuple[float, int, bool]] = []
    seen, prefill, end = set[int](), False, start
    for at, (when, request, number) in enumerate(tokens):
        seen.add(request)
        prefill |= number == 0
        if at + 1 == len(tokens) or tokens[at + 1][1] in seen:
            run.append((when - end, len(seen), prefill))
            seen, prefill, end = set(), False, when
    return run
