"""How commands print: tables and colours on a terminal, plain lines and JSON elsewhere."""
