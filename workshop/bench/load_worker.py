"""The process that loads one model once, and prints what it took as JSON.

    python -m workshop.bench.load_worker ENGINE FOLDER DTYPE THREADS

Imports come first and are not counted: they cost the same whatever is loaded.

vLLM: none
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.utils import logging

from folovllm import LLM, SamplingParams

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8]


def empty_model(config: Any, dtype: torch.dtype) -> Any:
    """Hugging Face's model of this configuration on the meta device: every shape, no memory."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def main(engine: str, folder: str, dtype: str, threads: str) -> dict[str, Any]:
    torch.set_num_threads(int(threads))
    logging.disable_progress_bar()
    config = AutoConfig.from_pretrained(folder)
    checkpoint_dtype = str(config.dtype).removeprefix("torch.")
    # This imports the modelling code. It also writes the dtype into the configuration.
    parameters = list(empty_model(config, getattr(torch, dtype)).parameters())
    before = resident_bytes()
    start = time.perf_counter()
    if engine == "folovllm":
        llm_engine = LLM(folder, dtype=dtype, skip_tokenizer_init=True).engine
        loaded = time.perf_counter()
        llm_engine.add_request("first", PROMPT, SamplingParams(temperature=0, max_tokens=1, detokenize=False))
        while llm_engine.has_unfinished_requests():
            llm_engine.step()
    else:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        loaded = time.perf_counter()
        greedy = GenerationConfig(do_sample=False, max_new_tokens=1, pad_token_id=0)
        ids = torch.tensor([PROMPT])
        model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=greedy)
    done = time.perf_counter()
    return {
        "load_s": loaded - start,
        "first_token_s": done - start,
        "peak_bytes": peak_bytes() - before,
        "weight_bytes": sum(parameter.nbytes for parameter in parameters),
        "checkpoint_dtype": checkpoint_dtype,
    }


def resident_bytes() -> int:
    """What the process holds now. Without /proc its largest so far, which is the same after imports."""
    status = Path("/proc/self/status")
    return _status_field(status, "VmRSS") if status.is_file() else peak_bytes()


def peak_bytes() -> int:
    status = Path("/proc/self/status")
    if status.is_file():
        return _status_field(status, "VmHWM")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _status_field(status: Path, name: str) -> int:
    line = next(line for line in status.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
