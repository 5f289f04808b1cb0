"""The checks, one file for each family of traps. Each yields what it measured, smallest inputs first."""
