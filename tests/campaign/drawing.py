"""Draws cases at random: every seed and number is one case, the same on every machine."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from tests.campaign.case import Asked, Case, ModelSpec
from tests.campaign.models import SPECS, columns_together, has_head
from tests.m12.adapters import VOICES

WORDS = ["a", "e", "the", "ab", "zz"]


def draw_case(seed: int, number: int) -> Case:
    case = _Drawing(random.Random(f"{seed}/{number}")).case()
    # Of engines with one seed all unseeded requests would draw with the same noise, and their draws, taken together,
    # would follow no distribution.
    case.engine["seed"] = random.Random(f"{seed}/{number}/engine").randrange(2**31)
    # Each with numbers of its own: what comes later changes nothing in what is drawn before.
    for choose in (_pooling, _speculation, _ranks, _voices, _tiers):
        choose(case, random.Random(f"{seed}/{number}/{choose.__name__.strip('_')}"))
    return case


def _pooling(case: Case, rng: random.Random) -> None:
    """The same requests, to a model whose answer is a vector. A code of 8 bits that is another one in float32 would
    change all of it."""
    if rng.random() >= 0.1 or (case.model.quantization or "").endswith("a8"):
        return
    case.model, size = replace(case.model, pooling=rng.choice(["LAST", "MEAN"])), case.model.hidden_size
    for asked in case.requests:
        asked.params = {"dimensions": size + 1} if asked.refused else {}
        if not asked.refused and rng.random() < 0.3:
            asked.params["dimensions"] = rng.randint(1, size)
        for name, value in (("use_activation", False), ("skip_reading_prefix_cache", True)):
            if rng.random() < 0.2:
                asked.params[name] = value


def _speculation(case: Case, rng: random.Random) -> None:
    if case.model.pooling:
        return
    if rng.random() < 0.4:  # one token that occurred before is enough for a guess: there are many, right and wrong
        case.engine["speculative_config"] = {
            "method": "ngram", "num_speculative_tokens": rng.choice([1, 2, 4, 8]), "prompt_lookup_min": 1
        }  # fmt: skip
    if has_head(case.model) and rng.random() < 0.2:
        case.engine["speculative_config"] = {"method": "mtp", "num_speculative_tokens": rng.choice([1, 2, 4, 8])}


def _ranks(case: Case, rng: random.Random) -> None:
    ranks = [ranks for ranks in (2, 3) if _can_be_cut(case.model, ranks)]
    has_head = case.engine.get("speculative_config", {}).get("method") == "mtp"
    if not has_head and rng.random() < 0.25 and ranks:
        case.engine["tensor_parallel_size"] = rng.choice(ranks)


def _voices(case: Case, rng: random.Random) -> None:
    """Adapters, on weights into which they can be merged exactly. Rounded to 8 bits, their large keys would be others
    in float64 where a weight differs by a millionth."""
    rounds = case.model.int8_cache or (case.model.quantization or "").endswith("a8")
    if rng.random() >= 0.25 or case.model.transformers or rounds:
        return
    case.engine.update(enable_lora=True, max_loras=rng.choice([1, 2, 4]))
    for asked in case.requests:
        asked.voice = rng.choice([None, *VOICES])


def _tiers(case: Case, rng: random.Random) -> None:
    if not case.engine["enable_prefix_caching"]:
        return
    if rng.random() < 0.3:
        case.resets = sorted(rng.randint(1, 40) for _ in range(rng.randint(1, 3)))
    if rng.random() < 0.4:
        return
    case.host_blocks = rng.choice([3, 8, 20, 60, 200])
    engine = case.engine
    if rng.random() < 0.8:  # as few as one sequence needs: the pool has to evict
        least = case.model.tables * -(-engine["max_model_len"] // engine["block_size"])
        beams = [_most_blocks(a, a.params["best_of"], case) for a in case.requests if "use_beam_search" in a.params]
        engine["num_kv_blocks"] = min(engine["num_kv_blocks"], max([least, *beams]))
    for asked in rng.sample(case.requests, len(case.requests) // 2):  # and they come again
        again = replace(asked, name=f"{asked.name}again", params=dict(asked.params), at=asked.at + rng.randint(5, 40))
        case.requests.append(again)
    if rng.random() < 0.6 and "tensor_parallel_size" not in case.engine:
        case.folder_blocks = rng.choice([6, 40, 1000, 1000])
        case.restarts = sorted(rng.randint(1, 40) for _ in range(rng.choice([0, 1, 1, 2])))


def _can_be_cut(spec: ModelSpec, ranks: int) -> bool:
    if spec.transformers or spec.num_heads % ranks or (spec.num_kv_heads % ranks and ranks % spec.num_kv_heads):
        return False
    columns = spec.num_heads * spec.head_dim  # of o_proj
    return columns // ranks % columns_together(spec.quantization, columns) == 0


def _most_blocks(asked: Asked, width: int, case: Case) -> int:
    """That a request's beams may take."""
    longest = min(len(asked.prompt) + asked.params.get("max_tokens", 0), case.engine["max_model_len"])
    return width * -(-longest // case.engine["block_size"]) * case.model.tables


class _Drawing:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def often(self, share: float) -> bool:
        return self.rng.random() < share

    def case(self) -> Case:
        rng = self.rng
        spec = rng.choice(SPECS)
        if not spec.transformers and self.often(0.3):
            spec = replace(spec, quantization=rng.choice(["w4a16", "w4a16", "w8a8", "w4a8"]))
        spec = replace(spec, int8_cache=self.often(0.1))
        case = Case(spec)
        self._engine(case)
        self.spec, self.longest, self.most = case.model, case.longest, case.engine["max_model_len"]
        prefixes = [self._tokens(self.longest) for _ in range(2)]
        spread = rng.choice([0, 3, 10, 30])
        for number in range(rng.randint(4, 16)):
            asked = Asked(f"r{number}", self._prompt(prefixes), at=rng.randint(0, spread))
            if self.often(0.05):
                self._refused(asked)
            else:
                self._params(asked, case)
            if case.engine.get("policy") == "priority":
                asked.priority = rng.randint(-2, 2)
            if self.often(0.12):
                asked.abort_at = asked.at + rng.randint(0, 25)
            if case.engine.get("enable_prefix_caching") and self.often(0.2):
                asked.salt = rng.choice(["a", "b"])
            case.requests.append(asked)
        return case

    def _engine(self, case: Case) -> None:
        rng, engine = self.rng, case.engine
        engine["max_model_len"] = longest = rng.choice([24, 40, 64])
        plain = not case.model.int8_cache and not case.model.transformers and case.model.window is None
        if self.often(0.08) and plain:  # it reads a sequence from a single block, and knows no windows
            engine.update(attention_backend="dense", block_size=longest, num_kv_blocks=rng.randint(1, 5))
        else:
            engine["block_size"] = block_size = rng.choice([1, 2, 3, 4, 4, 8, 16])
            tables = case.model.tables
            least, few = tables * -(-longest // block_size), tables * -(-8 // block_size)
            fewer = max(few, rng.randint(few, least) if case.model.window else least // 2)
            engine["num_kv_blocks"] = rng.choice([fewer, least, least, least + 3, 2 * least, 8 * least])
            if self.often(0.2):
                engine["attention_backend"] = "paged_torch"
        case.swap_blocks = rng.choice([0, 0, 3, 20, 200])
        mode = rng.choice(["auto", "recompute", "swap"])
        engine["preemption_mode"] = mode if mode != "swap" or case.swap_blocks else "auto"
        engine["max_num_seqs"] = rng.choice([1, 3, 6, 8, 16, 32])
        engine["enable_prefix_caching"] = self.often(0.6)
        engine["async_scheduling"] = self.often(0.4)
        if self.often(0.3):
            engine["policy"] = "priority"
        if self.often(0.7):
            engine["enable_chunked_prefill"] = True
            engine["max_num_batched_tokens"] = rng.choice([2, 5, 8, 16, 32, 48, 128])
            if self.often(0.4):
                engine["long_prefill_token_threshold"] = rng.choice([1, 3, 8])
            if self.often(0.4):
                engine["max_num_partial_prefills"] = rng.randint(2, 4)

    def _tokens(self, count: int) -> list[int]:
        """Of few kinds now and then, so that texts begin alike by themselves. In text mode the last one is a letter:
        a character that the prompt begins and the answer ends would be counted to neither."""
        rng = self.rng
        most = self.spec.vocab_size if self.often(0.8) else 3
        tokens = [rng.randrange(most) for _ in range(count)]
        if self.spec.text and tokens:
            tokens[-1] = rng.randrange(97, 123)
        return tokens

    def _prompt(self, prefixes: list[list[int]]) -> list[int]:
        own = self._tokens(self.rng.randint(1, 12))
        shared = self.rng.randint(0, self.longest) if self.often(0.6) else 0
        return [*self.rng.choice(prefixes)[:shared], *own][-(self.longest - 1) :]

    def _refused(self, asked: Asked) -> None:
        """Something that cannot be."""
        asked.refused = True
        kind = self.rng.randrange(6)
        if kind == 0:
            asked.prompt = []
        elif kind == 1:
            asked.prompt = self._tokens(self.longest if self.spec.window is None else self.most)
        elif kind == 2:
            asked.prompt = [*asked.prompt, self.spec.vocab_size]
        elif kind == 3:
            asked.params = {"extra_args": {"nobody_knows_this": 1}}
        elif kind == 4:
            asked.params = {"temperature": -1.0}
        else:
            asked.params = {"stop_token_ids": [self.spec.vocab_size]}

    def _params(self, asked: Asked, case: Case) -> None:
        rng, params = self.rng, asked.params
        params["max_tokens"] = rng.choice([1, 3, 9, 16, 30, 30])
        kind = rng.choice(["plain", "greedy", "greedy", "seeded", "seeded", "seeded", "unseeded", "beams"])
        if kind == "beams" and not self._beams(asked, case):
            kind = "greedy"
        if kind in ("plain", "greedy"):
            params["temperature"] = 0.0
        if kind in ("seeded", "unseeded"):
            self._sampling(params, seeded=kind == "seeded")
        if kind == "plain" or (kind == "beams" and self.often(0.5)):
            if self.often(0.3):
                params["stop_token_ids"] = self._some(2)
        else:
            self._features(params, beams=kind == "beams")
        if (kind != "beams" and self.often(0.25)) or (kind == "beams" and self._is_unedited(params)):
            params["logprobs"] = rng.randint(0, 5)
        if kind != "beams" and self.often(0.15):
            params["logprobs_mode"] = "processed"
        if self.often(0.12):
            params["prompt_logprobs"] = rng.randint(0, 3)

    def _beams(self, asked: Asked, case: Case) -> bool:
        """False where the engine has no room for any."""
        width = self.rng.choice([1, 2, 3, 4])
        if width > case.max_num_seqs or _most_blocks(asked, width, case) > case.engine["num_kv_blocks"]:
            return False
        asked.params.update(use_beam_search=True, best_of=width, n=self.rng.randint(1, width), temperature=0.0)
        if self.often(0.4):
            asked.params["length_penalty"] = self.rng.choice([0.0, 0.5, 2.0, -1.0])
        if self.often(0.4):
            asked.params["early_stopping"] = self.rng.choice([True, "never"])
        return True

    def _sampling(self, params: dict[str, Any], *, seeded: bool) -> None:
        rng = self.rng
        params["temperature"] = rng.choice([0.3, 0.7, 1.0, 1.0, 2.0])
        if seeded:
            params["seed"] = rng.randrange(1000)
        if self.often(0.3):
            params["n"] = rng.randint(2, 4)
            if self.often(0.3):
                params["best_of"] = params["n"] + rng.randint(1, 2)
        for name, values in (("top_k", [1, 3, 20, 500]), ("top_p", [0.1, 0.6, 0.95]), ("min_p", [0.02, 0.3])):
            if self.often(0.25):
                params[name] = rng.choice(values)

    def _features(self, params: dict[str, Any], *, beams: bool) -> None:
        rng = self.rng
        if self.often(0.15):
            params["repetition_penalty"] = rng.choice([0.7, 1.2, 2.0])
        if self.often(0.12):
            params["presence_penalty"] = rng.choice([-1.0, 0.5, 2.0])
        if self.often(0.12):
            params["frequency_penalty"] = rng.choice([-0.5, 0.3, 1.5])
        if self.often(0.15):
            params["logit_bias"] = {token: rng.choice([-100.0, -2.0, 1.5, 8.0]) for token in self._some(3)}
        if self.often(0.12):
            params["allowed_token_ids"] = sorted(set(self._some(12)))
        if self.often(0.2):
            params["min_tokens"] = rng.randint(1, params["max_tokens"])
        if self.often(0.3):
            params["stop_token_ids"] = self._some(4)
        if self.often(0.15):
            params["ignore_eos"] = True
        if self.often(0.12):
            params["extra_args"] = {"campaign_tilt": rng.randint(2, 7)}
        elif not beams and self.often(0.04):
            params["extra_args"] = {"campaign_raise": rng.randint(0, 6)}
        if self.spec.text:
            self._text_features(params, beams=beams)

    def _text_features(self, params: dict[str, Any], *, beams: bool) -> None:
        rng = self.rng
        if self.often(0.4):  # else random bytes are seldom a character
            params["allowed_token_ids"] = [*range(97, 123), 32, 256]
        if not beams and self.often(0.5):
            params["stop"] = rng.sample([*WORDS, "q", "x y"], rng.randint(1, 3))
            params["include_stop_str_in_output"] = self.often(0.3)
        if self.often(0.3):
            params["bad_words"] = rng.sample(WORDS, rng.randint(1, 2))
        if self.often(0.2):
            params["skip_special_tokens"] = False

    def _some(self, most: int) -> list[int]:
        return [self.rng.randrange(self.spec.vocab_size) for _ in range(self.rng.randint(1, most))]

    def _is_unedited(self, params: dict[str, Any]) -> bool:
        edits = {"allowed_token_ids", "bad_words", "extra_args", "logit_bias", "min_tokens"}
        return not any(name in edits or name.endswith("_penalty") for name in params if name != "length_penalty")


assert ModelSpec() in SPECS  # the simplest: shrinking ends there
