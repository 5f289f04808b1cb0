"""S6, the selective scan of Mamba: decay, write and read all come from the input."""
