"""The state of attention: keys and values of the tokens read so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ...errors import StateError

__all__ = ["KVCache"]


class _Memory:
    """Keys and values, shared by the caches that follow one another.

    Only memory made by :meth:`KVCache._with_room` has slots in reserve, and only those are ever written.

    Fields:
        keys, values: [B, capacity, G, ·].
        turn: how often it has been written; only the cache that saw the last write may write again.
    """

    __slots__ = ("keys", "turn", "values")

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys = keys
        self.values = values
        self.turn = 0


class KVCache:
    """Keys and values of the tokens that each row has read, oldest first, from slot 0 on.

    A cache never changes: reading on gives a new one. Both may share memory, for a token is appended in place
    where no other cache can see it, so that a step costs nothing that grows with the context.

    Args:
        keys: [B, S, G, K], zero behind the last token of a row.
        values: [B, S, G, V], the same.
        seen: int64 [B], tokens read by each row. The last min(seen, S) of them are kept.
    """

    __slots__ = ("_counts", "_memory", "_slots", "_start", "_turn")

    def __init__(self, keys: Tensor, values: Tensor, seen: Tensor) -> None:
        counts = tuple(seen.tolist())
        longest = max(counts, default=0)
        if keys.shape[1] == values.shape[1] and longest < keys.shape[1]:
            keys, values = keys[:, :longest], values[:, :longest]
        self._set(_Memory(keys, values), 0, max(keys.shape[1], values.shape[1]), counts)

    def _set(self, memory: _Memory, start: int, slots: int, counts: tuple[int, ...]) -> None:
        self._memory = memory
        self._turn = memory.turn
        self._start = start
        self._slots = slots
        self._counts = counts

    @classmethod
    def _of(cls, memory: _Memory, start: int, slots: int, counts: tuple[int, ...]) -> KVCache:
        cache = cls.__new__(cls)
        cache._set(memory, start, slots, counts)
        return cache

    @classmethod
    def empty(
        cls,
        batch: int,
        groups: int,
        key_dim: int,
        value_dim: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> KVCache:
        """The cache of `batch` rows that have read nothing."""
        keys = torch.empty(batch, 0, groups, key_dim, dtype=dtype, device=device)
        values = torch.empty(batch, 0, groups, value_dim, dtype=dtype, device=device)
        return cls._of(_Memory(keys, values), 0, 0, (0,) * batch)

    @property
    def keys(self) -> Tensor:
        """[B, S, G, K], S the most that any row keeps; zero behind the last token of a row."""
        return self._visible(self._memory.keys)

    @property
    def values(self) -> Tensor:
        """[B, S, G, V], as the keys."""
        return self._visible(self._memory.values)

    @property
    def seen(self) -> Tensor:
        """int64 [B], tokens read by each row."""
        return torch.tensor(self._counts, dtype=torch.int64, device=self._memory.keys.device)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens kept of each row."""
        return tuple(min(count, self._slots) for count in self._counts)

    def __repr__(self) -> str:
        return f"KVCache(keys={list(self.keys.shape)}, values={list(self.values.shape)}, seen={self._counts})"

    def map_tensors(self, function: Callable[..., Tensor], *others: KVCache) -> KVCache:
        """Apply a function to keys, values and seen (see lavagna.ops.tree).

        Others of fewer or more slots are padded to the most: rows of different lengths can be joined.

        Raises:
            StateError: a row of some cache keeps fewer tokens than it would have to in a longer one.
        """
        if not others:
            return KVCache(function(self.keys), function(self.values), function(self.seen))
        caches = (self, *others)
        slots = max(cache._slots for cache in caches)
        for cache in caches:
            if any(min(count, slots) > cache._slots for count in cache._counts):
                raise StateError(
                    f"expected caches that keep the same number of tokens, got one that keeps the last "
                    f"{cache._slots} of {max(cache._counts)} beside one that keeps {slots}"
                )
        return KVCache(
            function(*(_padded(cache.keys, slots) for cache in caches)),
            function(*(_padded(cache.values, slots) for cache in caches)),
            function(*(cache.seen for cache in caches)),
        )

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Keys, values and seen by name (see lavagna.ops.tree)."""
        yield "keys", self.keys
        yield "values", self.values
        yield "seen", self.seen

    def fits(self, rows: int, k: Tensor, v: Tensor) -> bool:
        """Whether `rows` rows of the keys k [·, T, G, K] and values v [·, T, G, V] can follow."""
        keys, values = self._memory.keys, self._memory.values
        return (
            len(self._counts) == keys.shape[0] == values.shape[0] == rows
            and keys.shape[1] == values.shape[1]
            and keys.shape[2:] == k.shape[2:]
            and values.shape[2:] == v.shape[2:]
            and keys.dtype == values.dtype == k.dtype
            and keys.device == k.device
        )

    def keeps(self, window: int | None) -> bool:
        """Whether every token is kept that a next one may see."""
        return all((count if window is None else min(count, window - 1)) <= self._slots for count in self._counts)

    def read(self, keys: Tensor, values: Tensor, counts: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
        """What :meth:`append` returns first, without a next cache."""
        totals = self._totals(keys.shape[1], counts)
        return self._joined(self._memory.keys, keys, totals), self._joined(self._memory.values, values, totals)

    def append(
        self,
        keys: Tensor,
        values: Tensor,
        counts: Sequence[int] | None = None,
        *,
        keep: int | None = None,
        in_place: bool = False,
    ) -> tuple[Tensor, Tensor, KVCache]:
        """Read on.

        Args:
            keys, values: [B, T, G, ·] of the new tokens.
            counts: how many of the T are tokens, row by row, where not all are; zeros stand behind them.
            keep: the most tokens that the next cache keeps of a row; None: all.
            in_place: the new tokens may be written into memory that this cache has in reserve. Not while
                autograd records: it may hold that memory for its backward pass.

        Returns:
            keys and values [B, S', G, ·] of the kept and the new tokens together, from slot 0 on in each row,
            finite behind the last; and the next cache.
        """
        new = keys.shape[1]
        held = self.lengths
        totals = self._totals(new, counts)
        seen = tuple(c + t - h for c, t, h in zip(self._counts, totals, held, strict=True))
        longest = max(totals, default=0)
        starts = [0 if keep is None else max(total - keep, 0) for total in totals]
        level = len(set(held)) <= 1  # the new tokens stand at the same slots in every row
        dropped = starts[0] if len(set(starts)) == 1 else None  # tokens to forget, where rows agree

        one_each = new == 1 and counts is None and dropped == 0
        if in_place and dropped is not None and (level or one_each) and (keep is None or new < keep):
            memory, start = self._with_room(longest - self._slots)
            first, last = start + self._slots, start + longest
            for whole, part in ((memory.keys, keys), (memory.values, values)):
                if level:
                    whole[:, first:last] = part[:, : last - first]
                else:
                    whole[:, first:last] = 0
                    whole[list(range(len(held))), [start + h for h in held]] = part[:, 0]
            memory.turn += 1
            cache = KVCache._of(memory, start + dropped, longest - dropped, seen)
            return memory.keys[:, start:last], memory.values[:, start:last], cache

        joined = self.read(keys, values, counts)
        if dropped is None:
            pairs = ((self._memory.keys, keys), (self._memory.values, values))
            kept = [self._joined(old, part, totals, starts) for old, part in pairs]
        else:
            kept = [whole[:, dropped:longest] for whole in joined]
            if dropped or self._slots == 0:  # a view of what is longer, or of what the caller owns
                kept = [part.clone(memory_format=torch.contiguous_format) for part in kept]
        memory = _Memory(kept[0], kept[1])
        return joined[0], joined[1], KVCache._of(memory, 0, kept[0].shape[1], seen)

    def _totals(self, new: int, counts: Sequence[int] | None) -> list[int]:
        """Tokens of each row with the new ones."""
        held = self.lengths
        return [h + n for h, n in zip(held, (new,) * len(held) if counts is None else counts, strict=True)]

    def _visible(self, whole: Tensor) -> Tensor:
        if self._start == 0 and self._slots == whole.shape[1]:
            view = whole
        else:
            view = whole[:, self._start : self._start + self._slots]
        if self._turn != self._memory.turn and any(count < self._slots for count in self._counts):
            # A cache that came later wrote its tokens behind our shorter rows.
            real = torch.arange(self._slots, device=whole.device) < self.seen[:, None]
            view = torch.where(real[..., None, None], view, 0)
        return view

    def _with_room(self, more: int) -> tuple[_Memory, int]:
        """Memory that we alone may write, with room for `more` slots behind ours, and the slot where ours begin."""
        memory = self._memory
        end = self._start + self._slots + more
        frozen = memory.keys.is_inference() and not torch.is_inference_mode_enabled()
        if memory.turn == self._turn and end <= memory.keys.shape[1] and not frozen:
            return memory, self._start
        # Twice what is needed: however many tokens follow, each is copied about once.
        capacity = 2 * (self._slots + more)
        fresh = []
        for old in (self.keys, self.values):
            rows, _, groups, dim = old.shape
            # The slots of one group stand side by side, as the products over them want it.
            whole = old.new_empty(rows, groups, capacity, dim).transpose(1, 2)
            whole[:, : self._slots] = old
            fresh.append(whole)
        return _Memory(fresh[0], fresh[1]), 0

    def _joined(self, whole: Tensor, new: Tensor, totals: list[int], starts: list[int] | None = None) -> Tensor:
        """Old and new tokens of each row in one piece: `totals` of them, without the first `starts`."""
        held = self.lengths
        if self._slots == 0 and starts is None:
            return new
        parts = torch.cat([self._visible(whole), new], 1)
        if len(set(held)) <= 1 and starts is None:
            return parts
        starts = starts or [0] * len(held)
        old, total, start = torch.tensor([held, totals, starts], device=new.device)[..., None]
        longest = max(total - start for total, start in zip(totals, starts, strict=True))
        token = start + torch.arange(longest, device=new.device)
        place = torch.where(token < old, token, token - old + self._slots).clamp(max=parts.shape[1] - 1)
        place = place + parts.shape[1] * torch.arange(len(held), device=new.device)[:, None]
        taken = parts.flatten(0, 1).index_select(0, place.flatten()).unflatten(0, place.shape)
        return torch.where((token < total)[..., None, None], taken, 0)


def _padded(x: Tensor, slots: int) -> Tensor:
    missing = slots - x.shape[1]
    return torch.cat([x, x.new_zeros(x.shape[0], missing, *x.shape[2:])], 1) if missing else x
