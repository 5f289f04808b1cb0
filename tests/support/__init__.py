"""What several tests need: the error budget, and operators called from their specs."""
