"""The audit of data: what is wrong with rows, texts, labels and the parting of training from evaluation. Torch-free.

One module a family of checks; :func:`surefoot.data.audit.run.audit` calls them. Scores of a reward model are handed in.
"""
