"""The command line: flags, what is made of them, and programs."""
