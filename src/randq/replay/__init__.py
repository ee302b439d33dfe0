"""Replay memories: `ring` lives in the compiled program."""
