"""What others read in folders of `folovllm quantize`, in their own processes.

    FOLOVLLM_VLLM_PYTHON=… python -m workshop.quantized_elsewhere FOLDER …

    compressed-tensors, through transformers   takes the codes for the weights that we take them for, bit for bit
    vLLM's CPU build                           has our greedy tokens: in float32 for 8 bits on both sides; its product
                                               with 4-bit weights has no float32, so both sides compute in bfloat16

That Python needs vllm, transformers and compressed-tensors.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

PROMPTS = [[5, 99, 17, 3, 100, 41], [7, 7, 1], list(range(20, 60))]
NUM_TOKENS = 32

DECOMPRESS = """
import sys, torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from transformers.utils.quantization_config import CompressedTensorsConfig
how = CompressedTensorsConfig(dequantize=True)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32, quantization_config=how)
weights = {name: each for name, each in model.state_dict().items() if name.endswith(("_proj.weight", "head.weight"))}
save_file(weights, sys.argv[2])
"""

GENERATE = """
import json, pathlib, sys
from vllm import LLM, SamplingParams
folder, out, dtype, prompts, count = sys.argv[1:]
llm = LLM(folder, dtype=dtype, max_model_len=256, enforce_eager=True, skip_tokenizer_init=True)
params = SamplingParams(temperature=0, max_tokens=int(count), ignore_eos=True, detokenize=False)
outputs = llm.generate([{"prompt_token_ids": ids} for ids in json.loads(prompts)], params)
pathlib.Path(out).write_text(json.dumps([list(each.outputs[0].token_ids) for each in outputs]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", metavar="FOLDER", type=Path, nargs="+")
    args = parser.parse_args()
    python = os.environ.get("FOLOVLLM_VLLM_PYTHON")
    if python is None:
        parser.error("FOLOVLLM_VLLM_PYTHON must name a Python that has vllm and compressed-tensors")
    wrong = 0
    for folder in args.folders:
        with TemporaryDirectory() as place:
            equal, number = weights_that_are_equal(python, folder, Path(place) / "weights.safetensors")
            same, dtype = tokens_that_are_the_same(python, folder, Path(place) / "tokens.json")
        print(f"{folder}: {equal} of {number} weights are equal, {same} of {len(PROMPTS)} answers the same in {dtype}")
        wrong += equal < number or (dtype == "float32" and same < len(PROMPTS))
    sys.exit(wrong > 0)


def weights_that_are_equal(python: str, folder: Path, out: Path) -> tuple[int, int]:
    """(how many of the linear layers' weights are, of how many)"""
    import torch
    from safetensors.torch import load_file

    from folovllm.layers.quantization.formats import FORMATS
    from folovllm.model_loader.hf_config import read_settings
    from folovllm.model_loader.quant_scheme import read_scheme
    from folovllm.quantize.folder import Checkpoint

    run(python, DECOMPRESS, folder, out)
    checkpoint, expected = Checkpoint(str(folder)), load_file(out)
    scheme = read_scheme((read_settings(str(folder), "config.json") or {})["quantization_config"])
    equal = 0
    layers = [name.removesuffix(".weight") for name in expected]
    schemes = {layer: found for layer in layers if (found := scheme.of_layer(layer)) is not None}
    for layer, own in schemes.items():
        weight, how = expected[f"{layer}.weight"], FORMATS[own.format]
        kinds = how.tensors(len(weight), weight.shape[1], own)
        codes = how.read({kind: checkpoint.read(f"{layer}.{kind}") for kind in kinds}, own, layer)
        equal += torch.equal(codes.dequantize(), weight)
    return equal, len(schemes)


def tokens_that_are_the_same(python: str, folder: Path, out: Path) -> tuple[int, str]:
    """(answers that are ours, word for word; the dtype in which both are computed)"""
    from folovllm import LLM, SamplingParams

    dtype = "float32" if "int-quantized" in (folder / "config.json").read_text("utf-8") else "bfloat16"
    run(python, GENERATE, folder, out, dtype, json.dumps(PROMPTS), NUM_TOKENS)
    llm = LLM(str(folder), dtype=dtype, device="cpu", skip_tokenizer_init=True)
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], params, use_tqdm=False)
    ours = [list(each.outputs[0].token_ids) for each in outputs]
    return sum(a == b for a, b in zip(ours, json.loads(out.read_text("utf-8")), strict=True)), dtype


def run(python: str, program: str, *arguments: object) -> None:
    """In a process of that Python, which does not see this project."""
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, env=settings | {"VLLM_CPU_KVCACHE_SPACE": "1"}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-4000:])


if __name__ == "__main__":
    main()
