"""Algorithms: act, loss and update as pure functions of a state, for any posterior."""
