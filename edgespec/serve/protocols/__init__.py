"""The APIs of the server, a file or a folder each; `table.py` has them all."""
