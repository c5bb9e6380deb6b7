"""Models of many types, computed by transformers' code in our engine: generate()'s tokens, its log-probabilities."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaModel

from folovllm import ModelLoadError
from folovllm.attention.backend import AttentionExtras
from folovllm.models import transformers_model
from folovllm.models.transformers_model import TransformersForCausalLM, transformers_spec
from tests.helpers import some
from tests.m11.models.tiny_types import (
    MAX_MODEL_LEN,
    REFUSED,
    TYPES,
    config_of,
    generate,
    logprobs_of,
    make_model,
    make_prompts,
    run_engine,
)

PROMPTS = make_prompts()
ATTEND = LlamaAttention.forward
IN_MAKE_TEST = 6
# Which of their types shows it -> the part of attention that is left out.
NEEDED = [("gemma2", "logits_soft_cap"), ("gemma3_text", "sliding_window"), ("gpt_oss", "sinks")]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """By type: the model, and a folder with it."""
    made = {}

    def make(model_type):
        if model_type not in made:
            model, folder = make_model(model_type), tmp_path_factory.mktemp(model_type)
            model.save_pretrained(folder)
            made[model_type] = model, folder
        return made[model_type]

    return make


def worst_logprob(model, run):
    return max(
        abs(ours - theirs)
        for tokens, logprobs in zip(run.tokens, run.logprobs, strict=True)
        for prompt, ids, got in zip(PROMPTS, tokens, logprobs, strict=True)
        for ours, theirs in zip(got, logprobs_of(model, prompt, ids), strict=True)
    )


@pytest.mark.parametrize("model_type", some(TYPES, IN_MAKE_TEST))
def test_tokens_and_logprobs_are_generates(model_type, models):
    """Through chunks, hits, preemptions and forks."""
    model, folder = models(model_type)
    run = run_engine(folder, PROMPTS)
    assert run.preemptions > 0
    assert run.hits > 0
    assert run.tokens == [[generate(model, prompt) for prompt in PROMPTS]] * 2
    assert worst_logprob(model, run) < 1e-5


def ask_twice(self, hidden_states, *args, **options):
    return ATTEND(self, ATTEND(self, hidden_states, *args, **options)[0], *args, **options)


@pytest.mark.parametrize("model_type", ["diffllama", "llama"])
def test_a_module_that_asks_twice_has_a_cache_for_each_time(model_type, models, monkeypatch):
    """DiffLlama's layers do, and models that run through their layers again. generate() has no cache for the latter."""
    if model_type == "llama":
        monkeypatch.setattr(LlamaAttention, "forward", ask_twice)
    model, folder = models(model_type)
    monkeypatch.setattr(model.generation_config, "use_cache", False)
    assert run_engine(folder, PROMPTS).tokens == [[generate(model, prompt) for prompt in PROMPTS]] * 2
    assert len(transformers_spec(model.config, MAX_MODEL_LEN).layers) == 2 * model.config.num_hidden_layers


@pytest.mark.parametrize("shared", [[0, 0, 0], [0, 0, 1]])
def test_layers_that_share_a_block_are_refused(shared, monkeypatch):
    init = LlamaModel.__init__

    def share(self, config):
        init(self, config)
        self.layers = torch.nn.ModuleList(self.layers[number] for number in shared)

    monkeypatch.setattr(LlamaModel, "__init__", share)
    why = "of its 3 layers ask for attention: the others have some of their own, or none, or share a module"
    with pytest.raises(ModelLoadError, match=f"{len(set(shared))} {why}"):
        transformers_spec(config_of("llama"), MAX_MODEL_LEN)


@pytest.mark.parametrize(("model_type", "name"), NEEDED)
def test_what_attention_is_asked_for_is_needed(model_type, name, models, monkeypatch):
    """Without it other numbers come out, which the test above would find."""
    monkeypatch.setattr(transformers_model, "_check_layers", lambda *_: None)
    monkeypatch.setattr(transformers_model, "AttentionExtras", lambda **asked: AttentionExtras(**{**asked, name: None}))
    model, folder = models(model_type)
    assert worst_logprob(model, run_engine(folder, PROMPTS)) > 1e-3


@pytest.mark.parametrize("model_type", ["granite", "cohere", "gemma2"])
def test_logits_that_are_more_than_the_heads_are_refused(model_type, models, monkeypatch):
    """These three are known by name; a fourth would be found like this."""
    monkeypatch.setattr(TransformersForCausalLM, "compute_logits", lambda self, hidden: self.head(hidden))
    with pytest.raises(ModelLoadError, match=f"model_type '{model_type}': its logits are more than its head makes"):
        run_engine(models(model_type)[1], PROMPTS)


@pytest.mark.parametrize("model_type", REFUSED)
def test_a_type_with_attention_of_its_own_is_refused_by_name(model_type):
    with pytest.raises(ModelLoadError, match=f"^model_impl 'transformers' cannot compute model_type '{model_type}': "):
        transformers_spec(config_of(model_type), MAX_MODEL_LEN)


def test_a_window_that_a_layer_does_not_tell_its_attention_is_refused():
    """Llama's code knows no window, whatever its configuration says."""
    config = config_of("llama")
    config.sliding_window = 16
    with pytest.raises(ModelLoadError, match="its layer 0 has a window of 16 and does not tell its attention"):
        transformers_spec(config, MAX_MODEL_LEN)
    assert not transformers_spec(config, 16).has_extras  # it never cuts


def test_layers_of_another_kind_are_refused():
    config = config_of("llama")
    config.layer_types = ["full_attention", "chunked_attention", "full_attention"]
    with pytest.raises(ModelLoadError, match="it has layers of chunked_attention; layer_types may name full_"):
        transformers_spec(config, MAX_MODEL_LEN)


def test_a_model_that_sees_later_tokens_is_refused(monkeypatch):
    init = LlamaAttention.__init__

    def both_ways(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self.is_causal = False

    monkeypatch.setattr(LlamaAttention, "__init__", both_ways)
    with pytest.raises(ModelLoadError, match="LlamaAttention sees tokens that come later"):
        transformers_spec(config_of("llama"), MAX_MODEL_LEN)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_angles_that_depend_on_the_batch_set_a_limit(kind):
    config = config_of("phi3" if kind == "longrope" else "llama")
    rope = {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0}
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
        config.original_max_position_embeddings = 64
    config.rope_parameters = rope
    limit = 64 if kind == "longrope" else 512
    with pytest.raises(ValueError, match=f"^max_model_len must be at most {limit} with model_impl='transformers' and "):
        transformers_spec(config, limit + 1)
    assert len(transformers_spec(config, limit).layers) == 3
