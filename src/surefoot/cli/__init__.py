"""The commands. Data goes to stdout, everything else to stderr; heavy imports wait until a command needs them."""
