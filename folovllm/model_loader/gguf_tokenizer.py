"""The tokenizer that a GGUF file describes: its vocabulary and merges, put together by the tokenizers library.

    tokenizer.ggml.model    gpt2     bytes, merged by rank. tokenizer.ggml.pre says where a text is cut before that
                            llama    SentencePiece: the pieces with the best scores are merged first

transformers' reader cuts by its own rules where it does not know tokenizer.ggml.pre, and ids would be others than those
that the model was trained on. Here an unknown one is refused.

vLLM: none
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from folovllm.model_loader.gguf_file import CONTROL, USER_DEFINED, GGUFFile, open_gguf

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_CASES = "|".join(rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]{many}[{_LOWER}]{some}" for many, some in ("*+", "+*"))
LLAMA3 = rf"{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
QWEN2 = rf"{_WORDS}|\p{{N}}|{_REST}"
CUTS: dict[str, str | None] = {
    "gpt-2": None, "smollm": r"\p{N}", "qwen2": QWEN2, "deepseek-r1-qwen": QWEN2,
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), LLAMA3),
    "tekken": rf"{_CASES}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}  # fmt: skip
"""By tokenizer.ggml.pre. The first two are cut as GPT-2's texts are, too."""
WHOLE = (LLAMA3, CUTS["tekken"])
"""A piece that is a token is taken as it is; and a text begins with BOS, if the file does not say."""


def gguf_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """Raises ModelLoadError: it has none, or one that is not known here; by the field."""
    from tokenizers import AddedToken, processors
    from transformers import PreTrainedTokenizerFast

    file = open_gguf(path)
    fields, tokens = file.fields, file.values("tokenizer.ggml.tokens")
    kind, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    way_out = "name the folder of the original model's with tokenizer="
    if kind not in ("gpt2", "llama") or not tokens:
        raise file.damaged("tokenizer.ggml.model", "be gpt2 or llama, and have tokens", kind, way_out)
    if kind == "gpt2" and pre not in CUTS:
        raise file.damaged("tokenizer.ggml.pre", f"be one of {', '.join(CUTS)}", pre, way_out)
    vocab, cut = {token: number for number, token in enumerate(tokens)}, CUTS.get(str(pre))
    named: dict[str, str] = {}
    for name, usual in (("bos", 1), ("eos", 2), ("unknown", 0), ("padding", None)):
        number = fields.get(f"tokenizer.ggml.{name}_token_id", usual if kind == "llama" else None)
        if number is not None:
            if number not in range(len(tokens)):
                raise file.damaged(f"tokenizer.ggml.{name}_token_id", f"be below {len(tokens)}", number)
            named[f"{name[:3]}_token"] = tokens[number]
    backend = _bytes(file, vocab, cut) if kind == "gpt2" else _pieces(file, vocab, named["unk_token"])
    kinds = file.values("tokenizer.ggml.token_type")
    backend.add_tokens([
        AddedToken(token, special=of == CONTROL, normalized=False)
        for token, of in zip(tokens, kinds, strict=False) if of in (CONTROL, USER_DEFINED)
    ])  # fmt: skip
    begins = fields.get("tokenizer.ggml.add_bos_token", kind == "llama" or cut in WHOLE)
    before = [named["bos_token"]] if begins and "bos_token" in named else []
    behind = [named["eos_token"]] if fields.get("tokenizer.ggml.add_eos_token") and "eos_token" in named else []
    backend.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *behind], special_tokens=[(each, vocab[each]) for each in (*before, *behind)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, name_or_path=path, padding_side="left", clean_up_tokenization_spaces=False,
        chat_template=fields.get("tokenizer.chat_template"), **named,
    )  # fmt: skip


def _bytes(file: GGUFFile, vocab: dict[str, int], cut: str | None) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    merges = [tuple(merge.split(" ", 1)) for merge in file.values("tokenizer.ggml.merges")]
    odd = next((pair for pair in merges if len(pair) != 2 or not vocab.keys() >= {*pair, "".join(pair)}), None)
    if odd or not merges:
        raise file.damaged("tokenizer.ggml.merges", "be pairs of tokens that make another", odd or merges)
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=cut in WHOLE))
    splits: list[Any] = [] if cut is None else [pre_tokenizers.Split(Regex(cut), "isolated")]
    as_gpt2 = cut in (CUTS["gpt-2"], CUTS["smollm"])
    splits.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=as_gpt2))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Sequence(splits), decoders.ByteLevel()
    return backend


def _pieces(file: GGUFFile, vocab: dict[str, int], unk_token: str) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = file.values("tokenizer.ggml.scores")
    if len(scores) < len(vocab):
        raise file.damaged("tokenizer.ggml.scores", f"have a number for each of {len(vocab)} tokens", len(scores))
    halves = ((piece[:at], piece[at:]) for piece in vocab for at in range(1, len(piece)))
    merges = [each for each in halves if each[0] in vocab and each[1] in vocab]
    merges.sort(key=lambda each: -scores[vocab[each[0] + each[1]]])
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token=unk_token, fuse_unk=True, byte_fallback=True))
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    spaces: list[Any] = [normalizers.Replace(" ", "▁")]
    if file.fields.get("tokenizer.ggml.add_space_prefix", True):
        spaces.insert(0, normalizers.Prepend("▁"))
        steps.append(decoders.Strip(" ", 1, 0))
    backend.normalizer, backend.decoder = normalizers.Sequence(spaces), decoders.Sequence(steps)
    return backend
