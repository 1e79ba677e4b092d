"""Texts of a session."""

from __future__ import annotations

from lmwarden.bench.plans import AgentSession, Branch, SharedText, TurnPlan, words

TURN = TurnPlan(new_tokens=20, max_output_tokens=5, gap_before_s=0.0)


def session(key: bytes = b"a", *turns: TurnPlan, **more: object) -> AgentSession:
    return AgentSession(index=0, session_id=key.decode(), turns=turns or (TURN, TURN), text_key=key, **more)  # type: ignore[arg-type]


def test_words_are_four_bytes_each() -> None:
    text = words(b"key", 100)
    assert len(text) == 400
    assert text.isascii()
    assert all(len(word) == 3 for word in text[:-1].split(" "))
    assert words(b"key", 0) == ""


def test_a_message_is_as_long_as_its_turn_says_and_its_own() -> None:
    ours = session()
    assert [len(ours.message_text(turn)) for turn in (0, 1)] == [80, 80]
    assert len({ours.message_text(0), ours.message_text(1), session(b"b").message_text(0)}) == 3


def test_sessions_of_one_repository_begin_alike_and_go_on_apart() -> None:
    repository = SharedText(b"repo", 8)
    one, two = (session(key, repository=repository) for key in (b"a", b"b"))
    assert one.message_text(0)[:32] == two.message_text(0)[:32] == words(b"repo", 8)
    assert one.message_text(0)[32:] != two.message_text(0)[32:]
    assert len(one.message_text(0)) == 80
    assert one.message_text(1)[:32] != two.message_text(1)[:32]


def test_a_context_that_starts_over_begins_with_the_repository_again() -> None:
    over = TurnPlan(new_tokens=20, max_output_tokens=5, gap_before_s=0.0, starts_over=True)
    ours = session(b"a", TURN, over, repository=SharedText(b"repo", 8))
    assert ours.message_text(1).startswith(words(b"repo", 8))


def test_a_fork_has_the_repository_in_its_copy_already() -> None:
    assert not session(repository=SharedText(b"repo", 8), forked=True).message_text(0).startswith(words(b"repo", 8))


def test_the_family_holds_branches_of_branches() -> None:
    grandchild = session(b"c")
    child = session(b"b", TurnPlan(5, 5, 0.0, branches=(Branch(grandchild, copies_context=False),)))
    parent = session(b"a", TurnPlan(5, 5, 0.0, branches=(Branch(child, copies_context=True),)))
    assert [one.session_id for one in parent.family()] == ["a", "b", "c"]
