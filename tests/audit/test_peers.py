"""Models of transformers, built small and at random: what is wrong with some of them is found, and no more."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from lavagna.audit import Report, Status, audit

pytestmark = pytest.mark.peers

TOKENS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
#: name -> (configuration, model, options)
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2},
    ),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 140}),
    "gpt_neo": (
        "GPTNeoConfig",
        "GPTNeoForCausalLM",
        {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "attention_types": [[["global"], 1]]},
    ),
    "mamba": ("MambaConfig", "MambaForCausalLM", {"hidden_size": 16, "state_size": 4}),
    "mamba2": (
        "Mamba2Config",
        "Mamba2ForCausalLM",
        {"hidden_size": 16, "state_size": 8, "num_heads": 4, "head_dim": 8, "n_groups": 1, "chunk_size": 32},
    ),
    "recurrent_gemma": (
        "RecurrentGemmaConfig",
        "RecurrentGemmaForCausalLM",
        {"hidden_size": 16, "lru_width": 16, "intermediate_size": 24, "num_attention_heads": 2, "head_dim": 8},
    ),
    "rwkv": ("RwkvConfig", "RwkvForCausalLM", {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}),
}


def make(name: str) -> Any:
    import transformers

    config, model, options = MODELS[name]
    layers = {"num_hidden_layers": 3 if name == "recurrent_gemma" else 1}
    torch.manual_seed(0)
    made = getattr(transformers, config)(**{"vocab_size": 29, **TOKENS, **layers, **options})
    return getattr(transformers, model)(made)


@cache
def audited(name: str) -> Report:
    return audit(make(name), max_tokens=140)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_attention_is_sound(name: str) -> None:
    report = audited(name)
    assert report.passed, str(report)
    assert report["heads"].status is Status.PASS
    assert report["scale"].status is Status.PASS
    assert report["state-after-padding"].status is Status.PASS


def test_mamba_starts_anew_when_it_goes_on_with_several_tokens() -> None:
    report = audited("mamba")
    assert "continuing" in {finding.trap for finding in report.failures}
    assert report["stepping"].status is Status.PASS
    example = report["continuing"].example
    assert example is not None
    assert (example.tokens, example.batch) == (3, 1)


def test_mamba2_decodes_wrongly_behind_right_padding() -> None:
    report = audited("mamba2")
    assert [finding.trap for finding in report.failures] == ["state-after-padding"]
    example = report["state-after-padding"].example
    assert example is not None
    assert example.tokens == 2
    assert "padded on the right" in example.detail


def test_recurrent_gemma_keeps_state_on_the_module() -> None:
    report = audited("recurrent_gemma")
    interleaving = report["interleaving"]
    assert interleaving.status is Status.FAIL
    assert not interleaving.because_of
    assert report["gradients"].status is Status.PASS


def test_rwkv_ignores_padding() -> None:
    report = audited("rwkv")
    assert report.failures[0].trap == "padding"
    assert report["gradients"].status is Status.PASS


def test_rwkv_cannot_step_more_than_one_row() -> None:
    """Broadcasting makes [2, 2, V] of two rows of one token: a call that returns nonsense is a finding."""
    stepping = audited("rwkv")["stepping"]
    assert stepping.status is Status.FAIL
    assert "[2, 2, 29]" in stepping.reason


def test_gpt_neo_has_no_scale() -> None:
    assert [finding.trap for finding in audited("gpt_neo").failures] == ["scale"]
