"""Surefoot against its yardstick, TRL's PPO trainer, on the same work. See README.md beside this file."""
