"""llama.cpp by its C functions, as llama-cpp-python exposes them: all sequences of a step in one batch.

llama-cpp-python's own Llama class takes one prompt at a time. llama.cpp's server puts the sequences together, and so
does this loop: prompts until a batch is full, then a token of every sequence that has not ended.

    step 1   | prompt 0 | prompt 1 | prompt 2 ...|     at most n_batch tokens
    step 2   | 0 | 1 | 2 |                             one token each

vLLM: none
"""

from __future__ import annotations

import ctypes
import time
from importlib import import_module
from typing import Any

NEEDS = ("numpy", "llama_cpp")
BATCH = 2048  # tokens of a step, llama.cpp's own default
KV_UNIT = 256  # llama.cpp rounds a sequence's share of the cache up to this many tokens
GGML_TYPES = {"float32": 0, "float16": 1, "bfloat16": 30}
FILE_TYPES = {"0": "float32", "1": "float16", "32": "bfloat16", "2": "Q4_0", "7": "Q8_0"}


class Engine:
    """A model with a KV cache for `max_num_seqs` sequences of `max_model_len` tokens, kept in `dtype`."""

    def __init__(
        self, path: str, dtype: str, shape: list[int], max_model_len: int, max_num_seqs: int, threads: int
    ) -> None:
        """`shape`: layers, hidden size and vocabulary that the file must have. Raises ValueError: it has others."""
        self.np: Any = import_module("numpy")
        self.lib: Any = import_module("llama_cpp")
        self.version: str = self.lib.__version__
        lib, self.seqs = self.lib, max_num_seqs
        lib.llama_backend_init()
        self.model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"llama.cpp could not load the GGUF file {path}")
        self.vocab_size: int = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))
        found = [lib.llama_model_n_layer(self.model), lib.llama_model_n_embd(self.model), self.vocab_size]
        if found != shape:
            raise ValueError(f"gguf must have the model's layers, hidden size and vocabulary, {shape}, got {found}")
        text = ctypes.create_string_buffer(64)
        lib.llama_model_meta_val_str(self.model, b"general.file_type", text, len(text))
        kind = text.value.decode()
        self.dtype = FILE_TYPES.get(kind, f"GGUF file type {kind}")
        options = lib.llama_context_default_params()
        options.n_ctx = max_num_seqs * -(-max_model_len // KV_UNIT) * KV_UNIT
        options.n_seq_max = max_num_seqs
        options.n_batch = BATCH
        options.n_threads = options.n_threads_batch = threads
        options.type_k = options.type_v = GGML_TYPES[dtype]
        self.context = lib.llama_init_from_model(self.model, options)
        if not self.context:
            raise RuntimeError("llama.cpp could not make a context of this size")
        self.batch = lib.llama_batch_init(BATCH, 0, 1)

    def generate(self, prompts: list[list[int]], num_tokens: list[int]) -> dict[str, list[Any]]:
        tokens: list[list[int]] = [[] for _ in prompts]
        steps: list[Any] = []
        for first in range(0, len(prompts), self.seqs):  # as many at a time as the cache was made for
            self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)
            group = range(first, min(first + self.seqs, len(prompts)))
            # (request, token, position) of everything that is still to be read
            waiting = [(r, token, place) for r in group for place, token in enumerate(prompts[r])]
            while waiting:
                start = time.perf_counter()
                chunk, waiting = waiting[:BATCH], waiting[BATCH:]
                prefill = any(place + 1 < len(prompts[r]) for r, _, place in chunk) or not tokens[chunk[0][0]]
                done = self._step(chunk, [place + 1 >= len(prompts[r]) for r, _, place in chunk], first)
                for r, token in done:
                    tokens[r].append(token)
                waiting += [
                    (r, token, len(prompts[r]) + len(tokens[r]) - 1)
                    for r, token in done
                    if len(tokens[r]) < num_tokens[r]
                ]
                steps.append((time.perf_counter() - start, len(done), prefill))
        return {"steps": steps, "tokens": tokens}

    def _step(self, chunk: list[tuple[int, int, int]], wants: list[bool], first: int) -> list[tuple[int, int]]:
        """One llama_decode(); (request, likeliest next token) of each entry that wants one."""
        batch = self.batch
        batch.n_tokens = len(chunk)
        for at, ((request, token, place), want) in enumerate(zip(chunk, wants)):  # noqa: B905  any Python 3
            batch.token[at], batch.pos[at], batch.n_seq_id[at] = token, place, 1
            batch.seq_id[at][0], batch.logits[at] = request - first, want
        if (failed := self.lib.llama_decode(self.context, batch)) != 0:
            raise RuntimeError(f"llama_decode() gave {failed}")
        done = []
        for at, (entry, want) in enumerate(zip(chunk, wants)):  # noqa: B905
            if want:
                logits = self.lib.llama_get_logits_ith(self.context, at)
                row = self.np.ctypeslib.as_array(logits, shape=(self.vocab_size,))
                done.append((entry[0], int(row.argmax())))
        return done
