"""Shared by M1's tests: a byte-level tokenizer, a model folder that has it, and an engine whose tokens are scripted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from folovllm.engine.llm_engine import LLMEngine
from folovllm.outputs import CompletionOutput, RequestOutput
from folovllm.request import Sequence
from folovllm.sampling_params import SamplingParams
from folovllm.worker.model_runner_output import ModelRunnerOutput
from tests.helpers import make_hf_folder

BOS, EOS = 256, 257
VOCAB_SIZE = 258
CHAT_TEMPLATE = (
    "<bos>{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, id = byte, so that every multi-byte character is several tokens. Adds BOS to plain text."""
    alphabet = _byte_to_char()
    vocab = {alphabet[byte]: byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", chat_template=CHAT_TEMPLATE
    )
    from tokenizers.processors import TemplateProcessing

    fast.backend_tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    assert (fast.bos_token_id, fast.eos_token_id) == (BOS, EOS)
    return fast


def _byte_to_char() -> list[str]:
    """The printable stand-in of each byte in a byte-level vocabulary, asked of the library itself."""
    keep = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in keep else chr(next(others)) for byte in range(256)]


def make_text_model(tmp_path: Path, **over: object) -> Path:
    """A random Qwen3 folder whose tokenizer is byte_tokenizer()."""
    values = {"vocab_size": VOCAB_SIZE, "bos_token_id": BOS, "eos_token_id": EOS, **over}
    folder = make_hf_folder(tmp_path, "qwen3", **values)
    byte_tokenizer().save_pretrained(folder)
    return folder


class ScriptedRunner:
    """Stands in for the ModelRunner: sequence i of a request says scripts[i], byte by byte, then EOS."""

    def __init__(self, engine: LLMEngine, *scripts: str | list[int]) -> None:
        self.scripts = [list(s.encode()) if isinstance(s, str) else s for s in scripts]
        self.vocab_size = engine.runner.vocab_size
        engine.runner = self  # type: ignore[assignment]

    def execute(self, seq: Sequence) -> ModelRunnerOutput:
        script = self.scripts[seq.index % len(self.scripts)]
        at = seq.get_output_len()
        return ModelRunnerOutput(script[at] if at < len(script) else EOS)


def run(engine: LLMEngine) -> tuple[dict[str, RequestOutput], list[RequestOutput]]:
    """Step to the end: {request_id: final output}, and every output on the way."""
    seen: list[RequestOutput] = []
    while engine.has_unfinished_requests():
        seen += engine.step()
    return {output.request_id: output for output in seen if output.finished}, seen


def say(engine: LLMEngine, script: str, params: SamplingParams, prompt: str = "hi") -> CompletionOutput:
    """The completion of a sequence that says `script`."""
    ScriptedRunner(engine, script)
    engine.add_request("r", prompt, params)
    return run(engine)[0]["r"].outputs[0]


def params(**kwargs: Any) -> SamplingParams:
    """With more than the default 16 tokens."""
    return SamplingParams(**{"max_tokens": 40, **kwargs})
