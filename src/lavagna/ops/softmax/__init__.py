"""Softmax attention with the cache of keys and values that is its state."""
