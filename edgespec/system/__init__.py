"""Access to the operating system: files, processors, memory limits, the user's cache folder."""
