"""Heads are alike: permuting them together with their weights changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..compare import difference
from ..finding import Example, Measurement, NotApplicable
from ..subject import Subject
from ..tracing import HIDDEN, AttentionCall

__all__ = ["heads_stitched"]

#: names of projections, by what they make
QUERIES = ("q_proj", "query", "wq", "to_q", "q_lin", "q_linear", "linear_q", "q")
KEYS = ("k_proj", "key", "wk", "to_k", "k_lin", "k_linear", "linear_k", "k")
VALUES = ("v_proj", "value", "wv", "to_v", "v_lin", "v_linear", "linear_v", "v")
QUERY_NORMS = ("q_norm", "q_layernorm", "query_norm", "norm_q", "q_ln")
KEY_NORMS = ("k_norm", "k_layernorm", "key_norm", "norm_k", "k_ln")
GATES = ("gate_proj", "g_proj", "wg", "to_g")
OUTPUTS = ("out_proj", "o_proj", "wo", "to_out", "out_lin", "linear_out", "c_proj", "dense", "proj", "out", "o")
FUSED = ("c_attn", "qkv_proj", "qkv", "wqkv", "Wqkv", "query_key_value", "in_proj", "to_qkv")
#: names of the numbers of heads, of a module or of its config
HEADS = ("heads", "num_heads", "n_heads", "n_head", "num_attention_heads", "nhead")
GROUPS = ("kv_heads", "num_kv_heads", "n_kv_heads", "num_key_value_heads")
#: words in the names of parts without weights of one head alone
SHARED = ("norm", "rotary", "rope", "drop", "emb", "mlp", "ffn", "feed_forward")
#: their whole names
APART = ("head", "lm_head", "ln", "wte", "wpe")


class _Slice(NamedTuple):
    """Part of a parameter that holds `heads` heads one after the other.

    Fields:
        tensor: the parameter.
        axis: along which they lie.
        start, size: of the part.
        heads: their number.
    """

    tensor: Tensor
    axis: int
    start: int
    size: int
    heads: int

    def permute(self, order: list[int]) -> None:
        """Put the heads into another order; where they come in groups, the groups."""
        part = self.tensor.narrow(self.axis, self.start, self.size)
        with torch.no_grad():
            blocks = part.unflatten(self.axis, (len(order), self.size // len(order)))
            part.copy_(blocks.index_select(self.axis, torch.tensor(order)).flatten(self.axis, self.axis + 1))


class _Layout(NamedTuple):
    """One way in which a module may hold its heads: by groups that share keys, and within them."""

    heads: int
    groups: int
    by_query: list[_Slice]
    by_key: list[_Slice]


def heads_stitched(subject: Subject) -> Iterator[Measurement]:
    """Permute groups of heads, and heads within groups, with their rows and columns of the projections."""
    if not subject.attention:
        raise NotApplicable("no softmax over tokens was seen")
    if any(map(_own_bias, subject.attention)):
        raise NotApplicable("its heads have biases of their own (such as ALiBi), so that they are not alike")
    found = False
    modules = [] if subject.module is None else list(subject.module.named_modules())
    for name, module in modules:
        layouts = _layouts(module)
        if not layouts:
            continue
        found = True
        for tokens in subject.lengths(1, 2, 3, 5):
            x = subject.make(2, tokens)
            expected = subject.run(x).output
            for what in ("groups", "heads"):
                changes = [_permuted(subject, x, expected, layout, what) for layout in layouts]
                heads = layouts[0].heads
                yield Measurement(
                    min(changes),
                    subject.tolerance,
                    Example(tokens, 2, f"the {heads} heads of {name or 'the module'} in another order"),
                )
    if not found:
        raise NotApplicable("its projections to queries, keys and values are not known by name")


def _permuted(subject: Subject, x: Tensor, expected: Tensor, layout: _Layout, what: str) -> float:
    """How much the output changes when heads change places."""
    inside = layout.heads // layout.groups
    if what == "groups":
        order = list(range(layout.groups))[::-1]
        slices = [*layout.by_query, *layout.by_key]
    else:
        order = [g * inside + h for g in range(layout.groups) for h in reversed(range(inside))]
        slices = layout.by_query
    if len(order) == 1 or (what == "heads" and inside == 1):
        return 0.0
    kept = [s.tensor.detach().clone() for s in slices]
    try:
        for s in slices:
            s.permute(order)
        return difference(subject.run(x).output, expected)
    finally:
        with torch.no_grad():
            for s, old in zip(reversed(slices), reversed(kept), strict=True):
                s.tensor.copy_(old)


def _own_bias(call: AttentionCall) -> bool:
    """Whether what is added to the logits differs between heads."""
    if call.bias is not None:
        return _differs(call.bias)
    if call.logits is None or call.product is None or call.logits.ndim < 4:
        return False
    product = call.product.coefficient * call.product.q @ call.product.k.transpose(-1, -2)
    if product.numel() != call.logits.numel():
        return False
    return _differs(torch.where(call.logits > HIDDEN, call.logits - product.reshape(call.logits.shape), 0))


def _differs(bias: Tensor) -> bool:
    if bias.ndim < 3 or bias.shape[-3] == 1 or not bias.is_floating_point():
        return False
    bias = torch.where(bias > HIDDEN, bias, 0)
    return difference(bias, bias.narrow(-3, 0, 1).expand_as(bias), 1.0) > 1e-4


# Finding the heads ------------------------------------------------------------------------------------------


def _layouts(module: nn.Module) -> list[_Layout]:
    """The ways in which a module may hold its heads; none if it is no attention that we know."""
    if isinstance(module, nn.MultiheadAttention):
        return _of_torch(module)
    children = dict(module.named_children())
    output = _one(children, OUTPUTS)
    heads = _number(module, HEADS)
    q, k, v, fused = (_one(children, names) for names in (QUERIES, KEYS, VALUES, FUSED))
    if output is None or _others(module, children):
        return []
    if q is not None and k is not None and v is not None:
        size = _number(module, ("head_dim", "head_size", "attention_head_size"))
        heads = heads or (_width(q) // size if size else None)
        groups = _number(module, GROUPS) or (heads and _width(k) * heads // _width(q))
        if not heads or not groups or heads % groups or _width(q) % heads or _width(k) % groups or _width(v) % groups:
            return []
        gate = _one(children, GATES)
        by_query = [*_rows(q, heads), *_columns(output, heads), *([] if gate is None else _rows(gate, heads))]
        by_query += [*_own(module, heads), *_norm(children, QUERY_NORMS, _width(q), heads)]
        by_key = [*_rows(k, groups), *_rows(v, groups), *_norm(children, KEY_NORMS, _width(k), groups)]
        return [_Layout(heads, groups, by_query, by_key)]
    if fused is not None and heads and _width(fused) % (3 * heads) == 0:
        return _of_fused(fused, output, heads)
    return []


def _of_fused(fused: nn.Module, output: nn.Module, heads: int) -> list[_Layout]:
    """Queries, keys and values behind each other; or head by head."""
    third = _width(fused) // 3
    behind = [s._replace(start=i * third, size=third) for s in _rows(fused, heads) for i in range(3)]
    each = _rows(fused, heads)
    columns = _columns(output, heads)
    return [_Layout(heads, heads, [*slices, *columns], []) for slices in (behind, each)]


def _of_torch(module: nn.MultiheadAttention) -> list[_Layout]:
    heads, width = module.num_heads, module.embed_dim
    if module.in_proj_weight is None or module.bias_k is not None:
        return []
    parts = [module.in_proj_weight, *([] if module.in_proj_bias is None else [module.in_proj_bias])]
    slices = [_Slice(t, 0, i * width, width, heads) for t in parts for i in range(3)]
    return [_Layout(heads, heads, [*slices, *_columns(module.out_proj, heads)], [])]


def _one(children: dict[str, nn.Module], names: tuple[str, ...]) -> nn.Module | None:
    for name in names:
        child = children.get(name)
        if isinstance(child, nn.ModuleList | nn.Sequential) and len(child):
            child = child[0]
        weight = getattr(child, "weight", None)
        if isinstance(weight, Tensor) and weight.ndim == 2:
            return child
    return None


def _others(module: nn.Module, children: dict[str, nn.Module]) -> bool:
    """Whether it has weights whose heads we would not permute."""
    known = {*APART, *QUERIES, *KEYS, *VALUES, *GATES, *OUTPUTS, *FUSED}
    return any(
        name not in known and not any(word in name.lower() for word in SHARED) and any(True for _ in child.parameters())
        for name, child in children.items()
    )


def _number(module: nn.Module, names: tuple[str, ...]) -> int | None:
    for owner in (module, getattr(module, "config", None)):
        for name in names:
            value: Any = getattr(owner, name, None)
            if isinstance(value, int) and value > 0:
                return value
    return None


def _transposed(linear: nn.Module) -> bool:
    """Whether its weight is [in, out], as in GPT-2."""
    return type(linear).__name__ == "Conv1D"


def _width(linear: nn.Module) -> int:
    """Number of its outputs."""
    weight = linear.weight
    assert isinstance(weight, Tensor)
    return weight.shape[1 if _transposed(linear) else 0]


def _rows(linear: nn.Module, heads: int) -> list[_Slice]:
    """What makes each head, in a projection to heads."""
    weight, bias = linear.weight, getattr(linear, "bias", None)
    assert isinstance(weight, Tensor)
    slices = [_Slice(weight, 1 if _transposed(linear) else 0, 0, _width(linear), heads)]
    return [*slices, *([_Slice(bias, 0, 0, _width(linear), heads)] if isinstance(bias, Tensor) else [])]


def _columns(linear: nn.Module, heads: int) -> list[_Slice]:
    """What reads each head, in a projection from heads."""
    weight = linear.weight
    assert isinstance(weight, Tensor)
    axis = 0 if _transposed(linear) else 1
    return [_Slice(weight, axis, 0, weight.shape[axis], heads)]


def _norm(children: dict[str, nn.Module], names: tuple[str, ...], width: int, heads: int) -> list[_Slice]:
    """Parameters of a norm over all heads at once; those of one head are shared by all."""
    found = (children[name] for name in names if name in children)
    return [_Slice(p, 0, 0, width, heads) for norm in found for p in norm.parameters() if p.shape == (width,)]


def _own(module: nn.Module, heads: int) -> list[_Slice]:
    """Parameters of the module itself that have one number, or row, for each head."""
    return [_Slice(p, 0, 0, heads, heads) for p in module.parameters(recurse=False) if p.ndim and p.shape[0] == heads]
