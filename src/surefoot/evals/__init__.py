"""Evaluating models: statistics of what was measured. The package itself loads nothing heavy."""
