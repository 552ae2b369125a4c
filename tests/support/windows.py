"""A user of the windows in docs/python.md, in the process of the program that opens one."""

from __future__ import annotations

import json
import time
from itertools import pairwise

PROMPT, STOPPED = "def add(a, b):", "class Queue:"
_EVERY = 5  # ms


class User:
    """Asks, waits for the answer, asks again, stops that answer and closes the window.

    It prints what it saw: the text of both answers, how the second ended, and the turns of the
    window's loop while the first came, with the longest of them in seconds.

    Args:
        window: the window.
        may_ask: whether the entry can be typed into.
        shown: returns the text on the window.
        ask: types into the entry and presses return.
        stop: presses the button.
        close: closes the window.
    """

    def __init__(self, window, may_ask, shown, ask, stop, close):
        self._window = window
        self._may_ask = may_ask
        self._shown = shown
        self._ask = ask
        self._stop = stop
        self._close = close
        self._turns, self._doing = [], self._acts()

    def turn(self):
        """Goes on; returns whether there is more to do."""
        self._turns.append(time.perf_counter())
        return next(self._doing, None) is not None

    def _acts(self):
        while not self._may_ask():
            yield True
        self._turns.clear()
        self._ask(PROMPT)
        while not self._may_ask():
            yield True
        turns = [after - before for before, after in pairwise(self._turns)]
        first = self._shown()
        self._ask(STOPPED)
        while len(self._shown()) <= len(first) + len(STOPPED):
            yield True
        self._stop()
        while not self._may_ask():
            yield True
        end = self._window.stream.result.finish_reason
        print(json.dumps([first, self._shown(), end, len(turns), max(turns)]))
        self._close()


def qt():
    """Has a user at the window of a program with PySide6."""
    from PySide6.QtCore import Qt, QTimer
    from PySide6.QtTest import QTest
    from PySide6.QtWidgets import QApplication, QLineEdit, QPlainTextEdit, QPushButton

    plain = QApplication.exec

    def execute(_=None):
        [window] = [each for each in QApplication.topLevelWidgets() if each.isVisible()]
        entry = window.findChild(QLineEdit)
        text = window.findChild(QPlainTextEdit)

        def ask(prompt):
            QTest.keyClicks(entry, prompt)
            QTest.keyClick(entry, Qt.Key.Key_Return)

        def stop():
            QTest.mouseClick(window.findChild(QPushButton), Qt.MouseButton.LeftButton)

        user = User(window, entry.isEnabled, text.toPlainText, ask, stop, window.close)
        timer = QTimer(window)
        timer.timeout.connect(lambda: user.turn() or timer.stop())
        timer.start(_EVERY)
        plain()

    QApplication.exec = execute


def tk():
    """Has a user at the window of a program with tkinter."""
    import tkinter

    plain = tkinter.Tk.mainloop

    def mainloop(window):
        parts = {type(each): each for each in window.winfo_children()}
        entry = parts[tkinter.Entry]
        text = parts[tkinter.Text]

        def ask(prompt):
            entry.insert("end", prompt)
            entry.focus_force()
            window.update()
            entry.event_generate("<Return>")

        def turn():
            if user.turn():
                window.after(_EVERY, turn)

        user = User(
            window,
            lambda: str(entry["state"]) == "normal",
            lambda: text.get("1.0", "end-1c"),
            ask,
            parts[tkinter.Button].invoke,
            lambda: window.tk.call(window.protocol("WM_DELETE_WINDOW")),
        )
        window.after(_EVERY, turn)
        plain(window)

    tkinter.Tk.mainloop = mainloop
