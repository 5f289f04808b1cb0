"""The peers: public implementations that run on a CPU, given the same numbers in the layout that each wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from lavagna.ops.spec import Inputs, OpSpec

from .workloads import Executor, Tensors, as_they_are

__all__ = ["KIMI_CHUNKS", "MAMBA2_CHUNKS", "MAMBAPY_SCAN", "MAMBA_SCAN", "QWEN3_NEXT_CHUNKS", "SDPA"]

#: what its configurations have
MAMBA2_CHUNK = 256

Options = Mapping[str, object]


def _plain(model: str, name: str) -> Callable[..., Any]:
    """transformers' torch function behind a name that may stand for a fast kernel."""
    function = getattr(import_module(f"transformers.models.{model}.modeling_{model}"), name)
    return getattr(function, "__wrapped__", function)


def _time_last(inputs: Inputs) -> dict[str, Tensor]:
    """[B, D, T] in place of [B, T, D]."""
    return {n: t.mT.contiguous() if t.ndim == 3 else t for n, t in as_they_are(inputs).items()}


def _mamba_scan(spec: OpSpec, t: Tensors, options: Options) -> Tensor:
    scan = _plain("mamba", "mamba_selective_scan")
    return scan(
        *(t[n] for n in ("x", "dt", "A", "B", "C", "D", "z", "dt_bias")), delta_softplus=options["dt_softplus"]
    ).mT


def _mambapy_scan(spec: OpSpec, t: Tensors, options: Options) -> Tensor:
    from mambapy.mamba import MambaBlock

    dt = F.softplus(t["dt"] + t["dt_bias"])
    y = MambaBlock.selective_scan(
        None, t["x"], dt, *(t[n] for n in ("A", "B", "C", "D"))
    )  # it uses nothing of the block
    return y * F.silu(t["z"])


def _chunks(model: str, name: str) -> Executor:
    """The gated delta rule in chunks, without its l2 norm."""

    def compute(spec: OpSpec, t: Tensors, options: Options) -> Tensor:
        output, _ = _plain(model, name)(t["q"], t["k"], t["v"], g=t["log_decay"], beta=t["beta"])
        return output

    return Executor(as_they_are, compute)


def _mamba2_arrange(inputs: Inputs) -> dict[str, Tensor]:
    """There log_decay = Δ·A and v = Δ·x: take A = −1."""
    t = as_they_are(inputs)
    dt = -t["log_decay"]
    return {"x": t["v"] / dt[..., None], "dt": dt, "A": dt.new_full(dt.shape[2:], -1.0), "B": t["k"], "C": t["q"]}


def _mamba2_chunks(spec: OpSpec, t: Tensors, options: Options) -> Tensor:
    return _plain("mamba2", "mamba2_chunk_scan")(*t.values(), MAMBA2_CHUNK)


def _heads_first(inputs: Inputs) -> dict[str, Tensor]:
    t = as_they_are(inputs)
    return {n: t[n].transpose(1, 2).contiguous() for n in ("q", "k", "v")}


def _sdpa(spec: OpSpec, t: Tensors, options: Options) -> Tensor:
    return F.scaled_dot_product_attention(t["q"], t["k"], t["v"], is_causal=True)


MAMBA_SCAN = Executor(_time_last, _mamba_scan)
MAMBAPY_SCAN = Executor(as_they_are, _mambapy_scan)
QWEN3_NEXT_CHUNKS = _chunks("qwen3_next", "torch_chunk_gated_delta_rule")
KIMI_CHUNKS = _chunks("kimi_linear", "chunk_kimi_delta_attention")
MAMBA2_CHUNKS = Executor(_mamba2_arrange, _mamba2_chunks)
SDPA = Executor(_heads_first, _sdpa)
