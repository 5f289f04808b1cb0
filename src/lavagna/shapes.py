"""The legend of dimension letters, and the one check that reads it.

======  =====================================================
letter  meaning
======  =====================================================
B       batch
T       time (tokens)
S       slots of a key-value cache
H       heads of queries and keys
HV      heads of values, a multiple of H
G       groups of heads that share k and v (attention), or B and C (Mamba)
K       key dimension of a head
V       value dimension of a head
D       width (channels)
N       state size of a state-space model
W       width of a short convolution
C       chunk length
M       number of packed sequences (M + 1 boundaries in cu_seqlens)
======  =====================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .errors import ShapeError

__all__ = ["Dims"]


class Dims:
    """Sizes of the letters seen so far in one call.

    Each :meth:`bind` matches one tensor against the shapes it may have. A letter met for the first
    time takes the tensor's size; met again it must agree. A digit stands for itself.

    >>> dims = Dims("gated_linear")
    >>> dims.bind("q", q, "B T H K")
    >>> dims.bind("log_decay", log_decay, "HV", "B T HV", "B T HV K")
    """

    def __init__(self, caller: str, **sizes: int) -> None:
        self.caller = caller
        self.sizes: dict[str, int] = dict(sizes)

    def __getitem__(self, letter: str) -> int:
        return self.sizes[letter]

    def bind(self, name: str, tensor: Any, *patterns: str) -> str:
        """Match `tensor` with the first pattern that fits and bind its new letters.

        Args:
            name: the argument's name, for the message.
            tensor: anything with a ``shape``.
            patterns: letters separated by blanks; ``"1 T D"`` demands a first size of one.

        Returns:
            The pattern that matched.

        Raises:
            ShapeError: no pattern fits; the message names the expected sizes and those that came.
        """
        shape = getattr(tensor, "shape", None)
        if shape is None:
            raise ShapeError(
                f"{self.caller}: {name} must be a tensor of shape {self._expected(patterns)}, "
                f"got {type(tensor).__name__}"
            )
        for pattern in patterns:
            found = self._match(_letters(pattern), shape)
            if found is not None:
                self.sizes.update(found)
                return pattern
        raise ShapeError(f"{self.caller}: {name} must have shape {self._expected(patterns)}, got {list(shape)}")

    def at_least_one(self, *letters: str) -> None:
        """Refuse empty dimensions.

        Raises:
            ShapeError: one of these letters has size 0.
        """
        for letter in letters:
            if self.sizes[letter] < 1:
                raise ShapeError(f"{self.caller}: {letter} must be at least 1, got {letter}=0")

    def _match(self, letters: tuple[str | int, ...], shape: Sequence[int]) -> dict[str, int] | None:
        if len(letters) != len(shape):
            return None
        found: dict[str, int] = {}
        for letter, size in zip(letters, shape, strict=True):
            if isinstance(letter, str):
                expected = self.sizes.get(letter)
                if expected is None:
                    expected = found.setdefault(letter, size)
            else:
                expected = letter
            if expected != size:
                return None
        return found

    def _expected(self, patterns: tuple[str, ...]) -> str:
        def known(letter: str) -> str:
            size = self.sizes.get(letter)
            return letter if size is None or letter.isdigit() else f"{letter}={size}"

        return " or ".join("[" + ", ".join(map(known, p.split())) + "]" for p in patterns)


#: patterns read before: every step of one token asks for the same few (torch.compile warns of lru_cache)
_READ: dict[str, tuple[str | int, ...]] = {}


def _letters(pattern: str) -> tuple[str | int, ...]:
    """The letters of a pattern; digits as numbers."""
    if pattern not in _READ:
        _READ[pattern] = tuple(int(letter) if letter.isdigit() else letter for letter in pattern.split())
    return _READ[pattern]
