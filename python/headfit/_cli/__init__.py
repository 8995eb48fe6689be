"""The command line: options made from signatures, what each command does, and its files."""
