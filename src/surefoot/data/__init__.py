"""Prompts: read with their places, encoded once, ordered by seed, named by their sha256; and files from packages.

The package itself loads nothing heavy: take names from the modules they live in.
"""
