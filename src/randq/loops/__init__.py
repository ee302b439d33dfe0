"""Training loops: `compiled` for environments in JAX."""
