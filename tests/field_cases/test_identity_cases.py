"""D01 to D05, D29, D30: who is asking, for which model, and what becomes of the words it asks with."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.field_cases.house import FEW, S1, S2, House, house, run, turn, user_id
from tests.gateway.conftest import Response, post
from tests.memory import PeakMemory
from tests.stub_engine import raw, whole

FORMS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "old": ({"metadata": {"user_id": f"user_aa11_account__session_{S1}"}}, ()),
    "old with account": ({"metadata": {"user_id": f"user_aa11_account_bb22_session_{S1}"}}, ()),
    "json": ({"metadata": user_id(S1)}, ()),
    "header": ({}, (f"X-Claude-Code-Session-Id: {S1}",)),
    "header before metadata": ({"metadata": user_id(S2)}, (f"x-claude-code-session-id: {S1}",)),
}
BROKEN_IDS: st.SearchStrategy[Any] = st.sampled_from(
    ['{"session_id":', 17, None, [], {"session_id": S1}, '{"session_id":{}}', '{"session_id":7}']
) | (st.text(max_size=60))


async def _where(made: House, *, path: str = "/v1/messages", body: dict[str, Any], lines: tuple[str, ...] = ()) -> str:
    response = await made.ask(path, body, *lines)
    assert response.status == 200
    return response.header("X-LMWarden-Replica") or ""


@FEW
@given(order=st.lists(st.sampled_from(sorted(FORMS)), min_size=2, max_size=8))
def test_d01_a_session_is_one_conversation_in_whatever_form_its_id_comes(order: list[str]) -> None:
    async def scenario() -> None:
        async with house() as made:
            replicas = set()
            for form in order:
                members, lines = FORMS[form]
                replicas.add(await _where(made, body=turn(**members), lines=lines))
                await made.ask("/v1/messages", turn("somebody else"), f"X-Claude-Code-Session-Id: {S2}")
            assert len(replicas) == 1
            assert made.view().conversations == 2, "never a third identity"

    run(scenario())


@FEW
@given(broken=BROKEN_IDS)
def test_d01_an_id_that_is_none_is_passed_on_untouched_and_never_our_error(broken: Any) -> None:
    async def scenario() -> None:
        async with house() as made:
            body = json.dumps(turn(metadata={"user_id": broken})).encode()
            response = await made.ask("/v1/messages", body)
            assert response.status == 200
            (seen,) = [seen for engine in made.engines.values() for seen in engine.seen]
            assert seen.body == body

    run(scenario())


OTHERS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "Codex": ({}, (f"session-id: {S1}",)),
    "Codex, underscore": ({}, (f"session_id: {S1}",)),
    "affinity": ({}, (f"x-session-affinity: {S1}",)),
    "X-Session-Id": ({}, (f"X-Session-Id: {S1}",)),
    "OpenCode": ({}, (f"x-opencode-session: {S1}",)),
    "cache key": ({"prompt_cache_key": S1}, ()),
    "two lines": ({}, (f"X-Session-Id: {S1}", f"X-Session-Id: {S2}")),
}


@pytest.mark.parametrize("form", OTHERS)
async def test_d02_each_clients_way_to_name_a_session_sticks_and_per_request_ids_never_do(form: str) -> None:
    members, lines = OTHERS[form]
    async with house() as made:
        replicas = set()
        for number in range(5):
            body = turn(f"turn {number} of other words", **members)
            own = (f"x-request-id: {S2[:-1]}{number}", f"x-correlation-id: {S2}", f"traceparent: 00-{number}")
            replicas.add(await _where(made, path="/v1/chat/completions", body=body, lines=(*lines, *own)))
            await made.ask("/v1/chat/completions", turn(f"somebody {number}"), f"X-Session-Id: other-session-{number}")
        assert len(replicas) == 1
        assert made.view().conversations == 6


async def test_d02_an_id_of_the_request_is_no_id_of_a_conversation() -> None:
    async with house() as made:
        for number in range(6):
            lines = ("x-request-id: the-same-id-1", "x-correlation-id: the-same-id-1")
            await made.ask("/v1/chat/completions", turn(f"{number} unrelated"), *lines)
        assert made.view().conversations == 6
        assert all(row.derived for row in made.rows)


@FEW
@given(
    path=st.sampled_from(["/v1/messages", "/v1/chat/completions"]),
    opening=st.text(min_size=1, max_size=40),
    answers=st.lists(st.text(max_size=30), min_size=2, max_size=5),
)
def test_d03_without_any_id_a_conversation_is_known_by_how_it_began(
    path: str, opening: str, answers: list[str]
) -> None:
    async def scenario() -> None:
        async with house() as made:
            system = [{"role": "system", "content": "You are T."}] if path == "/v1/chat/completions" else []
            more: dict[str, Any] = {} if system else {"system": "You are T."}
            replicas = set()
            messages = [*system, {"role": "user", "content": opening}]
            for number, answer in enumerate(answers):
                replicas.add(await _where(made, path=path, body=turn(**more) | {"messages": messages}))
                messages = [
                    *messages,
                    {"role": "assistant", "content": answer},
                    {"role": "user", "content": f"{number}"},
                ]
                other = [*system, {"role": "user", "content": f"{opening}, but another"}]
                elsewhere = await _where(made, path=path, body=turn(**more) | {"messages": other})
            assert len(replicas) == 1
            assert made.view().conversations == 2
            assert elsewhere not in replicas, "not forced together"
            assert all(row.derived for row in made.rows), "and the rows say that nobody sent an id"

    run(scenario())


HOSTILE = st.sampled_from(
    [
        "x",
        "i" * 257,
        "i" * 40_000,
        "i" * 1_000_000,
        "%0d%0aX-Evil: 1",
        "emoji-🙂-1234",
        "../../x/../y",
        "<script>alert(1)</script>",
        "a\0b",
    ]
) | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300)


@FEW
@given(hostile=HOSTILE)
def test_d04_no_id_breaks_anything_and_none_is_answered_with(hostile: str) -> None:
    async def scenario() -> None:
        async with house() as made:
            header = hostile.encode("utf-8").decode("latin-1")
            responses: list[Response] = [
                await made.ask("/v1/messages", turn(metadata={"user_id": json.dumps({"session_id": hostile})})),
                await made.ask("/v1/chat/completions", turn(prompt_cache_key=hostile)),
            ]
            if 0 < len(header.strip()) <= 40_000 and not set(header) & set("\r\n\0"):  # else it is another request
                responses.append(await made.ask("/v1/chat/completions", turn(), f"X-Session-Id: {header.strip()}"))
            for response in responses:
                assert response.status < 500
                shown = [value for name, value in response.headers if name.startswith("X-LMWarden")]
                assert all(len(value) < 40 for value in shown)
                assert len(hostile) < 9 or all(hostile not in value for value in shown)
            assert await _where(made, body=turn(), lines=(f"X-Claude-Code-Session-Id: {S1}",))

    run(scenario())


async def test_d04_a_flood_of_ids_and_models_leaves_sessions_and_memory_alone() -> None:
    """In small: the table's bound is in tests/routing/test_conversations.py, many ids in ``benchmarks.soak``."""
    async with house() as made:
        home = await _where(made, body=turn(), lines=(f"X-Claude-Code-Session-Id: {S1}",))
        client = await made.connect()
        peak = None
        for number in range(1500):
            await client.send(post("/v1/chat/completions", turn(model=f"unknown-{number}" * 9)))
            assert (await client.response()).status == 404
            await client.send(post("/v1/chat/completions", turn(), f"X-Session-Id: one-shot-{number}"))
            assert (await client.response()).status == 200
            if number == 500:
                for engine in made.engines.values():
                    engine.seen.clear()
                made.rows.clear()
                peak = PeakMemory()
        assert peak is not None
        assert peak.grown_bytes < 40_000_000
        assert set(made.gateway.snapshot()) == {"m"}, "a series for each model that is served, and for no other"
        assert await _where(made, body=turn(), lines=(f"X-Claude-Code-Session-Id: {S1}",)) == home


MARKS = st.lists(st.sampled_from(["[1m]", "[1M]"]), max_size=3).map("".join)


@FEW
@given(marks=st.lists(MARKS, min_size=2, max_size=5), suffix=st.text(alphabet="x[]1mM.-", min_size=1, max_size=6))
def test_d05_a_model_has_its_own_engines_and_its_own_homes_in_each_spelling(marks: list[str], suffix: str) -> None:
    async def scenario() -> None:
        async with house({"big": {"e0": 1, "e1": 1}, "small": {"e2": 1, "e3": 1}}) as made:
            lines = (f"X-Claude-Code-Session-Id: {S1}",)
            homes: dict[str, set[str]] = {"big": set(), "small": set()}
            for mark in marks:
                for model in homes:
                    homes[model].add(await _where(made, body=turn(model=model + mark), lines=lines))
            assert homes["big"] in ({"e0/0"}, {"e1/0"})
            assert homes["small"] in ({"e2/0"}, {"e3/0"})
            for name, engine in made.engines.items():
                for seen in engine.seen:
                    assert json.loads(seen.body)["model"] == ("big" if name in ("e0", "e1") else "small")
            name = f"big[1m]x{suffix}"
            unknown = await made.ask("/v1/messages", turn(model=name), *lines)
            assert unknown.status == 404
            assert unknown.json()["error"]["type"] == "not_found_error"

    run(scenario())


LINE = "x-anthropic-billing-header: cc_version=9.9.9.abc; cc_entrypoint=cli; cch={};"


@FEW
@given(
    form=st.sampled_from(["block", "text"]),
    hashes=st.lists(st.text(alphabet="0123456789abcdef", min_size=5, max_size=5), min_size=2, max_size=4, unique=True),
    dropped=st.booleans(),
)
def test_d29_the_billing_line_goes_where_the_switch_says_so_and_never_makes_another_conversation(
    form: str, hashes: list[str], dropped: bool
) -> None:
    async def scenario() -> None:
        async with house(drop_billing_line=dropped) as made:
            sent = []
            for text in hashes:
                line = LINE.format(text)
                system = [{"type": "text", "text": line}, {"type": "text", "text": "You are T."}]
                body = turn(f"I was told: {line}", system=system if form == "block" else f"{line}\nYou are T.")
                body["messages"][0]["content"] = "I was told: " + LINE.format("00000")
                sent.append(json.dumps(body).encode())
                assert (await made.ask("/v1/messages", sent[-1])).status == 200
            bodies = [seen.body for engine in made.engines.values() for seen in engine.seen]
            assert made.view().conversations == 1, "a derived key does not see it"
            assert all(LINE.format("00000").encode() in body for body in bodies), "what a user wrote stays"
            if dropped:
                assert len(set(bodies)) == 1
                assert bodies[0].count(b"x-anthropic-billing") == 1
            else:
                assert bodies == sent

    run(scenario())


@FEW
@given(left=st.lists(st.integers(0, 99_999), min_size=2, max_size=4), spaced=st.booleans())
def test_d30_a_system_turn_in_the_middle_stays_where_it_is_and_its_refusal_is_the_engines(
    left: list[int], spaced: bool
) -> None:
    async def scenario() -> None:
        async with house() as made:
            homes = set()
            for tokens in left:
                messages = [
                    {"role": "user", "content": "one"},
                    {"role": "assistant", "content": "two"},
                    {"role": "system", "content": f"<total_tokens>{tokens} left</total_tokens>"},
                    {"role": "user", "content": "three"},
                ]
                body = json.dumps(turn() | {"messages": messages}, separators=None if spaced else (",", ":")).encode()
                response = await made.ask("/v1/messages", body)
                homes.add(response.header("X-LMWarden-Replica"))
                assert made.engines[(response.header("X-LMWarden-Replica") or "")[:2]].seen[-1].body == body
            assert len(homes) == 1
            refusal = b'{"type":"error","error":{"type":"invalid_request_error","message":"messages.2.role: system"}}'
            for engine in made.engines.values():
                engine.default = whole(refusal, 400)
            response = await made.ask("/v1/messages", body)
            assert (response.status, response.body) == (400, refusal)
            for engine in made.engines.values():
                engine.default = raw(b"")

    run(scenario())
