"""The tests mirror src; what they share stands in tests.support."""
