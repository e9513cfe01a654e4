"""The output of commands: tables and colours on a terminal, plain lines and JSON elsewhere."""
