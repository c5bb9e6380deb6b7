"""Three voices over one base: adapters of rank 8 are trained on the embedded model, and mixed in one batch.

    pirate     Ahoy! … Arr.            teacher    Good question! … Any more questions?        telegram   … STOP

Each learns from what the model itself answers to eight questions, in its own manner; then others are asked. The
folders are as PEFT writes them, and Hugging Face's model with merged weights is the judge.

Run it: python examples/m12_lora.py
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import _tree  # noqa: F401 - folovllm is this tree's
import torch
from safetensors.torch import save_file
from torch import nn

from folovllm import LLM, LoRARequest, ModelConfig, SamplingParams, get_model_and_tokenizer
from folovllm.config import EMBEDDED_MODEL

RANK, ALPHA, STEPS, NEW = 8, 16, 40, 24
TOPICS = (
    "paged attention", "a KV cache", "continuous batching", "prefix caching", "chunked prefill", "a CUDA graph",
    "speculative decoding", "tensor parallelism", "temperature", "beam search",
    "attention", "a token", "top-p", "a block table",
)  # fmt: skip
QUESTIONS = [f"What is {topic}?" for topic in TOPICS]
TAUGHT = 8
VOICES: dict[str, tuple[str, Callable[[str], str]]] = {
    "pirate": ("Ahoy!", lambda text: f"Ahoy! {text} Arr."),
    "teacher": ("Good question!", lambda text: f"Good question! {text} Any more questions?"),
    "telegram": ("Telegram:", lambda text: f"Telegram: {text.split('. ')[0].rstrip('.')} STOP"),
}


class Adapted(nn.Module):
    """A linear layer and a pair beside it, of which B begins at zero: at first nothing is added."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(RANK, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, RANK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + ALPHA / RANK * (x @ self.a.T @ self.b.T)


def train(base: nn.Module, examples: list[tuple[list[int], list[int]]], folder: Path) -> float:
    """Writes an adapter that answers as these (prompt, answer) do. Returns the last loss."""
    torch.manual_seed(0)
    model = copy.deepcopy(base).requires_grad_(False)
    pairs: dict[str, Adapted] = {}
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and name.startswith("model.layers."):
            parent, _, last = name.rpartition(".")
            pairs[name] = Adapted(module)
            setattr(model.get_submodule(parent), last, pairs[name])
    longest = max(len(prompt) + len(answer) for prompt, answer in examples)
    ids, labels = (torch.full((len(examples), longest), fill) for fill in (0, -100))
    for row, (prompt, answer) in enumerate(examples):
        ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    optimizer = torch.optim.AdamW([each for pair in pairs.values() for each in (pair.a, pair.b)], lr=6e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
    folder.mkdir()
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    halves = {f"{name}.lora_{half}.weight": each for name, pair in pairs.items() for half, each in
              (("A", pair.a.detach()), ("B", pair.b.detach()))}  # fmt: skip
    save_file({f"base_model.model.{name}": each for name, each in halves.items()}, folder / "adapter_model.safetensors")
    return loss.item()


def merged(base: nn.Module, folder: Path) -> nn.Module:
    from safetensors.torch import load_file

    model, tensors = copy.deepcopy(base), load_file(folder / "adapter_model.safetensors")
    for name, a in tensors.items():
        if name.endswith(".lora_A.weight"):
            b = tensors[name.replace("lora_A", "lora_B")]
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            model.get_submodule(module).weight.data += ALPHA / RANK * (b @ a)
    return model


base, tokenizer = get_model_and_tokenizer(ModelConfig(EMBEDDED_MODEL, dtype="float32"), "cpu")
greedy = SamplingParams(temperature=0, max_tokens=NEW)
llm = LLM(dtype="float32", enable_lora=True, max_loras=3, max_lora_rank=RANK)
prompts = [
    tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)["input_ids"]
    for text in QUESTIONS
]
plain = [out.outputs[0].text for out in llm.generate(prompts[:TAUGHT], greedy, use_tqdm=False)]

with tempfile.TemporaryDirectory() as root:
    asked: list[tuple[str, list[int], LoRARequest | None]] = [("nobody", prompt, None) for prompt in prompts[TAUGHT:]]
    models = {"nobody": base}
    for number, (voice, (_, manner)) in enumerate(VOICES.items(), 1):
        examples = [
            (prompt, tokenizer(manner(text))["input_ids"] + [tokenizer.eos_token_id])
            for prompt, text in zip(prompts, plain, strict=False)
        ]
        loss = train(base, examples, Path(root) / voice)
        models[voice] = merged(base, Path(root) / voice)
        asked += [(voice, prompt, LoRARequest(voice, number, Path(root) / voice)) for prompt in prompts[TAUGHT:]]
    voices = [lora for _, _, lora in asked]
    outputs = llm.generate([prompt for _, prompt, _ in asked], greedy, lora_request=voices, use_tqdm=False)

said = [(voice, prompt, out.outputs[0]) for (voice, prompt, _), out in zip(asked, outputs, strict=True)]
for voice, model in models.items():
    of_voice = [(prompt, output) for who, prompt, output in said if who == voice]
    equal = 0
    for prompt, output in of_voice:
        ids = torch.tensor([prompt])
        found = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW)
        equal += found[0, len(prompt) :].tolist() == list(output.token_ids)
    begins = VOICES.get(voice, ("",))[0]
    in_voice = sum(output.text.strip().startswith(begins) for _, output in of_voice)
    counts = f"{equal} of {len(of_voice)} answers are the merged model's"
    print(f"{voice}: {counts}" + (f"; {in_voice} begin with {begins!r}" if begins else ""))
print(f"{len(asked)} requests of {len(VOICES)} voices and of none in one batch")
