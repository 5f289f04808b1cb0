"""What is drawn of each mixer: its transitions, or its cache, over the tokens of a text."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...errors import InputError
from ...mixers.registry import MIXERS
from ...models import LanguageModel, LanguageModelConfig
from .transitions import Recorded, record, transitions

__all__ = ["MOST", "WIDTH", "View", "view"]

MOST = 8  # tokens that are drawn
WIDTH = 32  # D of the models that are made for it

#: what is smaller than the default, so that a matrix can be seen
SMALL = {"mamba": {"state_size": 8}, "mamba2": {"state_size": 8}, "s4d": {"state_size": 16}}


class View(NamedTuple):
    """One mixer on T tokens.

    Fields:
        mixer: its name.
        matrices: the transition of each token, head or channel 1, [K, K]; complex where the state is.
        cache: or, where nothing is carried on, the keys of head 1 kept after each token, [K, tokens kept],
            divided by the largest.
    """

    mixer: str
    matrices: list[Tensor]
    cache: list[Tensor]

    @property
    def drawn(self) -> list[Tensor]:
        return self.matrices or self.cache


@torch.no_grad()
def view(tokens: Tensor, model: LanguageModel | None = None, *, seed: int = 0) -> list[View]:
    """Run tokens through mixers and read off what carries each memory.

    Args:
        tokens: int [T].
        model: whose mixers are looked at, each kind in its lowest layer. None makes a model of one layer for each
            registered mixer.
        seed: of models that are made.

    Returns:
        A view of each mixer, in the registry's order.

    Raises:
        InputError: there are no tokens, or an attention keeps nothing, since it is not causal.
    """
    if not len(tokens):
        raise InputError("zoo: expected a text of at least one token, got none")
    found = []
    for name in MIXERS:
        if model is not None and name not in model.config.layers:
            continue
        shown = _made(name, seed) if model is None else model
        place = shown.config.layers.index(name)
        found.append(_view(name, _memory_call(shown, place, tokens)))
    return found


def _made(name: str, seed: int) -> LanguageModel:
    options = {name: SMALL[name]} if name in SMALL else {}
    config = LanguageModelConfig(vocab_size=257, width=WIDTH, layers=(name,), mixers=options)
    return LanguageModel(config, seed=seed).eval()


def _memory_call(model: LanguageModel, place: int, tokens: Tensor) -> Recorded:
    """The call that reads and writes the memory of the mixer in block `place`: its only one beside convolutions."""
    mixer = model.stack()[place].mixer
    found: list[Recorded] = []
    with record() as calls:
        hooks = (
            mixer.register_forward_pre_hook(lambda *_: calls.clear()),
            mixer.register_forward_hook(lambda *_: found.extend(calls)),
        )
        try:
            model(tokens[None])
        finally:
            for hook in hooks:
                hook.remove()
    (memory,) = (recorded for recorded in found if recorded.table.op != "short_conv")
    return memory


def _view(name: str, recorded: Recorded) -> View:
    if recorded.table.op != "attention":
        return View(name, list(transitions(recorded)[:, 0]), [])
    if not recorded.call.options["causal"]:
        raise InputError("zoo: expected attention that is causal and so keeps a cache, got one with causal=False")
    table, call = recorded
    kept = []
    for end in range(1, call.tokens + 1):
        part = call._replace(timed={key: x[:, :end] for key, x in call.timed.items()})
        read = table.run(part, form="auto", impl="auto", dtype=call.timed["q"].dtype, return_state=True)
        kept.append(read.state.keys[0, :, 0].T)
    most = max((float(keys.abs().amax()) for keys in kept if keys.numel()), default=1.0)
    return View(name, [], [keys / (most or 1.0) for keys in kept])
