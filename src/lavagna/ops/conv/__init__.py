"""Short depthwise causal convolution with its tail as state."""
