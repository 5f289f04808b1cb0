"""Adam: each parameter takes steps of about the same size, whatever the size of its gradient."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..errors import InputError
from .arrays import Array

__all__ = ["Adam"]


class Adam:
    """Adam for a dictionary of parameters, which it changes in place (Kingma and Ba 2015, algorithm 1).

        m ← β₁ m + (1 − β₁) g,  v ← β₂ v + (1 − β₂) g²
        θ ← θ − rate · m/(1 − β₁^t) / (√(v/(1 − β₂^t)) + ε)

    m and v start at zero; the divisions take out that start.

    Args:
        params: name -> array.
        beta1, beta2: how slowly the two averages forget.
        epsilon: ε.
    """

    def __init__(
        self, params: Mapping[str, Array], *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8
    ) -> None:
        self.params = params
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.t = 0
        # One long vector for all parameters: a dozen operations a step instead of a dozen for each array.
        size = sum(theta.size for theta in params.values())
        self.m, self.v = np.zeros(size), np.zeros(size)

    def step(self, gradients: Mapping[str, Array], rate: float) -> None:
        """Change every parameter by one step.

        Args:
            gradients: name -> ∂L/∂θ, one for each parameter.
            rate: > 0.

        Raises:
            InputError: a gradient is missing or is no parameter's.
        """
        if gradients.keys() != self.params.keys():
            odd = sorted(gradients.keys() ^ self.params.keys())
            raise InputError(f"Adam.step: expected one gradient for each parameter, these have no partner: {odd}")
        g = np.concatenate([gradients[name].reshape(-1) for name in self.params])
        self.t += 1
        self.m *= self.beta1
        self.m += (1 - self.beta1) * g
        self.v *= self.beta2
        g *= g
        g *= 1 - self.beta2
        self.v += g
        root = np.sqrt(self.v / (1 - self.beta2**self.t))
        root += self.epsilon
        step = self.m * (rate / (1 - self.beta1**self.t))
        step /= root
        end = 0
        for theta in self.params.values():
            start, end = end, end + theta.size
            theta -= step[start:end].reshape(theta.shape)
