"""Closed forms hold where they are shown, and are shown where they hold."""

from __future__ import annotations

from typing import Any

import pytest

from lavagna.cost import plan
from lavagna.cost.formulas import kv_cache, pre_norm_block
from lavagna.models import LanguageModelConfig

BIASED = {"heads": 2, "qkv_bias": True, "out_bias": True}


def layer_of(mixer: str = "attention", **keys: Any) -> Any:
    keys = {"vocab_size": 5, "width": 24, "layers": f"3*{mixer}", "mlp": "gelu", "norm": "layernorm", **keys}
    planned = plan(LanguageModelConfig.parse(keys), [10], batch_size=2)
    return planned.layers[0], planned.at[10]


@pytest.mark.parametrize("mlp", ["gelu", "relu"])
@pytest.mark.parametrize("width", [8, 24])
def test_a_pre_norm_block(width: int, mlp: str) -> None:
    layer, _ = layer_of(width=width, mlp=mlp, mixers={"attention": BIASED})
    assert layer.parameters == pre_norm_block(width)
    assert f"12 D² + 13 D = {layer.parameters:,} with D = {width}" in layer.formulas[0]


@pytest.mark.parametrize(
    "keys",
    [
        {"mixers": {"attention": {**BIASED, "kv_heads": 1}}},
        {"mixers": {"attention": {**BIASED, "qkv_bias": False}}},
        {"mixers": {"attention": {**BIASED, "gate": True}}},
        {"mixers": {"attention": BIASED}, "norm": "rmsnorm"},
        {"mixers": {"attention": BIASED}, "mlp": "swiglu"},
        {"mixers": {"attention": BIASED}, "mlps": {"gelu": {"hidden": 95}}},
    ],
)
def test_it_is_shown_for_no_other_block(keys: dict[str, Any]) -> None:
    layer, _ = layer_of(**keys)
    assert layer.parameters != pre_norm_block(24)
    assert not any("D²" in formula for formula in layer.formulas)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_cache_of_keys_and_values(kv_heads: int) -> None:
    layer, at = layer_of(mixers={"attention": {"kv_heads": kv_heads}})
    assert at.cache == kv_cache(layers=3, heads=kv_heads, head_dim=6, tokens=10, rows=2, itemsize=4)
    assert layer.formulas[-1].endswith(f"= {at.cache // 10:,} bytes a token")


@pytest.mark.parametrize("options", [{"window": 4}, {"causal": False}])
def test_no_cache_grows_with_a_window_or_without_causality(options: dict[str, Any]) -> None:
    layer, _ = layer_of(mixers={"attention": options})
    assert layer.formulas == ()


def test_a_recurrence_has_neither() -> None:
    assert layer_of("gla")[0].formulas == ()
