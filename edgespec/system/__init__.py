"""Access to the operating system: files, the machine, its limits, the user's cache folder."""
