"""What several mixers are made of."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lavagna.errors import ConfigError
from lavagna.mixers.parts.conv import ShortConv
from lavagna.mixers.parts.feature_maps import _MAPS, NON_NEGATIVE, feature_map, feature_size
from lavagna.mixers.parts.gates import LowRank, dt_bias, softplus_decay
from lavagna.mixers.parts.norms import HeadNorm
from lavagna.mixers.parts.options import above_zero, at_least_one, divide, one_of
from lavagna.mixers.parts.positions import Position, positions, rotate
from lavagna.mixers.parts.precision import wide
from lavagna.mixers.parts.shift import previous_token, shift_weights

from ...support.budget import close
from ...support.mixers import randomised

double = {"dtype": torch.float64}


# Gates ------------------------------------------------------------------------------------------------------


def test_dt_bias_is_the_inverse_of_softplus_of_something_log_uniform() -> None:
    dt = F.softplus(dt_bias(20_000).double())
    assert dt.min() >= 1e-3 * (1 - 1e-3)
    assert dt.max() <= 1e-1 * (1 + 1e-3)
    # A log-uniform variable has as much between 1e-3 and 1e-2 as between 1e-2 and 1e-1.
    assert abs((dt < 1e-2).double().mean() - 0.5) < 0.02
    assert abs((dt < 10**-2.5).double().mean() - 0.25) < 0.02


def test_softplus_decay_by_hand() -> None:
    logits = torch.tensor([[0.0, math.log(math.e - 1)]], **double)
    A_log = torch.tensor([math.log(3.0), math.log(5.0)], **double)
    got = softplus_decay(logits, A_log, torch.zeros(2, **double))
    close("log_decay", got, torch.tensor([[-3 * math.log(2), -5.0]], **double))


def test_gates_are_float32_whatever_comes_in() -> None:
    half = torch.randn(2, 3, dtype=torch.bfloat16)
    assert softplus_decay(half, half[0], half[0]).dtype == torch.float32
    assert wide(half).dtype == torch.float32
    assert wide(half.double()).dtype == torch.float64


def test_low_rank_is_a_product_of_two_matrices() -> None:
    low = randomised(LowRank(5, 2, 4, bias=True).double())
    x = torch.randn(3, 5, **double)
    assert torch.linalg.matrix_rank(low.up.weight @ low.down.weight) == 2
    close("y", low(x), x @ (low.up.weight @ low.down.weight).mT + low.up.bias)


# Norms ------------------------------------------------------------------------------------------------------


def test_head_norm_by_hand() -> None:
    o = torch.tensor([[3.0, 4.0]], **double)
    rms = HeadNorm(2, eps=1e-12).double()
    close("rms", rms(o), o / math.sqrt(12.5))
    layer = HeadNorm(2, kind="layernorm", eps=1e-12).double()
    close("layer", layer(o), torch.tensor([[-1.0, 1.0]], **double))


def test_the_gate_stands_after_the_norm_or_before_it() -> None:
    o, gate = torch.randn(2, 4, 5, **double), torch.randn(2, 4, 5, **double)
    after = randomised(HeadNorm(5, heads=4, kind="layernorm", gate="sigmoid").double())
    before = HeadNorm(5, heads=4, kind="layernorm", gate="sigmoid", gate_first=True).double()
    before.load_state_dict(after.state_dict())
    normed = torch.stack([F.layer_norm(o[:, h], (5,), after.weight[h], after.bias[h]) for h in range(4)], 1)
    close("after", after(o, gate), normed * gate.sigmoid())
    close("before", before(o, gate), after(o * gate.sigmoid()))
    silu = HeadNorm(5).double()
    close("silu", silu(o, gate), F.rms_norm(o, (5,), eps=1e-5) * F.silu(gate))


def test_each_head_is_normalised_alone_and_its_gradient_stays_there() -> None:
    norm = randomised(HeadNorm(3, heads=2).double())
    o = torch.randn(2, 2, 3, **double, requires_grad=True)
    y = norm(o, torch.randn(2, 2, 3, **double))
    (gradient,) = torch.autograd.grad(y[:, 0].square().sum(), o)
    assert gradient[:, 0].abs().min() > 0
    assert gradient[:, 1].abs().max() == 0


def test_a_norm_of_half_precision_rounds_once() -> None:
    o = torch.randn(4, 64).bfloat16()
    norm = HeadNorm(64).bfloat16()
    close("rounded", norm(o), HeadNorm(64)(o.float()).bfloat16(), 1e-6)


# Feature maps -----------------------------------------------------------------------------------------------


def test_feature_maps_by_hand() -> None:
    x = torch.tensor([-1.0, 0.0, 2.0], **double)
    for name, expected in {
        "elu1": [math.exp(-1), 1.0, 3.0],
        "relu": [0.0, 0.0, 2.0],
        "identity": [-1.0, 0.0, 2.0],
        "softmax": [math.exp(-3) / (d := 1 + math.exp(-2) + math.exp(-3)), math.exp(-2) / d, 1 / d],
    }.items():
        close(name, feature_map(name, x, 1), torch.tensor(expected, **double))  # type: ignore[arg-type]


def test_dpfp_by_hand() -> None:
    # r = relu([1, -2, -1, 2]) = [1, 0, 0, 2]; with its neighbours one on: 1·0, 0·0, 0·2, 2·1; two on: 0, 0, 0, 0.
    got = feature_map("dpfp", torch.tensor([1.0, -2.0], **double), 2)
    close("dpfp", got, torch.tensor([0.0, 0, 0, 2, 0, 0, 0, 0], **double))


@pytest.mark.parametrize("name", [*_MAPS, "dpfp"])
def test_feature_sizes_and_signs(name: str) -> None:
    x = torch.randn(50, 7, **double)
    features = feature_map(name, x, 3)  # type: ignore[arg-type]
    assert features.shape == (50, feature_size(name, 7, 3))  # type: ignore[arg-type]
    assert (features.min() >= 0) == (name in NON_NEGATIVE)


# Positions --------------------------------------------------------------------------------------------------


def test_rotation_by_hand() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], **double).view(1, 1, 1, 5)
    got = rotate(x, torch.tensor([[3]]), theta=100.0, size=4)
    # Pairs (1, 3) and (2, 4) turn by 3 · 100^0 and 3 · 100^(−2/4) = .3; the fifth channel stays.
    (c, s), (d, t) = (math.cos(3), math.sin(3)), (math.cos(0.3), math.sin(0.3))
    expected = [c - 3 * s, 2 * d - 4 * t, 3 * c + s, 4 * d + 2 * t, 5.0]
    close("turned", got.flatten(), torch.tensor(expected, **double))


def test_products_of_rotated_vectors_depend_on_distance_alone() -> None:
    q, k = torch.randn(2, 1, 6, 1, 8, **double)

    def scores(first: int) -> torch.Tensor:
        turned = [rotate(u, first + torch.arange(6)[None], theta=1e4, size=8) for u in (q, k)]
        return torch.einsum("bthk,bshk->bts", *turned)

    close("scores", scores(1000), scores(0), 1e-9)


def test_rotation_keeps_half_precision_and_computes_in_float32() -> None:
    x = torch.randn(1, 3, 2, 8).bfloat16()
    position = torch.tensor([[1000, 1001, 1002]])
    close("rounded", rotate(x, position, theta=1e4, size=8), rotate(x.float(), position, theta=1e4, size=8).bfloat16())


def test_positions_of_rows_and_of_packed_sequences() -> None:
    x = torch.zeros(2, 3, 1)
    position, seen = positions(x, None, None)
    assert position.tolist() == [[0, 1, 2]] * 2
    assert seen.tolist() == [3, 3]
    position, seen = positions(x, torch.tensor([5, 0]), None)
    assert position.tolist() == [[5, 6, 7], [0, 1, 2]]
    assert seen.tolist() == [8, 3]
    packed = torch.zeros(1, 5, 1)
    position, seen = positions(packed, torch.tensor([7, 1, 0]), torch.tensor([0, 2, 2, 5]))
    assert position.tolist() == [[7, 8, 0, 1, 2]]
    assert seen.tolist() == [9, 1, 3]


# Token shift ------------------------------------------------------------------------------------------------


def test_token_shift_of_rows() -> None:
    x = torch.arange(1.0, 7).view(2, 3, 1)
    before, last = previous_token(x, None, None)
    assert before[..., 0].tolist() == [[0, 1, 2], [0, 4, 5]]
    assert last[:, 0].tolist() == [3, 6]
    before, last = previous_token(x[:, :0], torch.tensor([[8.0], [9.0]]), None)
    assert before.shape == (2, 0, 1)
    assert last[:, 0].tolist() == [8, 9]


def test_token_shift_of_packed_sequences() -> None:
    x = torch.arange(1.0, 6).view(1, 5, 1)
    given = torch.tensor([[7.0], [8.0], [9.0], [6.0]])
    before, last = previous_token(x, given, torch.tensor([0, 2, 2, 5, 5]))
    assert before[..., 0].tolist() == [[7, 1, 9, 3, 4]]
    assert last[:, 0].tolist() == [2, 8, 5, 6]
    before, last = previous_token(x[:, :0], given, torch.tensor([0, 0, 0, 0, 0]))
    assert before.shape == (1, 0, 1)
    assert torch.equal(last, given)


def test_a_shifted_token_of_half_precision_survives_the_float32_state() -> None:
    x = torch.randn(2, 5, 3).bfloat16()
    whole, _ = previous_token(x, None, None)
    _, state = previous_token(x[:, :2], None, None)
    assert state.dtype == torch.float32
    assert torch.equal(previous_token(x[:, 2:], state, None)[0], whole[:, 2:])


def test_shift_weights_by_hand() -> None:
    got = shift_weights(4, 0.5, 0.1)
    expected = torch.tensor([0.9, 0.9 - 0.5, 0.9 - math.sqrt(0.5), 0.9 - math.sqrt(0.75)])
    close("weights", got, expected, 1e-6)


# Convolution ------------------------------------------------------------------------------------------------


def test_short_conv_starts_as_a_depthwise_conv1d() -> None:
    conv = ShortConv(500, 4, bias=True)
    assert conv.weight.shape == (500, 4)
    assert conv.state_shape == (3, 500)
    for parameter in conv.parameters():
        assert 0.45 < parameter.abs().max() <= 0.5
    assert ShortConv(2, 3, bias=False).bias is None


def test_short_conv_equals_conv1d() -> None:
    conv = randomised(ShortConv(3, 4, bias=True).double())
    theirs = nn.Conv1d(3, 3, 4, groups=3, padding=3).double()
    theirs.load_state_dict({"weight": conv.weight[:, None], "bias": conv.bias})
    x = torch.randn(2, 6, 3, **double)
    y, tail = conv(x, None, None)
    close("y", y, F.silu(theirs(x.mT)[..., :6]).mT)
    close("tail", tail, x[:, 3:])


# Options ----------------------------------------------------------------------------------------------------


def test_options_are_checked_by_name() -> None:
    at_least_one("m", heads=1, size=None)
    with pytest.raises(ConfigError, match="m: heads must be at least 1, got 0"):
        at_least_one("m", size=2, heads=0)
    above_zero("m", eps=1e-9)
    for value in (0.0, -1.0, math.nan):
        with pytest.raises(ConfigError, match="m: eps must be above 0, got"):
            above_zero("m", eps=value)
    assert divide("m", "width", 12, "heads", 4) == 3
    with pytest.raises(ConfigError, match="m: width must be a multiple of heads, got 12 and 5"):
        divide("m", "width", 12, "heads", 5)
    one_of("m", Position, position="none")
    with pytest.raises(ConfigError, match="m: unknown position 'nome'; did you mean 'none'"):
        one_of("m", Position, position="nome")
