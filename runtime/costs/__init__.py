"""Costs of calls on this machine: measured, stored between runs, and updated by real texts."""
