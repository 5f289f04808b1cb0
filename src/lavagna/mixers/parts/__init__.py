"""What several mixers are made of; the mixers themselves do not import each other."""
