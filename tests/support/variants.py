"""Options with which mixers and MLPs are tested: every value of every option occurs at least once."""

from __future__ import annotations

from typing import Any

__all__ = ["VARIANTS", "WIDTH"]

#: D of the mixers under test
WIDTH = 16

#: name of a mixer or MLP -> sets of options; the first one is always the default
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "attention": [
        {},
        {"heads": 2, "kv_heads": 1, "qkv_bias": True, "out_bias": True, "position": "none"},
        {"heads": 4, "kv_heads": 2, "head_dim": 6, "window": 3, "rope_theta": 100.0},
        {"qk_norm": "rmsnorm", "norm_eps": 1e-3, "gate": True, "rope_fraction": 0.5},
        {"window": 1},
        {"causal": False},
    ],
    "linear_attention": [
        {},
        {"heads": 2, "feature_map": "relu", "head_dim": 5},
        {"feature_map": "softmax", "normalizer": False, "norm": "layernorm", "norm_eps": 1e-3},
        {"feature_map": "identity", "normalizer": False, "norm": "rmsnorm"},
        {"feature_map": "dpfp", "nu": 2},
    ],
    "retnet": [
        {},
        {"heads": 2, "position": "none", "key_dim": 3, "value_dim": 5},
        {"norm": "rmsnorm", "norm_eps": 1e-3, "rope_theta": 100.0},
    ],
    "s4d": [
        {},
        {"state_size": 6},
        {"real": True, "state_size": 5},
    ],
    "mamba": [
        {},
        {"expand": 1, "state_size": 3, "dt_rank": 2, "conv_taps": 2, "conv_bias": False, "bias": True},
        {"dt_B_C_norm": True, "norm_eps": 1e-3, "conv_taps": 1},
        {"selective_dt": False, "inner": 12},
        {"selective_B": False},
        {"selective_C": False, "dt_B_C_norm": True},
        {"selective_dt": False, "selective_B": False, "selective_C": False},
    ],
    "mamba2": [
        {"state_size": 8},
        {"head_dim": 4, "state_size": 3, "groups": 2, "conv_taps": 2, "conv_bias": False, "bias": True},
        {"head_dim": 8, "inner": 24, "state_size": 4, "norm_before_gate": True, "norm_eps": 1e-3},
        {"expand": 1, "head_dim": 4, "state_size": 5, "dt_limit": (0.5, 1.0)},
    ],
    "gla": [
        {},
        {"heads": 2, "key_dim": 3, "value_dim": 5, "gate_rank": 2, "temperature": 1.0, "gate_bias": False},
        {"norm": "rmsnorm", "norm_eps": 1e-3},
    ],
    "rwkv6": [
        {},
        {"heads": 2, "shift_rank": 3, "decay_rank": 5, "norm_eps": 1e-3},
    ],
    "rwkv7": [
        {},
        {"heads": 2, "rank": 3, "gate_rank": 5, "norm_eps": 1e-3},
    ],
    "deltanet": [
        {},
        {"heads": 2, "key_dim": 3, "value_dim": 5, "conv_taps": 2, "gate": True, "norm_eps": 1e-3},
        {"conv_taps": None, "feature_map": "dpfp", "nu": 2, "qk_norm": "sum", "norm": "none"},
        {"conv_taps": None, "feature_map": "elu1", "qk_norm": "sum", "norm": "none"},
        {"conv_taps": None, "feature_map": "relu", "norm": "layernorm"},
        {"feature_map": "softmax"},
    ],
    "gated_deltanet": [
        {},
        {"heads": 2, "value_heads": 4, "key_dim": 3, "value_dim": 5, "conv_taps": 2, "norm_eps": 1e-3},
        {"negative_eigenvalues": True},
    ],
    "kda": [
        {},
        {"heads": 2, "key_dim": 3, "value_dim": 5, "conv_taps": 2, "rank": 2, "norm_eps": 1e-3},
    ],
    "relu": [{}, {"hidden": 5, "bias": False}],
    "gelu": [{}, {"hidden": 5, "bias": False, "approximate": "none"}],
    "swiglu": [{}, {"hidden": 5, "bias": True}],
    "channel_mix": [{}, {"hidden": 5}],
}
