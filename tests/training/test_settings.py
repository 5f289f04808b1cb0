"""What was asked of a run: files, overrides, presets, saved models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lavagna.data import BPETokenizer, ByteTokenizer
from lavagna.errors import ConfigError, DataError, InputError
from lavagna.training import DataConfig, Settings, make_tokenizer, merge, open_corpus, read_tables, set_value
from tests.support.models import make_model
from tests.training.support import write_texts

MODEL = {"width": 16, "layers": "mamba"}


def saved_model(folder: Path, vocab_size: int = 257) -> Path:
    make_model(vocab_size=vocab_size).save(folder)
    ByteTokenizer().save(folder)
    return folder


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"model": MODEL, "modle": {}}, "unknown table 'modle'; did you mean 'model'"),
        ({"model": 3}, r"expected a table \[model\], got 3"),
        ({}, "expected a model: --preset NAME, --init MODEL, or a .model. table"),
        ({"model": {"width": 3}}, "expected a model"),
        ({"model": {"preset": "mamba-nano", "init": "x"}}, "expected preset or init, got both"),
        ({"model": {"preset": "mamba-nani"}}, "unknown size of a preset 'nani'; did you mean 'nano'"),
        ({"model": {**MODEL, "widht": 3}}, r"unknown key of \[model\] 'widht'; did you mean 'width'"),
        ({"model": MODEL, "training": {"step": 1}}, r"unknown key of \[training\] 'step'; did you mean 'steps'"),
        ({"model": MODEL, "data": {"colum": "x"}}, r"unknown key of \[data\] 'colum'; did you mean 'column'"),
        ({"model": MODEL, "data": {"source": 3}}, r"\[data\]: source: .*got 3"),
        ({"model": {"init": "x"}, "data": {"tokenizer": "bytes"}}, "tokenizer: expected none beside init"),
    ],
)
def test_faults_are_named_before_any_data_are_read(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings.parse(tables)


def test_a_preset_is_what_other_keys_change() -> None:
    model = Settings.parse(
        {"model": {"preset": "attention-nano", "width": 32, "mixers": {"attention": {"kv_heads": 1}}}}
    ).build_model(ByteTokenizer())
    assert model.config.width == 32
    assert model.config.layers == ("attention", "attention")
    assert model.config.mixers == {"attention": {"heads": 2, "kv_heads": 1}}
    assert model.config.vocab_size == 257


def test_the_vocabulary_is_the_tokenizers_unless_a_larger_one_is_asked_for() -> None:
    def vocab_size(**keys: int) -> int:
        return Settings.parse({"model": {**MODEL, **keys}}).build_model(ByteTokenizer()).config.vocab_size

    assert vocab_size() == 257
    assert vocab_size(vocab_size=320) == 320
    with pytest.raises(ConfigError, match="vocab_size: expected at least the tokenizer's 257, got 100"):
        vocab_size(vocab_size=100)


def test_the_seed_of_training_is_that_of_the_weights() -> None:
    first, again, other = (
        Settings.parse({"model": MODEL, "training": {"seed": seed}}).build_model(ByteTokenizer()) for seed in (1, 1, 2)
    )
    assert first.embedding.weight.equal(again.embedding.weight)
    assert not first.embedding.weight.equal(other.embedding.weight)


def test_a_saved_model_is_gone_on_from(tmp_path: Path) -> None:
    settings = Settings.parse({"model": {"init": str(saved_model(tmp_path / "model"))}})
    assert isinstance(settings.init_tokenizer(), ByteTokenizer)
    model = settings.build_model(ByteTokenizer())
    assert model.embedding.weight.equal(make_model().embedding.weight)
    same = Settings.parse(
        {"model": {"init": str(tmp_path / "model"), "width": 16, "layers": "gated_deltanet+attention"}}
    )
    assert same.build_model(ByteTokenizer()).config == model.config


def test_a_saved_model_keeps_its_shape(tmp_path: Path) -> None:
    settings = Settings.parse({"model": {"init": str(saved_model(tmp_path / "model")), "width": 32, "tied": False}})
    with pytest.raises(ConfigError, match=r"keeps its shape.*width 32 \(it has 16\).*tied False \(it has True\)"):
        settings.build_model(ByteTokenizer())
    with pytest.raises(ConfigError, match="nothing' does not exist"):
        Settings.parse({"model": {"init": str(tmp_path / "nothing")}}).init_tokenizer()


@pytest.mark.parametrize("init", [False, True])
def test_what_is_written_is_what_was_asked_for(tmp_path: Path, init: bool) -> None:
    model = {"init": str(saved_model(tmp_path / "model"))} if init else {"preset": "mamba-nano", "width": 32}
    data = {"source": ["a", "b"], "pattern": "*.md"} | ({} if init else {"tokenizer": "bpe:300"})
    settings = Settings.parse({"model": model, "training": {"betas": [0.8, 0.9], "steps": 3}, "data": data})
    settings.save(tmp_path / "run.json")
    again = Settings.parse(read_tables(tmp_path / "run.json"))
    assert again.training == settings.training
    assert again.data == settings.data
    tokenizer = ByteTokenizer()
    assert again.build_model(tokenizer).config == settings.build_model(tokenizer).config


def test_toml_and_json_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[model]\nlayers = "mamba"\n[model.mixers.mamba]\nexpand = 3\n')
    assert read_tables(tmp_path / "a.toml") == {"model": {"layers": "mamba", "mixers": {"mamba": {"expand": 3}}}}
    (tmp_path / "a.json").write_text(json.dumps({"training": {"steps": 3}}))
    assert read_tables(tmp_path / "a.json") == {"training": {"steps": 3}}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "[model", "a.toml' is malformed"),
        ("a.json", "{", "a.json' is malformed"),
        ("a.json", "[]", "expected the tables model, training, data, got list"),
        ("b.toml", None, "cannot read .*b.toml': No such file"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_tables(tmp_path / name)


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("training.steps=5", {"training": {"steps": 5}}),
        ("training.schedule=wsd", {"training": {"schedule": "wsd"}}),
        ('training.schedule = "wsd"', {"training": {"schedule": "wsd"}}),
        ("training.carry_state=true", {"training": {"carry_state": True}}),
        ("training.betas=[0.9, 0.99]", {"training": {"betas": [0.9, 0.99]}}),
        ("model.layers=2*(3*mamba+attention)", {"model": {"layers": "2*(3*mamba+attention)"}}),
        ("model.mixers.attention.heads=8", {"model": {"mixers": {"attention": {"heads": 8}}}}),
        ("data.pattern=*.md", {"data": {"pattern": "*.md"}}),
        ("data.source=[]", {"data": {"source": []}}),
        ("data.pattern=a=b", {"data": {"pattern": "a=b"}}),
    ],
)
def test_values_are_toml_or_text(assignment: str, expected: dict[str, Any]) -> None:
    assert set_value({}, assignment) == expected


@pytest.mark.parametrize("assignment", ["training.steps", "steps=5", "training.=5", "=5", "training=5"])
def test_what_is_no_assignment_is_refused(assignment: str) -> None:
    with pytest.raises(ConfigError, match=r"expected table.key=value, such as training.steps=500, got"):
        set_value({}, assignment)


def test_later_values_win_and_others_stay() -> None:
    base = {"model": {"mixers": {"a": {"heads": 1, "x": 2}}}, "training": {"steps": 1}}
    assert merge(base, {"model": {"mixers": {"a": {"heads": 3}}}}) == {
        "model": {"mixers": {"a": {"heads": 3, "x": 2}}},
        "training": {"steps": 1},
    }
    assert base["model"] == {"mixers": {"a": {"heads": 1, "x": 2}}}


def test_tokenizers_by_name(tmp_path: Path) -> None:
    source = (str(write_texts(tmp_path / "texts")),)
    assert DataConfig.parse({"source": source[0]}) == DataConfig(source=source)
    assert isinstance(make_tokenizer(DataConfig(source=source)), ByteTokenizer)
    trained = make_tokenizer(DataConfig(source=source, tokenizer="bpe:270"))
    assert isinstance(trained, BPETokenizer)
    assert trained.vocab_size == 270
    trained.save(tmp_path / "vocabulary")
    loaded = make_tokenizer(DataConfig(source=source, tokenizer=str(tmp_path / "vocabulary" / "tokenizer.json")))
    assert loaded.fingerprint == trained.fingerprint
    with pytest.raises(ConfigError, match=r"tokenizer: expected bpe:SIZE with a number of tokens, got 'bpe:many'"):
        DataConfig.parse({"source": source, "tokenizer": "bpe:many"})
    with pytest.raises(InputError, match="vocab_size of at least 257"):
        make_tokenizer(DataConfig(source=source, tokenizer="bpe:100"))
    with pytest.raises(DataError, match="'nothing' does not exist"):
        make_tokenizer(DataConfig(tokenizer="nothing"))


def test_the_corpus_of_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "one"}\n{"body": "two!"}\n')
    (tmp_path / "b.txt").write_text("three")
    config = DataConfig(source=(str(tmp_path),), column="body", pattern="*.jsonl")
    corpus = open_corpus(config, ByteTokenizer(), tmp_path / "corpus")
    assert [corpus.tokenizer.decode(ids) for ids in corpus.documents()] == [b"one", b"two!"]


def test_the_standard_library_is_the_default() -> None:
    assert DataConfig().sources is None
