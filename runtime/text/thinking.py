"""How models write what they think before an answer, as their chat templates show it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ThinkingForm:
    """How a model writes its reasoning before an answer.

    Attributes:
        begin: text that begins reasoning, unless the prompt ends with it.
        end: text that ends reasoning.
        intros: texts of which one begins an answer; empty if it begins at once. With intros there
            may be several parts, each ended by `end`.
    """

    begin: str
    end: str
    intros: tuple[str, ...] = ()


_HARMONY = ThinkingForm(
    "<|channel|>analysis<|message|>",
    "<|end|><|start|>assistant",
    ("<|channel|>final<|message|>", "<|channel|>commentary<|message|>"),
)
_THINKING_FORMS = (
    ("<|channel|>analysis", _HARMONY),
    ("<|channel>", ThinkingForm("<|channel>thought", "<channel|>")),
    ("[/THINK]", ThinkingForm("[THINK]", "[/THINK]")),
    ("</think>", ThinkingForm("<think>", "</think>")),
    ("<think>", ThinkingForm("<think>", "</think>")),
)


def thinking_form(template: str) -> ThinkingForm | None:
    """Returns the form of reasoning of a chat template; None if the model is not known to reason.

    Args:
        template: source of the template.
    """
    return next((form for mark, form in _THINKING_FORMS if mark in template), None)
