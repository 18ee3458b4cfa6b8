"""The only place where config becomes objects."""
