"""Both languages have the same texts with the same names to fill in."""

from __future__ import annotations

import string

import pytest

from lmwarden.bench.language import LANGUAGES, Note, language


def names(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_all_languages_have_the_same_keys_and_names() -> None:
    english = language("en")
    for code in LANGUAGES:
        other = language(code)
        assert sorted(other.keys()) == sorted(english.keys())
        for key in english.keys():  # noqa: SIM118
            assert names(other.text(key)) == names(english.text(key)), key


def test_a_note_is_said_in_each_language_and_a_string_as_it_is() -> None:
    note = Note("failed", {"failed": "3", "requests": "9"}, (8, "on", False))
    assert language("en").say(note) == "8 sessions, on: 3 of 9 requests failed."
    assert language("zh").say(note) == "8 个会话，on：9 个请求中有 3 个失败。"
    assert language("zh").say("As it is.") == "As it is."


def test_an_unknown_key_is_an_error() -> None:
    assert not language("en").has("chart.none")
    with pytest.raises(KeyError):
        language("en").text("chart.none")
