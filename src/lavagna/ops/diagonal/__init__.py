"""S4D, the diagonal state-space model: N fading oscillations a channel, the same at every token."""
