"""Helpers to watch engines at work, and their threads."""

from __future__ import annotations

import threading


def executables(llm, role):
    return llm._loaded[role].model.executables


def on_every_call(monkeypatch, llm, role, action):
    """Call `action(call number)` before each call of a role's engine."""
    for executable in executables(llm, role):
        run, calls = executable.run, iter(range(10**9))

        def watched(feeds, cache, run=run, calls=calls):
            action(next(calls))
            return run(feeds, cache)

        monkeypatch.setattr(executable, "run", watched)


WORKING = ("edgespec-contention", "edgespec-verify")
"""Names of threads that verify or draft beside the one that asked; servers have others."""


def working_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith(WORKING)]
