"""The command line: commands, messages and progress."""
