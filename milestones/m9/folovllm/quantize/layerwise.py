"""One layer after the other: read it, quantise it, write it, forget it.

Two streams of hidden states go along. The calibration text has been through the layers as they are after quantising:
what reaches a layer there has the errors of those before it, and it is for these inputs that the layer is rounded. The
held-out text goes both ways, so that its loss is known before and after.

    memory: a layer in float32, the texts' hidden states, and what is known of a layer's inputs, [in, in] a product

vLLM: none; llm-compressor's sequential pipeline
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from folovllm.config import EMBEDDED_MODEL, ModelConfig
from folovllm.layers.ops import LayerOps
from folovllm.layers.quantization.codes import stack
from folovllm.layers.quantization.formats import FORMATS
from folovllm.model_loader import load_tokenizer, resolve_max_model_len
from folovllm.model_loader.hf_config import load_hf_config
from folovllm.model_loader.model_files import EMBEDDED_FOLDER
from folovllm.models.decoder import DecoderForCausalLM, DecoderLayer
from folovllm.models.registry import decoder_spec
from folovllm.quantize.calibration import HELD_OUT_EVERY, WINDOW, Batch, ObservedLinear, Passes, Window, make_windows
from folovllm.quantize.folder import Checkpoint, ShardWriter, copy_rest, new_folder, weight_bytes
from folovllm.quantize.layer import Rounded, quantize_layer
from folovllm.quantize.recipe import Recipe, quantization_config
from folovllm.quantize.report import LayerError, Report
from folovllm.quantize.rounding import Grid
from folovllm.utils.checks import describe, wrong
from folovllm.utils.devices import default_device
from folovllm.utils.memory import release_freed_memory

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
EMBEDDED_TEXT = EMBEDDED_FOLDER / "calibration.jsonl"
ROWS = 256
"""Of logits at a time."""


def quantize(
    model: str,
    out: Path,
    recipe: Recipe,
    calibration: Path | None = None,
    on_layer: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Write the folder `out`: the model's, with weights of 4 or 8 bits.

    Args:
        calibration: a text, see read_texts(). None: the embedded model's own, or, to round another to nearest, none.
        on_layer: called with how many layers are done, of how many.

    Raises:
        ValueError, ModelLoadError: a value or a file is wrong.
    """
    started = time.monotonic()
    config = ModelConfig(model, dtype="float32")
    hf_config = load_hf_config(config)
    if (settings := getattr(hf_config, "quantization_config", None)) is not None:
        method = describe(settings.get("quant_method"))
        raise wrong("model", "not be quantised already", model, f"it is, by {method}: name what it was made from")
    if calibration is None and model == EMBEDDED_MODEL:
        calibration = EMBEDDED_TEXT
    if calibration is None and recipe.needs_text:
        must = f"be a text file where the model is not {EMBEDDED_MODEL!r}"
        raise wrong("calibration", must, None, "give some hundred kilobytes of what the model will be asked")
    recipe = recipe.fitted(decoder_spec(hf_config))
    length = min(WINDOW, resolve_max_model_len(hf_config, None))
    windows = [] if calibration is None else make_windows(calibration, load_tokenizer(config), length)
    run = LayerwiseQuantizer(model, hf_config, recipe, windows, length, ShardWriter(new_folder(out)))
    total = len(run.shell.model.layers)
    for number in range(total):
        run.layer(number)
        on_layer(number + 1, total)
    losses = run.finish()
    changes: dict[str, Any] = {"quantization_config": quantization_config(recipe.scheme)}
    if recipe.scheme.head is not None:
        changes["tie_word_embeddings"] = False  # its codes are apart, and the embedding stays
    copy_rest(run.checkpoint.folder, out, changes)
    scheme = recipe.scheme
    return Report(
        model=model, out=str(out), method=recipe.method, bits=scheme.bits, group_size=scheme.group_size,
        symmetric=scheme.symmetric, activation_bits=scheme.activation_bits, smoothquant=recipe.smoothquant,
        head_bits=None if scheme.head is None else scheme.head.bits,
        calibration_tokens=sum(len(batch.ids) for batch in run.calibration),
        held_out_tokens=sum(len(batch.ids) for batch in run.held_out),
        linear_bytes_before=run.linear_bytes[0], linear_bytes_after=run.linear_bytes[1],
        bytes_before=weight_bytes(run.checkpoint.folder), bytes_after=weight_bytes(out),
        loss_before=losses[0], loss_after=losses[1], seconds=round(time.monotonic() - started, 1),
        errors=sorted(run.errors, key=lambda each: -each.error),
    )  # fmt: skip


class LayerwiseQuantizer:
    """What goes along from layer to layer."""

    def __init__(
        self, model: str, hf_config: Any, recipe: Recipe, windows: list[Window], length: int, writer: ShardWriter
    ) -> None:
        self.recipe, self.writer = recipe, writer
        self.device = torch.device(default_device())
        self.checkpoint = Checkpoint(model)
        spec = decoder_spec(hf_config)
        with torch.device("meta"):  # shapes without memory; a layer has some while it is its turn
            ops = LayerOps(ObservedLinear(activation_bits=recipe.scheme.activation_bits))
            self.shell = DecoderForCausalLM(spec, length, ops).eval()
        self.passes = Passes(spec, length, self.device)
        embedding = self._end(EMBEDDING, HEAD)
        kept = [window for n, window in enumerate(windows) if (n + 1) % HELD_OUT_EVERY]
        self.calibration = self.passes.batches(kept, embedding)
        held_out = windows[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
        self.held_out, self.held_out_after = (self.passes.batches(held_out, embedding) for _ in range(2))
        self.errors: list[LayerError] = []
        self.linear_bytes = [0, 0]

    @torch.no_grad()
    def layer(self, number: int) -> None:
        """Quantise a layer, write it, and take all texts behind it."""
        layer, name = self.shell.model.layers[number], f"model.layers.{number}"
        assert isinstance(layer, DecoderLayer)
        layer.to_empty(device=self.device)
        slots = {key: slot for key, slot in self.shell.checkpoint_slots() if key.startswith(f"{name}.")}
        stored = {key: self._load(key, slot) for key, slot in slots.items()}
        self.passes.advance(layer, self.held_out)

        def calibrate() -> None:
            for _ in self.passes.outputs(layer, self.calibration):
                pass

        for rounded in quantize_layer(layer, name, self.recipe, stored, calibrate):
            self._write(rounded)
            del slots[f"{rounded.name}.weight"]
        for key, slot in slots.items():
            self.writer.add(key, slot.to(stored[key]))
        self.passes.advance(layer, self.calibration)
        self.passes.advance(layer, self.held_out_after)
        layer.to("meta")
        release_freed_memory()

    @torch.no_grad()
    def finish(self) -> tuple[float | None, float | None]:
        """Write what is before and behind the layers. Held-out text's losses, before and after, if there is one."""
        norm = self.shell.model.norm.to_empty(device=self.device)
        self._load("model.norm.weight", norm.weight)
        before = self._loss(norm, self.held_out, self._end(HEAD, EMBEDDING).float())
        after = self._loss(norm, self.held_out_after, self._head_after())
        in_codes = [HEAD] if self.recipe.scheme.head is not None else []
        for name in (EMBEDDING, "model.norm.weight", HEAD):
            if name in self.checkpoint.files and name not in in_codes:
                self.writer.add(name, self.checkpoint.read(name))
        self.writer.finish()
        return before, after

    def _head_after(self) -> torch.Tensor:
        """Float32 [vocabulary, hidden], as it is after quantising; its codes are written."""
        head, scheme = self._end(HEAD, EMBEDDING), self.recipe.scheme.head
        if scheme is None:
            return head.float()
        parts = (part.float() for part in head.split(64 * ROWS))  # in float32, it would be in memory several times
        codes = stack([Grid.of(part, scheme, head.dtype).round(part) for part in parts])
        for kind, tensor in FORMATS[scheme.format].write(codes, scheme, head.dtype).items():
            self.writer.add(HEAD.replace("weight", kind), tensor)
        return codes.dequantize()

    def _loss(self, norm: Callable[..., Any], batches: list[Batch], head: torch.Tensor) -> float | None:
        if not batches:
            return None
        found = [each for batch in batches for each in self._losses(norm(batch.states)[0], batch, head)]
        return torch.cat(found).mean().item()

    def _losses(self, hidden: torch.Tensor, batch: Batch, head: torch.Tensor) -> Iterator[torch.Tensor]:
        """Of each token that counts: what the hidden state before it says of it."""
        lengths = [len(window.ids) for window in batch.windows]
        for states, window in zip(hidden.split(lengths), batch.windows, strict=True):
            wanted = torch.tensor(window.ids[window.first :], device=self.device)
            for rows, ids in zip(states[window.first - 1 : -1].split(ROWS), wanted.split(ROWS), strict=True):
                yield F.cross_entropy(rows @ head.T, ids, reduction="none")

    def _end(self, *names: str) -> torch.Tensor:
        """The first of these that there is: a tied checkpoint may have but one of its ends."""
        name = next(name for name in names if name in self.checkpoint.files)
        return self.checkpoint.read(name).to(self.device)

    def _load(self, name: str, slot: torch.Tensor) -> torch.dtype:
        tensor = self.checkpoint.read(name)
        slot.copy_(tensor)
        return tensor.dtype

    def _write(self, rounded: Rounded) -> None:
        tensors = FORMATS[self.recipe.scheme.format].write(rounded.codes, self.recipe.scheme, rounded.stored)
        for kind, tensor in tensors.items():
            self.writer.add(f"{rounded.name}.{kind}", tensor)
        self.errors.append(LayerError(rounded.name, rounded.error))
        self.linear_bytes[0] += rounded.codes.values.numel() * rounded.stored.itemsize
        self.linear_bytes[1] += sum(tensor.nbytes for tensor in tensors.values())
