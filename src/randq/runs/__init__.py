"""Runs: training with an eye on it, and what is kept of it."""
