"""One module for each command: `configure` declares its arguments, `execute` runs it."""
