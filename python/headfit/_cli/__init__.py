"""The parts of the command line: arguments, commands, text and the picture of the demo."""
