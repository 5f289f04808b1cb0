"""What the stages of a comparison share: settings, folders, data, and the size of each candidate."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..data import Corpus, PackedBatches
from ..evaluation import windows_per_part
from ..models import LanguageModel
from ..training import DATA, make_tokenizer, open_corpus
from .candidates import parse_candidates
from .config import CompareConfig
from .sizing import fit
from .stages import Stages, Tick, Watcher

__all__ = ["MODELS", "WORK", "Parts", "Study"]

WORK, MODELS = "work", "models"

#: of how many times what is scored a held-out part need not be larger, however large the data
ENOUGH = 20


class Parts(NamedTuple):
    """The data: for training, for choosing the learning rate, for the verdict."""

    training: Corpus
    tune: Corpus
    held_out: Corpus


class Study:
    """A comparison with its data read and its candidates sized.

    Args:
        config: what was asked.
        folder: of the comparison.
        device: where to compute.
        watcher: told of each stage.

    Attributes:
        data: the three parts of the text.
        held_out_share: of the data, as ``Corpus.split`` takes it.
        candidates, sizes: what is compared, and the configuration of each.
        part: windows of a part, where there are too few held-out documents to draw from; else None.
    """

    def __init__(self, config: CompareConfig, folder: Path, device: torch.device, watcher: Watcher) -> None:
        self.config, self.folder, self.device = config, folder, device
        self.work = folder / WORK
        self.stages = Stages(self.work / "stages", watcher)
        self.candidates = parse_candidates(config.candidates)
        self.data = self._split(self._corpus())
        self.sizes = [
            fit(
                candidate,
                parameters=config.parameters,
                depth=config.depth,
                vocab_size=self.data.training.tokenizer.vocab_size,
                options=config.model,
            )
            for candidate in self.candidates
        ]
        self.part = windows_per_part(self.data.held_out, config.context)

    def _corpus(self) -> Corpus:
        """The tokens, made once: a study goes on with the text it began with."""
        folder, config = self.work / DATA, self.config.data

        def build(tick: Tick) -> dict[str, Any]:
            corpus = open_corpus(
                config, make_tokenizer(config), folder, lambda done, total: tick(done / max(total, 1), "")
            )
            return {"bytes": corpus.n_bytes, "documents": len(corpus)}

        self.stages.once(
            "reading data", 0, build, lambda made: f"{made['bytes']:,} bytes, documents: {made['documents']:,}"
        )
        return Corpus.open(folder)

    def _split(self, corpus: Corpus) -> Parts:
        config = self.config
        enough = ENOUGH * config.evaluate_tokens / corpus.n_tokens
        self.held_out_share = min(config.held_out, enough)
        rest, held_out = corpus.split(self.held_out_share)
        training, tune = rest.split(min(config.tune / (1 - config.held_out), enough))
        PackedBatches(training, config.context, config.batch_size)  # refuses text shorter than one window
        return Parts(training, tune, held_out)

    def first_equal(self, i: int) -> int:
        """The first candidate of the same configuration."""
        return next(j for j, sized in enumerate(self.sizes) if sized.config == self.sizes[i].config)

    def run_folder(self, i: int, seed: int) -> Path:
        """Where a run is kept until the study is over."""
        return self.work / "runs" / f"{self.candidates[i].folder}-{seed}"

    def model(self, i: int, seed: int = 0) -> LanguageModel:
        """A trained model, ready to be used."""
        return LanguageModel.load(self.run_folder(i, seed) / "model", device=self.device).eval()

    def title(self, i: int, what: str, seed: int) -> str:
        """The name of a stage."""
        run = f", run {seed + 1} of {self.config.seeds}" if self.config.seeds > 1 else ""
        return f"{self.candidates[i].folder}, {what}{run}"
