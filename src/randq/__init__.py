"""Weight posteriors over Q-networks."""
