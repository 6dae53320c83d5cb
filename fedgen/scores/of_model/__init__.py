"""Scores of what one model says or makes: likelihood, utility, Inception Score, Vendi score."""
