"""The generalised delta rule of RWKV-7: a diagonal and any matrix of rank one carry the memory on."""
