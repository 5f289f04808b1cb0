"""Linear attention with a decay: RetNet, Mamba-2, GLA and RWKV-6 stand on it."""
