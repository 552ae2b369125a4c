"""A chat in a window of Qt: pip install PySide6-Essentials.

python qt_chat.py model.gguf

Whatever takes time happens on threads. They emit signals, which Qt handles in the window's thread.
So the window never waits for the model.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtGui import QCloseEvent, QTextCursor
from PySide6.QtWidgets import (
    QApplication,
    QLineEdit,
    QPlainTextEdit,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from edgespec import LLM, Stream, freeze_support
from edgespec.errors import EdgespecError


class ChatWindow(QWidget):
    """A conversation with a model, which is loaded while the window is there already."""

    llm: LLM  # once it is loaded, before which nothing can be asked
    named = Signal(str)
    said = Signal(str)
    began = Signal()
    ended = Signal()

    def __init__(self, model: str) -> None:
        super().__init__()
        self.messages: list[dict[str, Any]] = []
        self.stream: Stream | None = None
        self.closing = False
        self.text = QPlainTextEdit(readOnly=True)
        self.entry = QLineEdit()
        self.button = QPushButton("Stop")
        layout = QVBoxLayout(self)
        for each in (self.text, self.entry, self.button):
            layout.addWidget(each)
        self.entry.setEnabled(False)
        self.button.setEnabled(False)
        self.entry.returnPressed.connect(self.ask)
        self.button.clicked.connect(self.stop)
        self.named.connect(self.setWindowTitle)
        self.said.connect(self.show_text)
        self.began.connect(lambda: self.button.setEnabled(True))
        self.ended.connect(self.wait_for_question)
        self.worker = self.start(self.load, model)

    def start(self, function: Callable[[str], None], argument: str) -> threading.Thread:
        """Calls a function on a thread."""
        thread = threading.Thread(target=function, args=[argument])
        thread.start()
        return thread

    def show_text(self, text: str) -> None:
        """Adds to the conversation; who has scrolled back is left where they read."""
        bar = self.text.verticalScrollBar()
        follows = bar.value() == bar.maximum()
        cursor = QTextCursor(self.text.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.insertText(text)
        if follows:
            bar.setValue(bar.maximum())

    def wait_for_question(self) -> None:
        """Lets the user type."""
        self.button.setEnabled(False)
        self.entry.setEnabled(True)
        self.entry.setFocus()

    def ask(self) -> None:
        """Has the model answer what was typed."""
        question = self.entry.text().strip()
        if not question:
            return
        self.entry.clear()
        self.entry.setEnabled(False)
        self.show_text(f"You: {question}\n\n")
        self.worker = self.start(self.answer, question)

    def stop(self) -> None:
        """Ends the answer with what it has."""
        if self.stream is not None:
            self.stream.cancel()

    def closeEvent(self, event: QCloseEvent) -> None:  # noqa: N802, Qt's name
        """Closes the window, also during an answer, and before its thread would miss it."""
        self.hide()
        self.closing = True
        self.stop()
        self.worker.join()
        event.accept()

    def load(self, model: str) -> None:
        """Loads the model; on a thread."""

        def progress(role: str, done: int, total: int) -> None:
            if self.closing:
                raise SystemExit  # ends the thread; nothing half made is left
            self.named.emit(f"edgespec: {role} {done / total:.0%}")

        try:
            self.llm = LLM(model, progress=progress)
            self.named.emit(f"edgespec: {model}")
            self.ended.emit()
        except EdgespecError as error:
            self.said.emit(f"{error}\n\n")

    def answer(self, question: str) -> None:
        """Shows an answer as it comes; on a thread."""
        messages = [*self.messages, {"role": "user", "content": question}]
        try:
            self.stream = self.llm.chat_stream(
                messages, max_new_tokens=None, stop_loops=True, **self.llm.sampling
            )
            self.began.emit()
            for piece in self.stream:
                self.said.emit(piece)
            # Only what was answered is kept, so that one can ask again after an error.
            self.messages = [*messages, self.stream.result.message]
        except EdgespecError as error:
            self.said.emit(str(error))
        finally:
            self.said.emit("\n\n")
            self.ended.emit()


if __name__ == "__main__":
    freeze_support()  # for frozen programs, see docs/python.md
    parser = argparse.ArgumentParser(description="A chat in a window.")
    parser.add_argument("model", help="a GGUF file, a checkpoint's folder or a name on the Hub")
    name = parser.parse_args().model
    application = QApplication([])
    window = ChatWindow(name)
    window.show()
    application.exec()
