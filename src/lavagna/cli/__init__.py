"""The command line: one file per command; see app.py for the table of them."""
