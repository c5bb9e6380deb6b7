"""Shared by M1's tests: a model folder with a byte-level tokenizer, and requests whose tokens are scripted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from folovllm.engine.llm_engine import LLMEngine
from folovllm.outputs import CompletionOutput, RequestOutput
from folovllm.sample.logits_processors import LogitsProcessor, register_logits_processor
from folovllm.sampling_params import SamplingParams
from tests.helpers import make_hf_folder
from tests.m1.byte_tokenizer import BOS, EOS, VOCAB_SIZE, byte_tokenizer


def make_text_model(tmp_path: Path, **over: object) -> Path:
    """A random Qwen3 folder whose tokenizer is byte_tokenizer()."""
    values = {"vocab_size": VOCAB_SIZE, "bos_token_id": BOS, "eos_token_id": EOS, **over}
    folder = make_hf_folder(tmp_path, "qwen3", **values)
    byte_tokenizer().save_pretrained(folder)
    return folder


@register_logits_processor("script")
class Script(LogitsProcessor):
    """Makes sequence i of a request say extra_args["script"][i], token by token, then EOS.

    The tokens are forced where users may force them, so a test that scripts its text runs through all of the engine.
    """

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for position, row in enumerate(self.rows):
            scripts = (row.params.extra_args or {})["script"]
            index = 0 if row.generator is None else row.generator.initial_seed() % len(scripts)  # the seed is 0 + i
            script, at = scripts[index], len(row.output_token_ids)
            logits[position] = -torch.inf
            logits[position, script[at] if at < len(script) else EOS] = 0.0
        return logits


def scripted(*scripts: str, **kwargs: Any) -> SamplingParams:
    """Parameters under which the request's sequences say `scripts`, byte by byte, then EOS."""
    return params(extra_args={"script": [list(script.encode()) for script in scripts]}, seed=0, **kwargs)


def run(engine: LLMEngine) -> tuple[dict[str, RequestOutput], list[RequestOutput]]:
    """Step to the end: {request_id: final output}, and every output on the way."""
    seen: list[RequestOutput] = []
    while engine.has_unfinished_requests():
        seen += engine.step()
    return {output.request_id: output for output in seen if output.finished}, seen


def say(engine: LLMEngine, script: str, prompt: str = "hi", **kwargs: Any) -> CompletionOutput:
    """The completion of a sequence that says `script`."""
    engine.add_request("r", prompt, scripted(script, **kwargs))
    return run(engine)[0]["r"].outputs[0]


def kept(engine: LLMEngine) -> object:
    """What is known of unfinished requests where their outputs are made."""
    return vars(engine.output_processor).get("request_states", getattr(engine.output_processor, "sequences", None))


def assert_empty(engine: LLMEngine) -> None:
    """Nothing of any request is left in the engine."""
    assert not engine.has_unfinished_requests()
    assert engine.requests == {}
    assert kept(engine) == {}


def params(**kwargs: Any) -> SamplingParams:
    """With more than the default 16 tokens."""
    return SamplingParams(**{"max_tokens": 40, **kwargs})
