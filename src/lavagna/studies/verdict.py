"""The verdict in plain words: what was measured, how sure it is, what it does not show.

Every sentence is computed from the results; none is there for a certain outcome alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..report.words import bits, count, joined, percent, plural, short, size
from .config import TOKENS_PER_PARAMETER
from .differences import ASSUMED_SPREAD

__all__ = ["KINDS", "verdict"]

#: kinds of statements, in their order
KINDS = ("warning", "headline", "finding", "certainty", "limit")

Results = Mapping[str, Any]
Candidate = Mapping[str, Any]
Statement = dict[str, str]


def verdict(results: Results) -> list[Statement]:
    """What the results say.

    Args:
        results: what results.json holds, the verdict apart.

    Returns:
        Statements ``{"kind": one of KINDS, "topic": what it is about, "text": sentences}``, ordered by kind.
    """
    found = [
        {"kind": kind, "topic": topic, "text": text}
        for part in (_quality, _bigrams, _gzip, _beyond, _speed, _memory, _together, _seeds, _documents, _limits)
        for kind, topic, text in part(results)
    ]
    return sorted(found, key=lambda statement: KINDS.index(statement["kind"]))


Part = Iterator[tuple[str, str, str]]


def _names(candidates: Sequence[Candidate]) -> list[str]:
    return [candidate["name"] for candidate in candidates]


def _value(candidate: Candidate) -> float:
    return candidate["bits_per_byte"]["value"]


def _with_values(candidates: Sequence[Candidate]) -> str:
    return joined([f"{c['name']} ({bits(_value(c))})" for c in sorted(candidates, key=_value)])


def _surely_worse(results: Results, name: str) -> bool:
    """Whether some other candidate needs surely fewer bits."""
    return any(
        difference["sure"] and (difference["a"] if difference["value"] > 0 else difference["b"]) == name
        for difference in results["differences"]
    )


def _contenders(results: Results) -> list[Candidate]:
    """Those that may be best: no other one is surely better."""
    return [c for c in results["candidates"] if not _surely_worse(results, c["name"])]


# --- quality -------------------------------------------------------------------------------------------------


def _quality(results: Results) -> Part:
    candidates = sorted(results["candidates"], key=_value)
    best, contenders = candidates[0], _contenders(results)
    if len(candidates) == 1:
        yield (
            "headline",
            "quality",
            f"{best['name']} needs {bits(_value(best))} bits per byte of held-out text"
            f"{_between(best['bits_per_byte'])}. It is the only candidate, so there is nothing to compare it with but "
            "what needs no training.",
        )
        return
    if len(contenders) == 1:
        second = candidates[1]
        found = _difference(results, second["name"], best["name"])
        yield (
            "headline",
            "quality",
            f"{best['name']} predicts held-out text best: it needs {bits(_value(best))} bits per byte, "
            f"{bits(found['value'])} ({percent(found['value'] / _value(second))}) fewer than {second['name']}, the "
            f"next. The difference is {_sure(results)}: its 95 % interval is {bits(found['low'])} to "
            f"{bits(found['high'])}.",
        )
        return
    behind = [c for c in candidates if c not in contenders]
    which = "which candidate" if not behind else f"which of {joined(_names(contenders))}"
    text = (
        f"Cannot tell {which} predicts held-out text best: in bits per byte, {_with_values(contenders)} differ by no "
        "more than chance may do."
    )
    if behind:
        text += f" Surely not best: {_with_values(behind)}."
    yield "headline", "quality", text


def _sure(results: Results) -> str:
    return "sure, as far as one seed can tell" if results["seed_spread"]["deviation"] is None else "sure"


def _difference(results: Results, a: str, b: str) -> dict[str, float]:
    """The difference a − b, whichever way round it was measured."""
    for found in results["differences"]:
        if (found["a"], found["b"]) == (a, b):
            return {key: found[key] for key in ("value", "low", "high")}
        if (found["a"], found["b"]) == (b, a):
            return {"value": -found["value"], "low": -found["high"], "high": -found["low"]}
    raise AssertionError(f"no difference of {a} and {b}")


def _between(interval: Mapping[str, Any]) -> str:
    if interval["low"] is None:
        return ""
    return f" (95 % interval {bits(interval['low'])} to {bits(interval['high'])})"


def _bigrams(results: Results) -> Part:
    candidates = results["candidates"]
    table = f"a table of which token follows which ({bits(results['baselines']['bigram']['value'])} bits per byte)"
    worse = _names([c for c in candidates if c["against_bigrams"]["value"] >= 0])
    unsure = _names(
        [c for c in candidates if c["against_bigrams"]["value"] < 0 and not (c["against_bigrams"]["high"] or 0) < 0]
    )
    for names, said, learnt, means in (
        (worse, f"{plural(len(worse), 'does', 'do')} not even beat", "next to nothing", "nothing"),
        (unsure, "cannot be told from", "very little", "little"),
    ):
        if names:
            it, its = plural(len(names), "it has", "they have"), plural(len(names), "its", "their")
            yield (
                "warning",
                "bigrams",
                f"{joined(names)} {said} {table}: with this budget {it} learnt {learnt}, and {its} place in this "
                f"comparison means {means}. Train on more tokens, or with fewer parameters.",
            )
    if not worse and not unsure:
        who = "It beats" if len(candidates) == 1 else "All candidates beat"
        yield "finding", "bigrams", f"{who} {table}."


def _gzip(results: Results) -> Part:
    packed, candidates = results["baselines"]["gzip"], results["candidates"]
    below = _names([c for c in candidates if _value(c) < packed])
    if not below:
        who = "it needs more" if len(candidates) == 1 else "no candidate gets there with this budget"
    elif len(below) == len(candidates):
        who = "it needs fewer" if len(candidates) == 1 else "all candidates need fewer"
    else:
        who = f"only {joined(below)} {plural(len(below), 'needs', 'need')} fewer"
    yield "finding", "gzip", f"gzip -9 packs all of the held-out text into {bits(packed)} bits per byte; {who}."


def _beyond(results: Results) -> Part:
    """Whether quality holds at positions that no training window had."""
    context = results["settings"]["context"]
    groups: dict[str, list[str]] = {"worse": [], "same": [], "better": []}
    spans = None
    for candidate in results["candidates"]:
        change = candidate["beyond"]
        if change is None or change["low"] is None:
            continue
        spans = change["near"], change["far"]
        way = "worse" if change["low"] > 0 else "better" if change["high"] < 0 else "same"
        groups[way].append(f"{candidate['name']} ({change['value']:+.3f})")
    if spans is None:
        return
    said = [
        f"{joined(names)} {plural(len(names), one, many)}"
        for names, one, many in (
            (groups["worse"], "needs more bits per byte", "need more bits per byte"),
            (groups["same"], "shows no sure change", "show no sure change"),
            (groups["better"], "needs fewer bits per byte", "need fewer bits per byte"),
        )
        if names
    ]
    yield (
        "finding",
        "beyond",
        f"Past the {count(context)} tokens of a training window, at positions {_span(spans[1])} compared with "
        f"{_span(spans[0])} of the same documents: {'; '.join(said)}.",
    )


def _span(at: Mapping[str, Any]) -> str:
    return f"{count(at['from'])} to {count(at['to'] - 1)}"


# --- speed and memory ----------------------------------------------------------------------------------------


def _fastest(candidates: Sequence[Candidate], speed: Mapping[str, Mapping[str, float]]) -> list[Candidate]:
    """The fastest and those whose quartiles reach up to its own."""
    best = max(speed.values(), key=lambda s: s["median"])
    return [c for c in candidates if speed[c["name"]]["high"] >= best["low"]]


def _training(candidates: Sequence[Candidate]) -> dict[str, Mapping[str, float]]:
    return {c["name"]: c["speed"]["training"] for c in candidates}


def _generation(candidates: Sequence[Candidate]) -> dict[str, Mapping[str, float]]:
    """Where most was read before."""
    return {c["name"]: c["speed"]["generation"][-1] for c in candidates}


def _longest(results: Results) -> int:
    return results["candidates"][0]["memory"][-1]["context"]


def _speed(results: Results) -> Part:
    candidates, longest = results["candidates"], _longest(results)
    after = f"after reading {count(longest)} tokens"
    if len(candidates) == 1:
        name = candidates[0]["name"]
        training, generation = _training(candidates)[name]["median"], _generation(candidates)[name]["median"]
        yield (
            "finding",
            "speed",
            f"It trains at {count(training)} tokens/s and, {after}, generates {count(generation)} tokens/s.",
        )
        return
    for what, speed in (("training", _training(candidates)), (f"generating {after}", _generation(candidates))):
        first = _names(_fastest(candidates, speed))
        slowest = min(speed, key=lambda name: speed[name]["median"])
        fastest = max(speed.values(), key=lambda s: s["median"])["median"]
        text = f"In {what}, {joined(first)} {plural(len(first), 'is fastest', 'are about equally fast')}: "
        text += f"{count(fastest)} tokens/s"
        if slowest not in first:
            text += f", {fastest / speed[slowest]['median']:.1f} times as fast as {slowest}, the slowest"
        yield "finding", "speed", f"{text}."


def _smallest(candidates: Sequence[Candidate]) -> list[Candidate]:
    least = min(c["memory"][-1]["bytes"] for c in candidates)
    return [c for c in candidates if c["memory"][-1]["bytes"] == least]


def _memory(results: Results) -> Part:
    candidates = results["candidates"]
    first, last = candidates[0]["memory"][0]["context"], _longest(results)
    growing = [c for c in candidates if c["memory"][-1]["bytes"] > c["memory"][0]["bytes"]]
    steady = [c for c in candidates if c not in growing]
    said = [
        f"the state of {c['name']} grows from {size(c['memory'][0]['bytes'])} to {size(c['memory'][-1]['bytes'])}"
        for c in growing
    ] + [f"that of {c['name']} stays at {size(c['memory'][-1]['bytes'])}" for c in steady]
    said[0] = said[0].replace("that of", "the state of")
    if first == last:
        text = joined([f"the state of {c['name']} has {size(c['memory'][-1]['bytes'])}" for c in candidates])
        yield "finding", "memory", f"After {count(last)} tokens read, {text}."
    else:
        yield "finding", "memory", f"From {count(first)} to {count(last)} tokens read, {joined(said)}."


def _together(results: Results) -> Part:
    """Whether one candidate is first in everything."""
    candidates = results["candidates"]
    if len(candidates) == 1:
        return
    first = {
        "bits per byte": _contenders(results),
        "speed of training": _fastest(candidates, _training(candidates)),
        f"speed of generation after {count(_longest(results))} tokens": _fastest(candidates, _generation(candidates)),
        "size of the state there": _smallest(candidates),
    }
    everywhere = [c["name"] for c in candidates if all(c in winners for winners in first.values())]
    if everywhere:
        who = (
            f"{everywhere[0]} is first, or cannot be told from the first,"
            if len(everywhere) == 1
            else (f"{joined(everywhere)} are first, or cannot be told from the first,")
        )
        yield "finding", "together", f"{who} in all of these: {joined(list(first))}."
    else:
        said = "; ".join(f"{what}: {joined(_names(winners))}" for what, winners in first.items())
        yield (
            "finding",
            "together",
            f"No candidate is first in everything. First, or not to be told from it, in {said}.",
        )


# --- how sure, and what is not shown -------------------------------------------------------------------------


def _seeds(results: Results) -> Part:
    seeds, spread = results["settings"]["seeds"], results["seed_spread"]
    candidates = results["candidates"]
    each = "it" if len(candidates) == 1 else "each candidate"
    made = f"One run, with one seed, was made of {each}." if seeds == 1 else f"{seeds} runs were made of {each}."
    if spread["deviation"] is None:
        yield (
            "certainty",
            "seeds",
            f"{made} How much another seed would change was not measured: two runs that differ in nothing else were "
            f"assumed to be within {percent(ASSUMED_SPREAD)} of each other, so no smaller difference counts as sure. "
            "Three seeds (--seeds 3) would measure it.",
        )
    else:
        few = "; with so few repetitions the intervals are wide" if spread["repeats"] < 4 else ""
        yield (
            "certainty",
            "seeds",
            f"{made} Runs that differ in their seed alone have a standard deviation of {bits(spread['deviation'])} "
            f"bits per byte, estimated from {spread['repeats']} "
            f"{plural(spread['repeats'], 'repetition', 'repetitions')}{few}. Intervals of differences cover seeds and "
            "documents together.",
        )
    for a, b in _equal(candidates):
        found = _difference(results, a, b)
        yield (
            "certainty",
            "seeds",
            f"{a} and {b} are the same architecture with different seeds: the {bits(abs(found['value']))} bits per "
            "byte between them are what chance does.",
        )
    pairs = len(results["differences"])
    if pairs > 1:
        yield (
            "certainty",
            "seeds",
            f"Each of the {pairs} differences has a 95 % interval of its own: about one in twenty misses the truth.",
        )


def _equal(candidates: Sequence[Candidate]) -> Iterator[tuple[str, str]]:
    for i, b in enumerate(candidates):
        for a in candidates[:i]:
            if a["config"] == b["config"] and a["learning_rate"]["chosen"] == b["learning_rate"]["chosen"]:
                yield a["name"], b["name"]


def _documents(results: Results) -> Part:
    data = results["data"]
    documents, parts = data["scored_documents"], data["parts"]
    text = (
        f"Quality was measured on {count(data['scored_bytes'])} bytes of {count(documents)} "
        f"{plural(documents, 'document', 'documents')} that no model was trained on and no choice was made by."
    )
    if data["tokenizer"].startswith("bpe:"):
        text += " The tokenizer, however, was made from all of the text."
    if parts is not None:
        text += (
            f" For so few documents the intervals draw {count(parts)} parts of them again: they say how sure a result "
            f"is on more of {plural(documents, 'this document', 'these documents')}, not on others."
        )
    yield "certainty", "documents", text


def _limits(results: Results) -> Part:
    candidates, settings, data = results["candidates"], results["settings"], results["data"]
    parameters = sum(c["parameters"] for c in candidates) / len(candidates)
    ratio = data["tokens_per_run"] / parameters
    text = (
        f"Each model has about {short(parameters)} parameters and read {short(data['tokens_per_run'])} tokens, "
        f"{ratio:.1f} for each parameter. "
    )
    if ratio < 0.9 * TOKENS_PER_PARAMETER:
        text += (
            f"That is short: about {TOKENS_PER_PARAMETER} are usual. What would be best after longer training, or at "
            "another size, is not shown."
        )
    else:
        text += "What would be best at another size is not shown."
    if data["passes"] > 1.5:
        text += f" The training text was read {data['passes']:.1f} times over; with more text the order may be another."
    yield "limit", "budget", text
    yield "limit", "learning rate", _learning_rates(candidates, settings)
    machine = results["machine"]
    yield (
        "limit",
        "speed",
        f"Speeds are those of the implementations that were at hand on this machine ({machine['processor']}, "
        f"{machine['device']}, {machine['threads']} {plural(machine['threads'], 'thread', 'threads')}); on another "
        "machine, or with kernels made for it, their order may be another.",
    )


def _learning_rates(candidates: Sequence[Candidate], settings: Mapping[str, Any]) -> str:
    rates = sorted(settings["learning_rates"])
    who = "The candidate" if len(candidates) == 1 else "All candidates"
    if len(rates) == 1:
        text = (
            f"{who} had the learning rate {rates[0]:g}, which was not searched for here; another may suit one better."
        )
    else:
        text = (
            f"Learning rates were chosen among {joined([f'{rate:g}' for rate in rates])} after "
            f"{percent(settings['search'])} of the tokens, on text apart from training and held-out text."
        )
    for edge, beyond in (("lowest", "a lower"), ("highest", "a higher")):
        at = _names([c for c in candidates if c["learning_rate"]["edge"] == edge])
        if at:
            text += f" For {joined(at)} the {edge} one was best, so {beyond} one may be better still."
    diverged = []
    for candidate in candidates:
        tried = candidate["learning_rate"]["tried"]
        if at := [f"{attempt['rate']:g}" for attempt in tried if attempt["bits_per_byte"] is None]:
            diverged.append(f"{candidate['name']} at {joined(at)}")
    if diverged:
        text += f" Training diverged for {joined(diverged)}."
    return f"{text} All other settings are the same for all, and tuned for none."
