"""Runs in a frozen program before its first line, so that the program may be a child of itself."""

from edgespec import freeze_support

freeze_support()
