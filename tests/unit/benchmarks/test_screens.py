"""Commands at a terminal, as a person sees them."""

from __future__ import annotations

import os
import sys

import pytest

if sys.platform == "win32":
    pytest.skip("terminals of POSIX", allow_module_level=True)

from screens import Screen, ScreenError


def screen(tmp_path, command):
    return Screen(tmp_path, command, dict(os.environ))


def test_what_was_overwritten_is_not_shown(tmp_path):
    shown = screen(tmp_path, r"printf '1 %%\r2 %%\nnext\n\033[A\033[Klast\n'").rest()
    assert shown == "2 %\nlast\n"


def test_an_answer_is_waited_for(tmp_path):
    asking = screen(tmp_path, "printf 'name> '; read name; echo hello $name")
    asking.until("> ")
    asking.type("Ada\n")
    asking.until("hello Ada")
    assert asking.rest() == "name> Ada\nhello Ada\n"
    assert asking.longest_wait > 0


def test_a_command_that_fails_is_told_with_what_it_showed(tmp_path):
    with pytest.raises(ScreenError, match=r"echo oh; exit 3 ended with 3:\noh"):
        screen(tmp_path, "echo oh; exit 3").rest()
    with pytest.raises(ScreenError, match=r"echo oh ended:\noh"):
        screen(tmp_path, "echo oh").until("never")
