"""Language models as policy, critic, reference and reward. Importing the package loads no torch."""
