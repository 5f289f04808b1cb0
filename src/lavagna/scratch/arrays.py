"""Names for the three kinds of arrays, and the check of their shapes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import ShapeError

__all__ = ["Array", "Mask", "Tokens", "expect"]

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Tokens = NDArray[np.int64]


def expect(caller: str, name: str, array: np.ndarray, *shape: int | None) -> None:
    """Refuse `array` unless it has this shape; None stands for any size.

    Raises:
        ShapeError: naming the expected shape and the one that came.
    """
    fits = len(array.shape) == len(shape) and all(
        wanted in (None, size) for wanted, size in zip(shape, array.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("·" if size is None else str(size) for size in shape)
        raise ShapeError(f"{caller}: {name} must have shape ({wanted}), got {array.shape}")
