"""Training: one PPO step, the loop around it, checkpoints and the run folder. Importing the package loads no torch."""
