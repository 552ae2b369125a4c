"""A chat in a window of Tk, which comes with Python.

python tk_chat.py model.gguf

Whatever takes time happens on threads, which post what there is to show to the window's own thread:
Tk may be called from no other one. So the window never waits for the model.
"""

from __future__ import annotations

import argparse
import queue
import threading
import tkinter
from collections.abc import Callable
from functools import partial
from tkinter.scrolledtext import ScrolledText
from typing import Any

from edgespec import LLM, Stream, freeze_support
from edgespec.errors import EdgespecError


class ChatWindow(tkinter.Tk):
    """A conversation with a model, which is loaded while the window is there already."""

    llm: LLM  # once it is loaded, before which nothing can be asked

    def __init__(self, model: str) -> None:
        super().__init__()
        self.title("edgespec")
        self.posted = queue.SimpleQueue[Callable[[], object]]()
        self.messages: list[dict[str, Any]] = []
        self.stream: Stream | None = None
        self.button = tkinter.Button(self, text="Stop", state="disabled", command=self.stop)
        self.entry = tkinter.Entry(self, state="disabled")
        self.text = ScrolledText(self, wrap="word", state="disabled")
        self.button.pack(side="bottom")
        self.entry.pack(side="bottom", fill="x")
        self.text.pack(fill="both", expand=True)
        self.entry.bind("<Return>", lambda event: self.ask())
        self.protocol("WM_DELETE_WINDOW", self.leave)
        self.start(self.load, model)
        self.run_posted()

    def start(self, function: Callable[..., None], *arguments: str) -> None:
        """Calls a function on a thread, which the end of the program ends."""
        threading.Thread(target=function, args=arguments, daemon=True).start()

    def post(self, function: Callable[..., object], *arguments: object, **options: object) -> None:
        """Has the window's thread call a function; for other threads."""
        self.posted.put(partial(function, *arguments, **options))

    def run_posted(self) -> None:
        """Calls what was posted, and looks again after 20 ms."""
        while not self.posted.empty():
            self.posted.get()()
        self.after(20, self.run_posted)

    def show(self, text: str) -> None:
        """Adds to the conversation; who has scrolled back is left where they read."""
        follows = self.text.yview()[1] == 1.0
        self.text.config(state="normal")
        self.text.insert("end", text)
        self.text.config(state="disabled")
        if follows:
            self.text.see("end")

    def wait_for_question(self) -> None:
        """Lets the user type."""
        self.button.config(state="disabled")
        self.entry.config(state="normal")
        self.entry.focus_set()

    def ask(self) -> None:
        """Has the model answer what was typed."""
        question = self.entry.get().strip()
        if not question:
            return
        self.entry.delete(0, "end")
        self.entry.config(state="disabled")
        self.show(f"You: {question}\n\n")
        self.start(self.answer, question)

    def stop(self) -> None:
        """Ends the answer with what it has."""
        if self.stream is not None:
            self.stream.cancel()

    def leave(self) -> None:
        """Closes the window, also during an answer."""
        self.stop()
        self.destroy()

    def load(self, model: str) -> None:
        """Loads the model; on a thread."""

        def progress(role: str, done: int, total: int) -> None:
            self.post(self.title, f"edgespec: {role} {done / total:.0%}")

        try:
            self.llm = LLM(model, progress=progress)
            self.post(self.title, f"edgespec: {model}")
            self.post(self.wait_for_question)
        except EdgespecError as error:
            self.post(self.show, f"{error}\n\n")

    def answer(self, question: str) -> None:
        """Shows an answer as it comes; on a thread."""
        messages = [*self.messages, {"role": "user", "content": question}]
        try:
            self.stream = self.llm.chat_stream(
                messages, max_new_tokens=None, stop_loops=True, **self.llm.sampling
            )
            self.post(self.button.config, state="normal")
            for piece in self.stream:
                self.post(self.show, piece)
            # Only what was answered is kept, so that one can ask again after an error.
            self.messages = [*messages, self.stream.result.message]
        except EdgespecError as error:
            self.post(self.show, str(error))
        finally:
            self.post(self.show, "\n\n")
            self.post(self.wait_for_question)


if __name__ == "__main__":
    freeze_support()  # for frozen programs, see docs/python.md
    parser = argparse.ArgumentParser(description="A chat in a window.")
    parser.add_argument("model", help="a GGUF file, a checkpoint's folder or a name on the Hub")
    # Named, so that it is not a thread that drops it last, which Tk would not survive.
    window = ChatWindow(parser.parse_args().model)
    window.mainloop()
