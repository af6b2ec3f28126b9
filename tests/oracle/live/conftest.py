"""What runs where jax is installed is no test of this suite."""

collect_ignore = ["record.py"]
