"""The gated delta rule: a memory that fades and that corrects what it holds under a key."""
