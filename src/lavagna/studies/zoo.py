"""The zoo: how yesterday's memory survives one token, for each mixer, read off the operators themselves."""
