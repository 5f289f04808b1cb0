"""Mixers beside the layers of public checkpoints in transformers: the same weights give the same outputs.

Most of these layers compute in float32 inside whatever comes in, so the comparison is in float32.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lavagna.mixers import Mixer, build

from ..support.budget import close
from ..support.mixers import randomised

pytestmark = pytest.mark.peers

WIDTH = 32
TOKENS = 75  # more than a chunk of theirs and of ours, and no multiple of it


@pytest.fixture(autouse=True)
def _their_torch_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their layers take kernels of other packages where these are installed, which need a GPU: undo that."""
    from transformers.models.kimi_linear import modeling_kimi_linear
    from transformers.models.olmo_hybrid import modeling_olmo_hybrid
    from transformers.models.qwen3_next import modeling_qwen3_next

    for module in (modeling_kimi_linear, modeling_olmo_hybrid, modeling_qwen3_next):
        for name, function in vars(module).copy().items():
            if name.endswith(("delta_rule", "delta_attention")):
                monkeypatch.setattr(module, name, function.__wrapped__)


def copied(ours: Mixer, weights: dict[str, Tensor]) -> Mixer:
    """Our mixer with these weights, which must be all it has."""
    ours.load_state_dict({name: weight.detach() for name, weight in weights.items()}, strict=True)
    return ours


def inputs() -> Tensor:
    return torch.randn(2, TOKENS, WIDTH)


def agree(ours: Mixer, theirs: Tensor, x: Tensor, tolerance: float = 1e-5) -> None:
    """Outputs in one piece and, the state carried, in pieces and in steps."""
    whole, _ = ours(x)
    close("whole", whole, theirs, tolerance)
    if ours.init_state(1) is None:
        return
    first, state = ours(x[:, :40])
    pieces = [first]
    for t in range(40, TOKENS):
        y, state = ours.step(x[:, t], state)
        pieces.append(y[:, None])
    close("in pieces", torch.cat(pieces, 1), theirs, tolerance)


def conv(theirs: nn.Module, prefix: str = "conv.") -> dict[str, Tensor]:
    weights = {f"{prefix}weight": theirs.conv1d.weight[:, 0]}
    if theirs.conv1d.bias is not None:
        weights[f"{prefix}bias"] = theirs.conv1d.bias
    return weights


# Mamba ------------------------------------------------------------------------------------------------------


def mamba_weights(theirs: nn.Module) -> dict[str, Tensor]:
    names = {
        "in_proj.weight": "in_proj.weight",
        "x_proj.weight": "x_proj.weight",
        "dt_proj.weight": "dt_proj.weight",
        "dt_proj.bias": "dt_bias",
        "A_log": "A_log",
        "D": "D",
        "out_proj.weight": "out_proj.weight",
        "in_proj.bias": "in_proj.bias",
        "out_proj.bias": "out_proj.bias",
        "dt_layernorm.weight": "norms.dt.weight",
        "b_layernorm.weight": "norms.B.weight",
        "c_layernorm.weight": "norms.C.weight",
    }
    found = dict(theirs.named_parameters())
    return {ours: found[name] for name, ours in names.items() if name in found} | conv(theirs)


@pytest.mark.parametrize("bias", [False, True])
def test_mamba(bias: bool) -> None:
    from transformers import MambaConfig
    from transformers.models.mamba.modeling_mamba import MambaMixer

    config = MambaConfig(
        hidden_size=WIDTH, state_size=5, time_step_rank=3, conv_kernel=3, use_bias=bias, use_conv_bias=bias
    )
    theirs = randomised(MambaMixer(config, 0))
    options = {"state_size": 5, "dt_rank": 3, "conv_taps": 3, "bias": bias, "conv_bias": bias}
    x = inputs()
    agree(copied(build("mamba", WIDTH, options), mamba_weights(theirs)), theirs(x), x)


def test_falcon_mamba() -> None:
    from transformers import FalconMambaConfig
    from transformers.models.falcon_mamba.modeling_falcon_mamba import FalconMambaMixer

    config = FalconMambaConfig(hidden_size=WIDTH, state_size=5, time_step_rank=3, mixer_rms_eps=1e-3)
    theirs = randomised(FalconMambaMixer(config, 0, initialize_mixer_weights=False))
    # Its norms have no weights.
    ones = {f"norms.{name}.weight": torch.ones(size) for name, size in {"dt": 3, "B": 5, "C": 5}.items()}
    options = {"state_size": 5, "dt_rank": 3, "dt_B_C_norm": True, "norm_eps": 1e-3}
    x = inputs()
    agree(copied(build("mamba", WIDTH, options), mamba_weights(theirs) | ones), theirs(x), x)


def test_jamba() -> None:
    from transformers import JambaConfig
    from transformers.models.jamba.modeling_jamba import JambaMambaMixer

    config = JambaConfig(
        hidden_size=WIDTH, mamba_d_state=5, mamba_dt_rank=3, mamba_expand=2, rms_norm_eps=1e-3, use_mamba_kernels=True
    )
    theirs = randomised(JambaMambaMixer(config, 0))
    options = {"state_size": 5, "dt_rank": 3, "dt_B_C_norm": True, "norm_eps": 1e-3}
    x = inputs()
    agree(copied(build("mamba", WIDTH, options), mamba_weights(theirs)), theirs(x), x)


# Mamba-2 ----------------------------------------------------------------------------------------------------


def mamba2_weights(theirs: nn.Module, groups: int) -> dict[str, Tensor]:
    names = ("in_proj.weight", "in_proj.bias", "dt_bias", "A_log", "D", "out_proj.weight", "out_proj.bias")
    found = dict(theirs.named_parameters())
    norm = {"norm.weight": theirs.norm.weight.unflatten(0, (groups, -1))}
    return {name: found[name] for name in names if name in found} | norm | conv(theirs)


@pytest.mark.parametrize("groups", [1, 2])
def test_mamba2(groups: int) -> None:
    from transformers import Mamba2Config
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    config = Mamba2Config(
        hidden_size=WIDTH,
        state_size=6,
        num_heads=8,
        head_dim=8,
        n_groups=groups,
        chunk_size=16,
        use_bias=groups == 2,
        time_step_limit=(0.0, math.inf),
        layer_norm_epsilon=1e-3,
    )
    theirs = randomised(Mamba2Mixer(config, 0))
    options = {"state_size": 6, "head_dim": 8, "groups": groups, "bias": groups == 2, "norm_eps": 1e-3}
    x = inputs()
    agree(copied(build("mamba2", WIDTH, options), mamba2_weights(theirs, groups)), theirs(x), x)


def test_mamba2_with_a_limited_step() -> None:
    from transformers import Mamba2Config
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    limit = (0.2, 0.9)
    config = Mamba2Config(
        hidden_size=WIDTH, state_size=6, num_heads=8, head_dim=8, n_groups=1, chunk_size=16, time_step_limit=limit
    )
    theirs = randomised(Mamba2Mixer(config, 0))
    x = inputs()
    options: dict[str, Any] = {"state_size": 6, "head_dim": 8, "norm_eps": config.layer_norm_epsilon}
    weights = mamba2_weights(theirs, 1)
    unlimited, _ = copied(build("mamba2", WIDTH, options), weights)(x)
    assert (unlimited - theirs(x)).abs().max() > 0.01, "the limit must matter for the comparison to mean something"
    agree(copied(build("mamba2", WIDTH, {**options, "dt_limit": limit}), weights), theirs(x), x)


def test_falcon_h1_norms_before_the_gate() -> None:
    from transformers import FalconH1Config
    from transformers.models.falcon_h1.modeling_falcon_h1 import FalconH1Mixer

    config = FalconH1Config(
        hidden_size=WIDTH,
        mamba_d_ssm=64,
        mamba_d_state=6,
        mamba_n_heads=8,
        mamba_d_head=8,
        mamba_n_groups=2,
        mamba_chunk_size=16,
        mamba_rms_norm=True,
        mamba_norm_before_gate=True,
        rms_norm_eps=1e-3,
    )
    theirs = randomised(FalconH1Mixer(config, 0))
    theirs.mup_vector = torch.ones(theirs.in_proj.out_features)
    options = {"state_size": 6, "head_dim": 8, "groups": 2, "norm_before_gate": True, "norm_eps": 1e-3}
    x = inputs()
    agree(copied(build("mamba2", WIDTH, options), mamba2_weights(theirs, 2)), theirs(x), x)


# Gated DeltaNet and KDA -------------------------------------------------------------------------------------


def test_qwen3_next_gated_deltanet() -> None:
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    H, HV, K, V = 2, 4, 6, 5
    config = Qwen3NextConfig(
        hidden_size=WIDTH,
        num_hidden_layers=1,
        linear_num_key_heads=H,
        linear_num_value_heads=HV,
        linear_key_head_dim=K,
        linear_value_head_dim=V,
        rms_norm_eps=1e-3,
    )
    theirs = randomised(Qwen3NextGatedDeltaNet(config, 0))
    # Their rows lie key head by key head: q, k, then the v and z of its value heads; b, then a.
    qkvz = theirs.in_proj_qkvz.weight.unflatten(0, (H, -1))
    q, k, v, z = (part.flatten(0, 1) for part in qkvz.split([K, K, V * HV // H, V * HV // H], 1))
    b, a = (part.flatten(0, 1) for part in theirs.in_proj_ba.weight.unflatten(0, (H, -1)).chunk(2, 1))
    weights = {
        "qkv_proj.weight": torch.cat([q, k, v]),
        "gate_proj.weight": z,
        "a_proj.weight": a,
        "b_proj.weight": b,
        "A_log": theirs.A_log,
        "dt_bias": theirs.dt_bias,
        "norm.weight": theirs.norm.weight,
        "out_proj.weight": theirs.out_proj.weight,
        **conv(theirs),
    }
    options = {"heads": H, "value_heads": HV, "key_dim": K, "value_dim": V, "norm_eps": 1e-3}
    x = inputs()
    agree(copied(build("gated_deltanet", WIDTH, options), weights), theirs(x), x)


def test_olmo_hybrid_gated_deltanet_has_negative_eigenvalues() -> None:
    from transformers import OlmoHybridConfig
    from transformers.models.olmo_hybrid.modeling_olmo_hybrid import OlmoHybridGatedDeltaNet

    config = OlmoHybridConfig(
        hidden_size=WIDTH,
        num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=12,
        linear_value_head_dim=24,
        linear_allow_neg_eigval=True,
    )
    theirs = randomised(OlmoHybridGatedDeltaNet(config, 0))
    weights = {
        "qkv_proj.weight": torch.cat([theirs.q_proj.weight, theirs.k_proj.weight, theirs.v_proj.weight]),
        "gate_proj.weight": theirs.g_proj.weight,
        "a_proj.weight": theirs.a_proj.weight,
        "b_proj.weight": theirs.b_proj.weight,
        "A_log": theirs.A_log,
        "dt_bias": theirs.dt_bias,
        "norm.weight": theirs.o_norm.weight,
        "out_proj.weight": theirs.o_proj.weight,
        **conv(theirs),
    }
    # heads aside, these are our defaults, and the published ones
    x = inputs()
    agree(copied(build("gated_deltanet", WIDTH, {"heads": 2, "negative_eigenvalues": True}), weights), theirs(x), x)


def test_kimi_delta_attention() -> None:
    from transformers.models.kimi_linear.configuration_kimi_linear import KimiLinearConfig
    from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention

    H, K = 3, 6
    config = KimiLinearConfig(
        hidden_size=WIDTH, num_hidden_layers=1, linear_num_heads=H, linear_head_dim=K, rms_norm_eps=1e-3
    )
    theirs = randomised(KimiLinearDeltaAttention(config, 0))
    weights = {
        "qkv_proj.weight": torch.cat([theirs.q_proj.weight, theirs.k_proj.weight, theirs.v_proj.weight]),
        "b_proj.weight": theirs.b_proj.weight,
        "decay_proj.down.weight": theirs.forget_gate.f_a_proj.weight,
        "decay_proj.up.weight": theirs.forget_gate.f_b_proj.weight,
        "A_log": theirs.forget_gate.A_log.flatten(),
        "dt_bias": theirs.forget_gate.dt_bias.unflatten(0, (H, K)),
        "gate_proj.down.weight": theirs.g_a_proj.weight,
        "gate_proj.up.weight": theirs.g_b_proj.weight,
        "norm.weight": theirs.o_norm.weight,
        "out_proj.weight": theirs.o_proj.weight,
        **conv(theirs),
    }
    x = inputs()
    ours = build("kda", WIDTH, {"heads": H, "key_dim": K, "norm_eps": 1e-3})
    agree(copied(ours, weights), theirs(x), x)


# Attention --------------------------------------------------------------------------------------------------


def causal_mask(window: int | None = None) -> Tensor:
    index = torch.arange(TOKENS)
    distance = index[:, None] - index
    seen = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    return torch.zeros(TOKENS, TOKENS).masked_fill(~seen, -math.inf)[None, None]


def run_attention(theirs: nn.Module, rotary: nn.Module, x: Tensor, window: int | None = None) -> Tensor:
    position = rotary(x, torch.arange(TOKENS)[None])
    return theirs(x, position_embeddings=position, attention_mask=causal_mask(window))[0]


def attention_weights(theirs: nn.Module) -> dict[str, Tensor]:
    return {name.replace("o_proj", "out_proj"): p for name, p in theirs.named_parameters()}


def test_llama_attention_with_grouped_queries_and_biases() -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=WIDTH,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        attn_implementation="eager",
    )
    theirs = randomised(LlamaAttention(config, 0))
    options = {"heads": 4, "kv_heads": 2, "qkv_bias": True, "out_bias": True, "rope_theta": 500.0}
    x = inputs()
    ours = copied(build("attention", WIDTH, options), attention_weights(theirs))
    agree(ours, run_attention(theirs, LlamaRotaryEmbedding(config), x), x)


def test_qwen3_attention_norms_queries_and_keys_and_slides() -> None:
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3RotaryEmbedding

    config = Qwen3Config(
        hidden_size=WIDTH,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=10,
        rms_norm_eps=1e-3,
        attn_implementation="eager",
    )
    theirs = randomised(Qwen3Attention(config, 0))
    options = {"heads": 4, "kv_heads": 1, "head_dim": 10, "window": 9, "qk_norm": "rmsnorm", "norm_eps": 1e-3}
    x = inputs()
    ours = copied(build("attention", WIDTH, options), attention_weights(theirs))
    agree(ours, run_attention(theirs, Qwen3RotaryEmbedding(config), x, window=9), x)


def test_qwen3_next_attention_has_a_gate_and_turns_a_part() -> None:
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention, Qwen3NextRotaryEmbedding

    config = Qwen3NextConfig(
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        attn_implementation="eager",
    )
    theirs = randomised(Qwen3NextAttention(config, 0))
    weights = attention_weights(theirs)
    # Each head's rows are those of q and then those of its gate; its norms multiply by 1 + weight.
    q, gate = weights["q_proj.weight"].unflatten(0, (4, 16)).chunk(2, 1)
    weights["q_proj.weight"], weights["gate_proj.weight"] = q.flatten(0, 1), gate.flatten(0, 1)
    for name in ("q_norm.weight", "k_norm.weight"):
        weights[name] = 1 + weights[name]
    options = {"heads": 4, "kv_heads": 2, "rope_fraction": 0.25, "qk_norm": "rmsnorm", "gate": True}
    x = inputs()
    ours = copied(build("attention", WIDTH, options), weights)
    agree(ours, run_attention(theirs, Qwen3NextRotaryEmbedding(config), x), x)


def test_gpt2_attention() -> None:
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

    config = GPT2Config(n_embd=WIDTH, n_head=4, attn_implementation="eager")
    theirs = randomised(GPT2Attention(config, layer_idx=0))
    q, k, v = theirs.c_attn.weight.mT.chunk(3)  # a Conv1D of theirs is [in, out]
    q_bias, k_bias, v_bias = theirs.c_attn.bias.chunk(3)
    weights = {
        "q_proj.weight": q,
        "k_proj.weight": k,
        "v_proj.weight": v,
        "q_proj.bias": q_bias,
        "k_proj.bias": k_bias,
        "v_proj.bias": v_bias,
        "out_proj.weight": theirs.c_proj.weight.mT,
        "out_proj.bias": theirs.c_proj.bias,
    }
    x = inputs()
    ours = build("attention", WIDTH, {"position": "none", "qkv_bias": True, "out_bias": True})
    agree(copied(ours, weights), theirs(x, attention_mask=causal_mask())[0], x)
