"""The experiments, one line each: name -> where it is, and what it asks."""

from __future__ import annotations

from importlib import import_module

from ...errors import InputError, unknown_name
from .experiment import Experiment

__all__ = ["EXPERIMENTS", "QUESTIONS", "chosen", "each_once", "load"]

EXPERIMENTS: dict[str, tuple[str, str]] = {
    "equals-torch": ("equals_torch:EXPERIMENT", "Is attention from scratch the attention of torch?"),
    "scale": ("scale:EXPERIMENT", "What does dividing by √d_k decide?"),
    "mask": ("mask:EXPERIMENT", "What does a mask after the softmax do wrong?"),
    "heads": ("heads:EXPERIMENT", "Do heads cost parameters, and does attention know the order of its tokens?"),
    "parameters": ("parameters:EXPERIMENT", "How many numbers does a block learn?"),
    "gradcheck": ("gradcheck:EXPERIMENT", "Are the gradients right, and where do differences mislead?"),
    "quadratic": ("quadratic:EXPERIMENT", "What does twice the context cost?"),
    "cache": ("cache:EXPERIMENT", "What does the key–value cache save, and what does it hold?"),
    "copy-sort": ("copy_sort:EXPERIMENT", "Can it be trained to copy and to sort?"),
    "ablations": ("ablations:EXPERIMENT", "What can be left out?"),
    "attention-map": ("attention_map:EXPERIMENT", "Where does a trained decoder look?"),
    "why-scale": ("why_scale:EXPERIMENT", "When does leaving out √d_k hurt training?"),
    "depth": ("depth:EXPERIMENT", "Why do deep decoders have their norms before the branches?"),
    "position-leak": ("position_leak:EXPERIMENT", "Does a causal decoder without positions know where it is?"),
    "not-an-explanation": ("not_an_explanation:EXPERIMENT", "Does a map of weights explain a prediction?"),
    "memory": ("memory:EXPERIMENT", "What does a memory of fixed size keep?"),
}

#: the page of an experiment -> what it asks
QUESTIONS = {
    **{name: question for name, (_, question) in EXPERIMENTS.items()},
    "copy-sort-torch": "Which mixers can be trained to copy and to sort?",
}


def chosen(names: str) -> list[str]:
    """The experiments of "all", a name, or names with commas between.

    Raises:
        InputError: a name is none of an experiment, or stands there twice, or all stands beside others.
    """
    if names == "all":
        return list(EXPERIMENTS)
    wanted = each_once("experiment", names)
    for name in wanted:
        if name in ("all", "list"):
            raise InputError(f"expected {name} alone, or names of experiments, got {names!r}")
        if name not in EXPERIMENTS:
            raise InputError(unknown_name("experiment", name, (*EXPERIMENTS, "all", "list")))
    return wanted


def each_once(kind: str, names: str) -> list[str]:
    """Names with commas between.

    Raises:
        InputError: a name stands there twice.
    """
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if wanted.count(name) > 1:
            raise InputError(f"expected each {kind} once, got {name} {wanted.count(name)} times")
    return wanted


def load(name: str) -> Experiment:
    """The experiment of a name."""
    module, constant = EXPERIMENTS[name][0].split(":")
    return getattr(import_module(f"{__package__}.{module}"), constant)
