"""A user of the windows in docs/examples, in the process of the program that opens one.

    python windows.py USER TOOLKIT tk_chat.py MODEL

runs the program. USER `chats`: asks what is too long, then something else, stops the answer, asks
again and closes the window meanwhile. Or USER `reads` what the window says by itself. What they saw
is printed as JSON.

The model makes a pass in each turn of the window's loop. So no answer ends before the user has done
what there is to do, and a window that waits for the model does so in vain.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import threading
import time

from edgespec.runtime.speculation.engine import Engine

TOO_LONG, STOPPED, LEFT = "and again " * 150, "def add(a, b):", "more"
_EVERY = 5  # ms
_PATIENCE = 90  # seconds


class Passes:
    """The passes of a model, each of which waits for a turn of the window's loop.

    Attributes:
        turned: set in each turn.
    """

    def __init__(self):
        self.turned = threading.Event()
        self._free = threading.Event()
        make = Engine._make_pass

        def make_in_turn(*arguments):
            if not self._free.is_set():
                self.turned.wait(_PATIENCE)
                self.turned.clear()
            return make(*arguments)

        Engine._make_pass = make_in_turn

    def free(self):
        """Lets passes be made without turns, of which there are no more."""
        self._free.set()
        self.turned.set()


class User:
    """Does a bit at each turn of the window's loop.

    Args:
        window: the window.
        may_ask: whether the entry can be typed into.
        may_stop: whether the button can be pressed.
        shown: returns the text on the window.
        ask: types into the entry and presses return.
        stop: presses the button.
        close: closes the window.
    """

    does = "chats"

    def __init__(self, window, may_ask, may_stop, shown, ask, stop, close):
        self._window = window
        self._may_ask = may_ask
        self._may_stop = may_stop
        self._shown = shown
        self._ask = ask
        self._stop = stop
        self._close = close
        self._until = time.perf_counter() + _PATIENCE
        self._doing = getattr(self, self.does)()

    def turn(self):
        """Goes on; returns whether there is more to do."""
        PASSES.turned.set()
        self.wait()
        return next(self._doing, None) is not None

    def wait(self):
        """Ends the program if this is asked for too long."""
        if time.perf_counter() > self._until:
            print(f"waited in vain, behind {self._shown()[-500:]!r}", file=sys.stderr, flush=True)
            os._exit(1)

    def reads(self):
        while not self._shown():
            yield True
        print(json.dumps([self._shown(), self._may_ask()]))
        self._close()

    def chats(self):
        yield from self._until_answered()
        self._ask(TOO_LONG)
        yield from self._until_answered()
        refused = self._shown()
        self._ask(STOPPED)
        yield from self._until_some()
        self._stop()
        yield from self._until_answered()
        end = self._window.stream.result.finish_reason
        said = [refused, self._shown(), self._window.messages, end]
        self._ask(LEFT)
        yield from self._until_some()
        print(json.dumps(said))
        PASSES.free()
        self._close()

    def _until_answered(self):
        while not self._may_ask():
            yield True

    def _until_some(self):
        enough = len(self._shown()) + 20
        while not (self._may_stop() and len(self._shown()) > enough):
            yield True


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
        button = window.findChild(QPushButton)

        def ask(prompt):
            QTest.keyClicks(entry, prompt)
            QTest.keyClick(entry, Qt.Key.Key_Return)

        def stop():
            QTest.mouseClick(button, Qt.MouseButton.LeftButton)

        user = User(
            window, entry.isEnabled, button.isEnabled, text.toPlainText, ask, stop, window.close
        )
        timer = QTimer(window)
        timer.timeout.connect(lambda: user.turn() or timer.stop())
        timer.start(_EVERY)
        plain()

    QApplication.exec = execute


def tk():
    """Has a user at the window of a program with tkinter."""
    import tkinter

    plain = tkinter.Tk.mainloop

    def parts_of(widget):
        for each in widget.winfo_children():
            yield each
            yield from parts_of(each)

    def mainloop(window):
        def part(kind):
            return next(each for each in parts_of(window) if isinstance(each, kind))

        entry = part(tkinter.Entry)
        text = part(tkinter.Text)
        button = part(tkinter.Button)

        def ask(prompt):
            entry.insert("end", prompt)
            while entry.get():  # keys are lost until the window has the focus
                user.wait()
                entry.focus_force()
                window.update()
                entry.event_generate("<Return>")

        def turn():
            if user.turn():
                window.after(_EVERY, turn)

        user = User(
            window,
            lambda: str(entry["state"]) == "normal",
            lambda: str(button["state"]) == "normal",
            lambda: text.get("1.0", "end-1c"),
            ask,
            button.invoke,
            lambda: window.tk.call(window.protocol("WM_DELETE_WINDOW")),
        )
        window.after(_EVERY, turn)
        plain(window)

    tkinter.Tk.mainloop = mainloop


if __name__ == "__main__":
    _, User.does, _toolkit, *sys.argv = sys.argv
    PASSES = Passes()
    {"qt": qt, "tk": tk}[_toolkit]()
    runpy.run_path(sys.argv[0], run_name="__main__")
