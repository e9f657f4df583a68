"""Runs: methods x budgets x N x seeds over a problem set, recorded so that nothing is lost."""
