"""`lavagna plan`: the numbers that can be worked out by hand, whatever names a model, and refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lavagna.cli.plan import DTYPES, readable_bytes, readable_flops
from lavagna.cost.formulas import kv_cache, pre_norm_block
from lavagna.models import LanguageModel
from tests.support.models import make_model

from .conftest import Command

#: 24 pre-norm blocks of width 512 with 8 heads of 64, biases, LayerNorms and MLPs of 4 D
TRANSFORMER = """
[model]
width = 512
layers = "24*attention"
mlp = "gelu"
norm = "layernorm"
mixers.attention = { heads = 8, kv_heads = KV_HEADS, position = "none", qkv_bias = true, out_bias = true }
"""


@pytest.fixture
def transformer(tmp_path: Path) -> dict[int, Path]:
    """Its configuration, by the number of key-value heads."""
    found = {}
    for heads in (8, 1):
        found[heads] = tmp_path / f"{heads}.toml"
        found[heads].write_text(TRANSFORMER.replace("KV_HEADS", str(heads)))
    return found


def plan(lavagna: Command, *arguments: object) -> dict[str, Any]:
    printed = lavagna("plan", *arguments, "--json")
    assert printed.status == 0, printed.err
    return json.loads(printed.out)


def test_a_block_has_12_d_squared_and_13_d_parameters(lavagna: Command, transformer: dict[int, Path]) -> None:
    (layer,) = plan(lavagna, transformer[8], "--context", 16, "--dtype", "bf16")["layers"]
    assert layer["parameters"] == pre_norm_block(512) == 12 * 512**2 + 13 * 512 == 3_152_384
    assert layer["parameters_together"] == 75_657_216
    assert readable_bytes(2 * layer["parameters_together"]) == "144.3 MiB"
    assert "parameters of a block: 12 D² + 13 D = 3,152,384 with D = 512" in layer["formulas"]


def test_the_cache_of_24_blocks(lavagna: Command, transformer: dict[int, Path]) -> None:
    told = plan(lavagna, transformer[8], "--context", 8192, "--batch", 4, "--dtype", "bf16")
    (at,) = told["contexts"]
    expected = kv_cache(layers=24, heads=8, head_dim=64, tokens=8192, rows=4, itemsize=2)
    assert at["cache_bytes"] == expected == 1_610_612_736
    assert at["state_bytes"] == expected + 24 * 4 * 8  # how many tokens each row has read, in each layer
    assert round(at["cache_bytes"] / (2 * told["layers"][0]["parameters_together"]), 1) == 10.6
    assert any("= 196,608 bytes a token" in formula for formula in told["layers"][0]["formulas"])


def test_one_shared_head_needs_an_eighth(lavagna: Command, transformer: dict[int, Path]) -> None:
    (at,) = plan(lavagna, transformer[1], "--context", 8192, "--batch", 4, "--dtype", "bf16")["contexts"]
    assert at["cache_bytes"] == 1_610_612_736 // 8
    assert f"{at['cache_bytes'] / 2**30:.3f}" == "0.188"


def test_tables_tell_the_same(lavagna: Command, transformer: dict[int, Path]) -> None:
    arguments = ["plan", transformer[8], "--context", "8192,16384", "--batch", 4, "--dtype", "bf16"]
    printed = lavagna(*arguments)
    assert printed.status == 0
    told = plan(lavagna, *arguments[1:])
    for part, number in told["parameters"].items():
        assert not number or f"{number:,}" in printed.out, part
    first, second = told["contexts"]
    for key in ("state_bytes", "activation_bytes", "training_bytes_with_checkpointing"):
        assert re.search(rf"{readable_bytes(first[key])} +{readable_bytes(second[key])}", printed.out), key
    for key in ("training_flops", "generation_flops"):
        values = (readable_flops(at[key]["per_token"]) for at in (first, second))
        assert re.search(" +".join(values), printed.out), key
    assert re.search(r"times the weights +10\.6 +21\.3", printed.out)


def test_totals_are_sums_and_shares_of_a_batch(lavagna: Command) -> None:
    told = plan(lavagna, "gated_deltanet+attention@nano", "--context", "100,1000", "--batch", 3)
    assert told["parameters"].pop("total") == sum(told["parameters"].values())
    for at in told["contexts"]:
        for key, tokens in (("training_flops", 3 * at["context"]), ("generation_flops", 3)):
            flops = at[key]
            assert flops["total"] == sum(value for part, value in flops.items() if part not in ("total", "per_token"))
            assert flops["per_token"] == flops["total"] / tokens
        fixed = told["weights_bytes"] + told["gradients_bytes"] + told["optimizer_bytes"]
        assert at["training_bytes"] == fixed + at["peak_activation_bytes"]
        assert at["training_bytes_with_checkpointing"] == fixed + at["peak_activation_bytes_with_checkpointing"]


def test_a_recurrent_state_stays_and_a_cache_grows(lavagna: Command) -> None:
    contexts = plan(lavagna, "gated_deltanet-nano", "--context", "4096,131072,1000000")["contexts"]
    assert len({at["state_bytes"] for at in contexts}) == 1
    assert {at["cache_bytes"] for at in contexts} == {0}
    contexts = plan(lavagna, "attention-nano", "--context", "4096,131072,1000000")["contexts"]
    assert contexts[2]["cache_bytes"] * 4096 == contexts[0]["cache_bytes"] * 1_000_000


# --- what names a model -------------------------------------------------------------------------------------


def test_a_folder_of_a_model_is_planned_as_it_is(lavagna: Command, tmp_path: Path) -> None:
    model = make_model("gated_deltanet+attention", vocab_size=99)
    model.save(tmp_path / "saved")
    told = plan(lavagna, tmp_path / "saved", "--context", 64)
    assert told["parameters"]["total"] == sum(p.numel() for p in model.parameters())
    assert told["contexts"][0]["state_bytes"] == model.state_bytes(64)


def test_a_run_is_planned_as_its_model(lavagna: Command, trained: Path) -> None:
    total = plan(lavagna, trained, "--context", 64)["parameters"]["total"]
    assert total == sum(p.numel() for p in LanguageModel.load(trained / "model").parameters())


@pytest.mark.parametrize(
    ("table", "vocab"),
    [
        ("", 257),
        ("vocab_size = 300", 300),
        ('[data]\ntokenizer = "bpe:1000"', 1000),
        ('[data]\ntokenizer = "bytes"', 257),
    ],
)
def test_a_file_has_the_vocabulary_of_its_tokenizer(lavagna: Command, tmp_path: Path, table: str, vocab: int) -> None:
    file = tmp_path / "model.toml"
    file.write_text(f'[model]\npreset = "gla-nano"\n{table}\n')
    assert plan(lavagna, file, "--context", 8)["parameters"]["embedding"] == 64 * vocab


def test_a_file_may_go_on_from_a_model(lavagna: Command, tmp_path: Path, trained: Path) -> None:
    file = tmp_path / "model.toml"
    file.write_text(f'[model]\ninit = "{trained}"\n')
    assert plan(lavagna, file, "--context", 8) == plan(lavagna, trained, "--context", 8)


# --- options ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dtype"), DTYPES.items())
def test_dtypes(lavagna: Command, name: str, dtype: str) -> None:
    told = plan(lavagna, "gla-nano", "--context", 8, "--dtype", name)
    size = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}[dtype]
    assert (told["dtype"], told["weights_bytes"]) == (dtype, size * told["parameters"]["total"])


def test_contexts_come_in_order_once(lavagna: Command) -> None:
    contexts = plan(lavagna, "gla-nano", "--context", "64, 16,64,1_000")["contexts"]
    assert [at["context"] for at in contexts] == [16, 64, 1000]


def test_by_default_contexts_go_as_far_as_positions(lavagna: Command) -> None:
    assert [at["context"] for at in plan(lavagna, "gla-nano")["contexts"]] == [4096, 131072, 1_000_000]
    assert [at["context"] for at in plan(lavagna, "gpt2")["contexts"]] == [1024]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpt2", "--context", "1024,2048"], "learned positions end at 1,024 tokens, got a context of 2,048"),
        (["gla-nano", "--context", "4k"], "--context must be numbers of tokens between commas, got '4k'"),
        (["gla-nano", "--context", "0"], "--context must be numbers of tokens between commas, got '0'"),
        (["gla-nano", "--batch", "0"], "--batch must be at least 1, got 0"),
        (["gla-nano", "--dtype", "bf61"], "unknown dtype 'bf61'; did you mean 'bf16'?"),
        (["gla-nanoo"], "unknown size of a preset 'nanoo'; did you mean 'nano'?"),
        (["nothing.toml"], "expected a configuration file, a model's folder or a preset, but 'nothing.toml'"),
        (["no/where"], "expected a configuration file, a model's folder or a preset, but 'no/where'"),
    ],
)
def test_refusals(lavagna: Command, arguments: list[str], message: str) -> None:
    printed = lavagna("plan", *arguments)
    assert (printed.status, printed.out) == (2, "")
    assert printed.err.startswith(f"lavagna: {message}")
    assert printed.err.count("\n") == 1


def test_a_folder_without_a_model_is_refused(lavagna: Command, tmp_path: Path) -> None:
    printed = lavagna("plan", tmp_path)
    assert printed.status == 2
    assert "expected a model or a run" in printed.err


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, "0 B"),
        (1000, "1,000 B"),
        (1536, "1.50 KiB"),
        (2**20, "1 MiB"),
        (151_314_432, "144.3 MiB"),
        (2**70, "1,048,576 PiB"),
    ],
)
def test_bytes_as_people_read_them(number: int, expected: str) -> None:
    assert readable_bytes(number) == expected
