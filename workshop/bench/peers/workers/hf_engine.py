"""Hugging Face's generate(), with a streamer that notes when tokens arrive. Its Python has folovllm in it, which loads
the weights. vLLM: none"""

from __future__ import annotations

import time
from importlib import import_module
from itertools import pairwise
from typing import Any

# torch first: then its threads wait as they do for transformers' users, and not as folovllm sets it.
NEEDS = ("torch", "transformers", "folovllm")


class Engine:
    """transformers' model on the weights that `model` names, or on random ones.

    A batch is static: shorter prompts are padded on the left, and it runs until its longest output is done. Tokens
    that were not asked for are not counted.
    """

    def __init__(self, model: dict[str, str], dtype: str, device: str | None) -> None:
        self.torch: Any = import_module("torch")
        self.version: str = import_module("transformers").__version__
        import_module("transformers.utils").logging.disable_progress_bar()  # there is one already
        config = import_module("folovllm.config").ModelConfig(
            model["path"], dtype=dtype, device=device, load_format=model["load_format"], skip_tokenizer_init=True
        )
        self.model: Any = import_module("folovllm.model_loader").ModelLoader(config).load()
        # Every token counts, so none may end the text. generate() would fill an unset EOS from the model's.
        self.model.generation_config.eos_token_id = None

    def generate(self, prompts: list[list[int]], num_tokens: list[int], batch_size: int) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {"steps": [], "tokens": []}
        for at in range(0, len(prompts), batch_size):
            batch = slice(at, at + batch_size)
            steps, tokens = self._batch(prompts[batch], num_tokens[batch])
            found["steps"] += steps
            found["tokens"] += tokens
        return found

    def _batch(self, prompts: list[list[int]], num_tokens: list[int]) -> tuple[list[Any], list[list[int]]]:
        most, width = max(num_tokens), max(len(prompt) for prompt in prompts)
        padded = [[0] * (width - len(prompt)) + prompt for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        clock = _Clock()
        with self.torch.inference_mode():
            found = self.model.generate(
                self.torch.tensor(padded, device=self.model.device),
                attention_mask=self.torch.tensor(mask, device=self.model.device),
                generation_config=import_module("transformers").GenerationConfig(
                    do_sample=False, max_new_tokens=most, pad_token_id=0
                ),
                streamer=clock,
            )
        gaps = [later - earlier for earlier, later in pairwise(clock.times)]
        if len(gaps) != most:
            raise RuntimeError(f"generate() gave {len(gaps)} tokens instead of {most}")
        steps = [(gap, sum(n > number for n in num_tokens), number == 0) for number, gap in enumerate(gaps)]
        return steps, [row[width : width + n] for row, n in zip(found.tolist(), num_tokens, strict=True)]


class _Clock:
    """A streamer, as generate() knows them: put() gets the prompt's ids and then each step's."""

    def __init__(self) -> None:
        self.times: list[float] = [time.perf_counter()]
        self._prompt_seen = False

    def put(self, value: object) -> None:
        if self._prompt_seen:
            self.times.append(time.perf_counter())
        self._prompt_seen = True

    def end(self) -> None:
        pass
