"""Bytes of files to batches of tokens: sources, tokenizers, memory-mapped corpora, packing."""

from __future__ import annotations

from .corpus import Corpus, prepare
from .packing import Batch, PackedBatches, StreamBatches
from .sources import Document, Source, documents, stdlib_folder
from .tokenizer import BPETokenizer, ByteTokenizer, StreamDecoder, Tokenizer, load_tokenizer

__all__ = [
    "BPETokenizer",
    "Batch",
    "ByteTokenizer",
    "Corpus",
    "Document",
    "PackedBatches",
    "Source",
    "StreamBatches",
    "StreamDecoder",
    "Tokenizer",
    "documents",
    "load_tokenizer",
    "prepare",
    "stdlib_folder",
]
