"""Bytes to token ids and back: the bytes themselves, or byte-pair encodings through ``tokenizers``."""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import DataError, InputError
from .sources import PIECE, Document

__all__ = ["BPETokenizer", "ByteTokenizer", "StreamDecoder", "Tokenizer", "load_tokenizer"]

Ids = np.ndarray | Sequence[int]

CONFIG = "tokenizer_config.json"  # in a model's folder: says which tokenizer and which token ends a document
VOCABULARY = "tokenizer.json"  # the format of the package tokenizers
BYTES_CLASS = "LavagnaByteTokenizer"
END_OF_DOCUMENT = "<|endoftext|>"
# The names that public vocabularies give to the token after a document, tried in this order.
KNOWN_ENDS = (END_OF_DOCUMENT, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|im_end|>")


class Tokenizer(Protocol):
    """What the rest of the library asks of a tokenizer.

    Encoding never makes `end_of_document`: it is put between documents when these are fed to a model.
    Decoding goes token by token: ``decode(a + b) == decode(a) + decode(b)`` and
    ``token_bytes()[a].sum() == len(decode(a))``. For every text t, as bytes, ``decode(encode(t)) == t``,
    except in vocabularies that change the text by a Unicode normalisation or by a blank put in front.
    """

    @property
    def vocab_size(self) -> int:
        """Number of ids, `end_of_document` included."""

    @property
    def end_of_document(self) -> int:
        """Id of the token that separates documents."""

    @property
    def fingerprint(self) -> str:
        """Digest of everything that the ids depend on."""

    @property
    def dtype(self) -> np.dtype:
        """The narrowest of uint16 and uint32 that holds every id."""

    def encode(self, text: bytes | str) -> np.ndarray:
        """Return the ids of a text, [T] of `dtype`; a str stands for its UTF-8."""

    def encode_pieces(self, pieces: Iterable[bytes]) -> Iterator[np.ndarray]:
        """Yield the ids of one document that comes in pieces, in memory of about a piece."""

    def decode(self, ids: Ids) -> bytes:
        """Return the bytes that ids stand for; `end_of_document` stands for none."""

    def token_bytes(self) -> np.ndarray:
        """Return how many bytes each id stands for, int64 [vocab_size]; `end_of_document` counts 0."""

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write what :func:`load_tokenizer` needs into a folder (a model's, say)."""


class ByteTokenizer:
    """Every byte is a token, 0 to 255; 256 ends a document."""

    vocab_size = 257
    end_of_document = 256
    fingerprint = "bytes-257"
    dtype = np.dtype(np.uint16)

    def encode(self, text: bytes | str) -> np.ndarray:
        """Return the bytes of a text as ids, uint16 [T]."""
        return np.frombuffer(_as_bytes(text), dtype=np.uint8).astype(self.dtype)

    def encode_pieces(self, pieces: Iterable[bytes]) -> Iterator[np.ndarray]:
        """Yield the ids of a document that comes in pieces."""
        return map(self.encode, pieces)

    def decode(self, ids: Ids) -> bytes:
        """Return the bytes that ids stand for.

        Raises:
            InputError: an id outside of the vocabulary.
        """
        values = _checked_ids(ids, self.vocab_size)
        return values[values < 256].astype(np.uint8).tobytes()

    def token_bytes(self) -> np.ndarray:
        """Return 1 for each byte and 0 for the end of a document, int64 [257]."""
        return (np.arange(self.vocab_size) < 256).astype(np.int64)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``tokenizer_config.json`` into a folder."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        _write(Path(folder, CONFIG), json.dumps({"tokenizer_class": BYTES_CLASS}, indent=2) + "\n")


class BPETokenizer:
    """A byte-pair encoding kept in a ``tokenizer.json``, trained here or elsewhere.

    Byte-level vocabularies (GPT-2, GPT-NeoX, Llama 3, Qwen) are read, and those with "▁" for a blank and
    a fallback to bytes (Llama 2). Text that spells a control token stays text. Bytes that are no UTF-8
    are encoded by the tokens of the single bytes.

    Args:
        vocabulary: the text of a ``tokenizer.json``.
        end_of_document: the token that separates documents; None takes the first of the usual names.

    Raises:
        DataError: no valid vocabulary, one whose tokens stand for no certain bytes, or one without such
            a token (or where text makes it).
    """

    def __init__(self, vocabulary: str, end_of_document: str | None = None) -> None:
        import tokenizers

        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(vocabulary)
        except Exception as error:  # the package raises nothing narrower
            raise DataError(f"expected the text of a tokenizer.json, got one that does not load ({error})") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True  # in a document "<|endoftext|>" is text
        names: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        if end_of_document is None:
            end_of_document = next((name for name in KNOWN_ENDS if name in names), None)
            if end_of_document is None:
                raise DataError(
                    "expected the name of the token that ends a document (end_of_document=), "
                    f"because the vocabulary has none of {', '.join(KNOWN_ENDS)}"
                )
        if end_of_document not in names:
            raise DataError(f"expected {end_of_document!r} in the vocabulary, but it is not there")
        self.end_of_document: int = names[end_of_document]
        self.vocab_size: int = max(names.values()) + 1
        self.dtype = np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.uint32)
        self._end_name = end_of_document
        self._text: str = self._tokenizer.to_str()
        self.fingerprint = hashlib.sha256(f"{end_of_document}\n{self._text}".encode()).hexdigest()
        self._bytes = _bytes_of_tokens(self._tokenizer, json.loads(self._text), names, self.vocab_size)
        spelled = self._bytes[self.end_of_document].decode("utf-8", "replace")
        self._bytes[self.end_of_document] = b""
        self._single = {value: index for index, value in enumerate(self._bytes) if len(value) == 1}
        if self.end_of_document in self._encode_text(f"a\n{spelled}"):
            raise DataError(f"expected a token that no text makes to end documents, got {end_of_document!r}")
        # What encoding puts before a text: in some families a blank.
        self._prefix = self.decode(self._encode_text("a")).removesuffix(b"a")

    @classmethod
    def train(cls, documents: Iterable[Document], vocab_size: int = 4096) -> BPETokenizer:
        """Train a byte-level encoding on documents, which are read one after another.

        Args:
            documents: from :func:`lavagna.data.documents`.
            vocab_size: at least 257: all bytes and the end of a document; small data may give fewer.

        Source: Sennrich et al. 2016 (byte-pair merges) on bytes, split into words as GPT-2 does.
        """
        if vocab_size < 257:
            raise InputError(f"expected vocab_size of at least 257 (all bytes and one end), got {vocab_size}")
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[END_OF_DOCUMENT],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        texts = (
            piece.decode("utf-8", "ignore") for document in documents for piece in _cut_at_lines(_slices(document.data))
        )
        tokenizer.train_from_iterator(texts, trainer=trainer)
        return cls(tokenizer.to_str(), END_OF_DOCUMENT)

    @classmethod
    def load(cls, path: str | os.PathLike[str], end_of_document: str | None = None) -> BPETokenizer:
        """Load a ``tokenizer.json``, given by its path or its folder.

        Args:
            path: the file or the folder.
            end_of_document: the token that separates documents; None takes the ``eos_token`` of the
                ``tokenizer_config.json`` beside, or else the first of the usual names.
        """
        file = Path(path, VOCABULARY) if Path(path).is_dir() else Path(path)
        config = _read_config(file.with_name(CONFIG))
        if end_of_document is None:
            named = config.get("eos_token")
            end_of_document = named.get("content") if isinstance(named, dict) else named
        return cls(_read(file), end_of_document)

    def encode(self, text: bytes | str) -> np.ndarray:
        """Return the ids of a text, [T] of `dtype`."""
        escaped = _as_bytes(text).decode("utf-8", "surrogateescape")
        ids: list[int] = []
        for part in re.split("([\udc80-\udcff])", escaped):
            if len(part) == 1 and "\udc80" <= part <= "\udcff":
                ids.append(self._id_of_byte(bytes([ord(part) - 0xDC00])))
            elif part:
                ids += self._encode_text(part)
        return np.array(ids, dtype=self.dtype)

    def encode_pieces(self, pieces: Iterable[bytes]) -> Iterator[np.ndarray]:
        """Yield the ids of one document that comes in pieces.

        Long documents are cut after a newline that stands alone, with no other white space beside it:
        there words end in every usual vocabulary. One that puts a blank in front of a text can't be cut.
        """
        if self._prefix:
            return iter([self.encode(b"".join(pieces))])
        return map(self.encode, _cut_at_lines(pieces))

    def decode(self, ids: Ids) -> bytes:
        """Return the bytes that ids stand for; control tokens stand for none.

        Raises:
            InputError: an id outside of the vocabulary.
        """
        return b"".join(self._bytes[i] for i in _checked_ids(ids, self.vocab_size).tolist())

    def token_bytes(self) -> np.ndarray:
        """Return how many bytes each id stands for, int64 [vocab_size]; control tokens count 0."""
        return np.array([len(value) for value in self._bytes], dtype=np.int64)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``tokenizer.json`` and ``tokenizer_config.json``, which ``transformers`` reads too."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": self._end_name}
        _write(Path(folder, VOCABULARY), self._text)
        _write(Path(folder, CONFIG), json.dumps(config, indent=2) + "\n")

    def _encode_text(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def _id_of_byte(self, byte: bytes) -> int:
        if byte not in self._single:
            raise DataError(f"expected UTF-8, because the vocabulary has no token for the byte {byte!r}")
        return self._single[byte]


class StreamDecoder:
    """Turns ids into text as they come and holds a character back until its last byte is there.

    >>> decoder = StreamDecoder(tokenizer)
    >>> print(decoder.push([0xC3]), decoder.push([0xA8]), decoder.finish())
     è
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Ids) -> str:
        """Return the characters that these ids complete; bytes that are no UTF-8 become U+FFFD."""
        return self._decoder.decode(self._tokenizer.decode(ids))

    def finish(self) -> str:
        """Return what is left of an unfinished character, as U+FFFD, and start anew."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


def load_tokenizer(name: str | os.PathLike[str]) -> Tokenizer:
    """Return the tokenizer of a name.

    Args:
        name: ``"bytes"``, the path of a ``tokenizer.json``, or a folder with one (or with a saved
            :class:`ByteTokenizer`), such as a model's.

    Raises:
        DataError: nothing of that name, or a folder without a tokenizer.
    """
    if name == "bytes":
        return ByteTokenizer()
    path = Path(name)
    if path.is_dir() and not (path / VOCABULARY).exists():
        if _read_config(path / CONFIG).get("tokenizer_class") == BYTES_CLASS:
            return ByteTokenizer()
        raise DataError(f"expected a tokenizer in {path}, but it has neither {VOCABULARY} nor our {CONFIG}")
    if not path.exists():
        raise DataError(f"expected 'bytes', a tokenizer.json or a model's folder, but {str(name)!r} does not exist")
    return BPETokenizer.load(path)


def _bytes_of_tokens(tokenizer: Any, spec: dict, names: dict[str, int], size: int) -> list[bytes]:
    """Return the bytes of each id: [size], b"" for control tokens and for ids without a token."""
    shape = json.dumps([spec["pre_tokenizer"], spec["decoder"]])
    if "ByteLevel" in shape:
        letters = _byte_letters()

        def to_bytes(token: str) -> bytes:
            return b"".join(letters.get(c, c.encode()) for c in token)

    elif spec["model"].get("byte_fallback") or "Metaspace" in shape:
        single = {f"<0x{value:02X}>": bytes([value]) for value in range(256)}

        def to_bytes(token: str) -> bytes:
            return single.get(token) or token.replace("▁", " ").encode()

    else:
        raise DataError(
            "expected a byte-level vocabulary, or one with a fallback to bytes, "
            f"got a {spec['model']['type']} whose tokens stand for no certain bytes"
        )
    table = [b""] * size
    for token, index in names.items():
        table[index] = to_bytes(token)
    for index, added in tokenizer.get_added_tokens_decoder().items():
        table[index] = b"" if added.special else added.content.encode()
    return table


def _byte_letters() -> dict[str, bytes]:
    """Return the letters by which byte-level vocabularies write the 256 bytes (GPT-2).

    A byte that is a visible Latin-1 character stands for itself; the others follow from U+0100 on.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [value for value in range(256) if value not in visible]
    codes = [*zip(visible, visible, strict=True), *((0x100 + i, value) for i, value in enumerate(hidden))]
    return {chr(code): bytes([value]) for code, value in codes}


def _slices(data: bytes) -> Iterator[bytes]:
    return (data[start : start + PIECE] for start in range(0, len(data), PIECE))


def _cut_at_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Join and cut pieces so that each, about 1 MiB long, ends with a newline that stands alone."""
    buffer = b""
    for piece in pieces:
        searched = max(len(buffer) - 4, 1)
        buffer += piece
        if len(buffer) < PIECE:
            continue
        cut = len(buffer) - 4  # a character has up to four bytes: the one after the newline must be whole
        while (cut := buffer.rfind(b"\n", searched, cut)) > 0:
            before = buffer[max(cut - 4, 0) : cut].decode("utf-8", "replace")[-1]
            after = buffer[cut + 1 : cut + 5].decode("utf-8", "replace")[0]
            if not before.isspace() and not after.isspace():
                yield buffer[: cut + 1]
                buffer = buffer[cut + 1 :]
                break
    if buffer:
        yield buffer


def _as_bytes(text: bytes | str) -> bytes:
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text


def _checked_ids(ids: Ids, vocab_size: int) -> np.ndarray:
    values = np.asarray(ids, dtype=np.int64)
    if values.size and not 0 <= values.min() <= values.max() < vocab_size:
        raise InputError(f"expected ids from 0 to {vocab_size - 1}, got {values.min()} to {values.max()}")
    return values


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}") from error


def _read_config(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return json.loads(_read(path))
    except json.JSONDecodeError as error:
        raise DataError(f"expected JSON in {path}, got something else ({error})") from error


def _write(path: Path, text: str) -> None:
    """Write a file so that it is either the old one or the new one, never half."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
