"""Studies: what the commands compare, lab, zoo and claims do, built on the parts below."""
