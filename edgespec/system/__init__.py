"""What the operating system has and keeps: files, processors, the user's cache folder."""
