"""Text as hidden states that go through a model layer by layer, and what a product's inputs are like.

Texts are cut into windows of some hundred tokens. Several are side by side in a batch, flat, as in the engine; each
one is a sequence. Every fourth window is held out: a loss on text that the quantiser has used says little about how
good it is.

vLLM: none; datasets of llm-compressor
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from folovllm.attention.backend import Attention
from folovllm.attention.backends.paged_torch import PagedTorchBackend
from folovllm.attention.metadata import AttentionMetadata
from folovllm.layers.linear import PLAIN, Linear, LinearMethod
from folovllm.layers.quantization.linear import round_rows
from folovllm.layers.rotary import Rotary, RotaryEmbedding
from folovllm.models.decoder import DecoderLayer, DecoderSpec
from folovllm.utils.checks import describe
from folovllm.utils.named_files import parse_json, read_file, wrong_file

WINDOW = 512
MIN_TOKENS, MAX_TOKENS = 2048, 2**16
MAX_TEXT = 2**23
"""Characters that are read of a text: they are more than MAX_TOKENS tokens."""
HELD_OUT_EVERY = 4
BATCH = 4
"""Windows."""


class Window(NamedTuple):
    ids: list[int]
    first: int
    """Of the tokens whose loss counts. What comes before is a prompt, or has nothing before it to be predicted from."""


def read_texts(path: Path) -> list[tuple[str, str]]:
    """(prompt, text) of each text of a file; only the text counts when a loss is taken.

    A name in .jsonl: each line is an object with "text", or with "prompt" and "completion". Else the file is one text.

    Raises:
        ValueError: it cannot be read, or is something else; the message starts with "calibration".
    """
    data = read_file("calibration", path)
    if path.suffix == ".jsonl":
        return [_text_of(path, number, line) for number, line in enumerate(data.splitlines(), 1) if line.strip()]
    try:
        return [("", data.decode("utf-8-sig"))]
    except UnicodeDecodeError as error:
        raise wrong_file("calibration", "be UTF-8 text", path, str(error)) from None


def _text_of(path: Path, number: int, line: bytes) -> tuple[str, str]:
    must = 'have an object with "text", or with "prompt" and "completion", on each line'
    try:
        value = parse_json(line)
    except ValueError as error:
        raise wrong_file("calibration", must, path, f"line {number} {error}") from None
    if isinstance(value, dict):
        prompt, text = value.get("prompt", ""), value.get("text", value.get("completion"))
        if isinstance(prompt, str) and isinstance(text, str):
            return prompt, text
    raise wrong_file("calibration", must, path, f"line {number} is {describe(value)}")


def make_windows(path: Path, tokenizer: Any, length: int) -> list[Window]:
    """The file's texts in windows of at most `length` tokens, MAX_TOKENS in all.

    Raises:
        ValueError: see read_texts; it has too few tokens.
    """
    windows: list[Window] = []
    total = 0
    for prompt, text in read_texts(path):
        # verbose: a text that is too long for the model is no fault, for it is cut.
        before = tokenizer.encode(prompt[:MAX_TEXT], verbose=False) if prompt else []
        own = tokenizer.encode(text[:MAX_TEXT], add_special_tokens=not prompt, verbose=False)
        ids = [*before, *own][: MAX_TOKENS - total]
        total += len(ids)
        for start in range(0, len(ids), length):
            windows.append(Window(ids[start : start + length], max(1, len(before) - start)))
        if total == MAX_TOKENS:
            break
    windows = [window for window in windows if window.first < len(window.ids)]
    if total < MIN_TOKENS or len(windows) < HELD_OUT_EVERY:
        must = f"have at least {MIN_TOKENS:,} tokens, and {HELD_OUT_EVERY} windows of up to {length}"
        found = f"it has {total:,} in {len(windows)}; take more of what the model will be asked"
        raise wrong_file("calibration", must, path, found)
    return windows


class Batch:
    """Windows side by side: token ids, and the hidden states [num_tokens, hidden] in front of the next layer."""

    def __init__(self, windows: Sequence[Window], embedding: torch.Tensor, block_size: int) -> None:
        device = embedding.device
        lengths = [len(window.ids) for window in windows]
        self.windows = windows
        self.ids = torch.tensor([token for window in windows for token in window.ids], device=device)
        self.states = F.embedding(self.ids, embedding).float()
        offsets = [torch.arange(length) for length in lengths]
        self.positions = torch.cat(offsets).to(device)
        self.metadata = AttentionMetadata(
            query_start_loc=torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device),
            seq_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
            slot_mapping=torch.cat([n * block_size + each for n, each in enumerate(offsets)]).to(device),
            block_tables=torch.arange(len(lengths), dtype=torch.int32, device=device)[:, None],
            max_query_len=max(lengths),
            max_seq_len=max(lengths),
        )


class Passes:
    """Sends batches through layers in float32."""

    def __init__(self, spec: DecoderSpec, length: int, device: torch.device) -> None:
        self.length = length
        with torch.device(device):
            self.rotary = RotaryEmbedding(spec.head_size, length, spec.rope)
        # A layer's keys and values are read by that layer alone, so one cache serves all.
        self.kv_cache = torch.zeros(2, BATCH, length, spec.num_kv_heads, spec.head_size, device=device)

    def batches(self, windows: Sequence[Window], embedding: torch.Tensor) -> list[Batch]:
        starts = range(0, len(windows), BATCH)
        return [Batch(windows[start : start + BATCH], embedding, self.length) for start in starts]

    def outputs(self, layer: DecoderLayer, batches: Sequence[Batch]) -> Iterator[tuple[Batch, torch.Tensor]]:
        """Each batch with its hidden states behind `layer`."""
        for module in layer.modules():
            if isinstance(module, Attention):
                module.bind(module.make_backend(PagedTorchBackend), self.kv_cache)
        for batch in batches:
            rotary: Rotary = self.rotary(batch.positions)
            out, residual = layer(batch.states, None, rotary, batch.metadata)
            yield batch, out + residual

    def advance(self, layer: DecoderLayer, batches: Sequence[Batch]) -> None:
        """Take `batches` behind `layer`."""
        for batch, states in self.outputs(layer, batches):
            batch.states = states


class Statistics:
    """What the inputs x of a product were like, over all tokens; float32."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.count = 0
        self._products = torch.zeros(size, size, device=device)
        self._sizes = torch.zeros(size, device=device)
        self.largest = torch.zeros(size, device=device)
        """[in]: max |x|"""

    def add(self, x: torch.Tensor) -> None:
        """x [num_tokens, in]"""
        self.count += len(x)
        self._products += x.T @ x
        self._sizes += x.abs().sum(0)
        self.largest = torch.maximum(self.largest, x.abs().amax(0))

    @property
    def hessian(self) -> torch.Tensor:
        """[in, in]: the mean of x x^T. (Half of the error's second derivative; GPTQ's name for it.) Of no inputs: as if
        each were of size 1 and none had to do with another, which makes a weight's error its outputs'."""
        if not self.count:
            return torch.eye(len(self._products), device=self._products.device)
        return self._products / self.count

    @property
    def mean_size(self) -> torch.Tensor:
        """[in]: the mean of |x|"""
        return self._sizes / self.count

    def divide(self, scales: torch.Tensor) -> None:
        """As they were, had the inputs been divided by `scales` [in]."""
        self._products /= torch.outer(scales, scales)
        self._sizes /= scales
        self.largest /= scales


class ObservedLinear(LinearMethod):
    """Multiplies as the checkpoint's weight does, then as its codes do. Between them it measures its inputs."""

    def __init__(
        self, in_checkpoint: Callable[[str], str], names: Sequence[str] = (), activation_bits: int | None = None
    ) -> None:
        self.in_checkpoint, self.names = in_checkpoint, names
        """In the checkpoint: "model.layers.0.self_attn.q_proj", and those that are stacked with it."""
        self.activation_bits = activation_bits
        self.statistics: Statistics | None = None
        self.is_quantized = False

    def for_layer(self, parent: str, parts: Sequence[str]) -> LinearMethod:
        if not parent:  # the LM head stays as it is
            return PLAIN
        names = [self.in_checkpoint(f"{parent}.{part}") for part in parts]
        return ObservedLinear(self.in_checkpoint, names, self.activation_bits)

    def take_statistics(self) -> Statistics:
        """Of the inputs since `statistics` was set; takes none from now on.

        Raises:
            ValueError: the inputs were not finite.
        """
        statistics, self.statistics = self.statistics, None
        assert statistics is not None
        if not statistics.largest.isfinite().all():
            raise ValueError(f"{self.names[0]} reads activations that are not finite: the model's weights are damaged")
        return statistics

    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        if self.statistics is not None:
            self.statistics.add(x)
        if self.is_quantized and self.activation_bits is not None:
            codes, scale = round_rows(x)
            x = codes * scale
        return super().apply(layer, x)
