"""Which served model a request means."""

from __future__ import annotations

import msgspec
import pytest

from lmwarden.gateway.models import ModelNames, is_glob, listing


def names() -> ModelNames[str]:
    return ModelNames(
        {"big": "BIG", "small": "SMALL"}, {"big": ["claude-opus", "claude-*"], "small": ["claude-haiku-*", "gpt-?"]}
    )


@pytest.mark.parametrize(
    ("raw", "model"),
    [
        ('"big"', "BIG"),
        ('"small"', "SMALL"),
        ('"claude-opus"', "BIG"),
        ('"claude-haiku-4-5"', "BIG"),  # the first glob in the order of configuration
        ('"gpt-4"', "SMALL"),
        ('"gpt-44"', None),
        ('"big[1m]"', "BIG"),
        ('"big[1M][1m]"', "BIG"),
        ('"big[1m]x"', None),
        ('"b\\u0069g"', "BIG"),
        ('"http://169.254.169.254/"', None),
        ('"../../etc"', None),
        ('""', None),
        ('"\\ud800"', None),
        ("7", None),
        ("null", None),
        ("", None),
    ],
)
def test_find(raw: str, model: str | None) -> None:
    found = names()
    assert found.find(raw.encode()) == model
    assert found.find(raw.encode()) == model  # remembered


@pytest.mark.parametrize("long", ["[1m]" * 250_000 + "x", "x" + "[1m]" * 250_000, "claude-" + "a" * 1_000_000])
def test_a_name_as_long_as_a_body_is_not_taken_apart(long: str) -> None:
    found = names()
    assert found.find(msgspec.json.encode(long)) is None  # and at once: what is quadratic would take hours
    assert found.find(msgspec.json.encode("claude-" + "a" * 500)) == "BIG"


def test_a_long_name_of_the_configuration_is_found() -> None:
    long = "m" * 2_000
    assert ModelNames({long: "M", "n": "N"}, {}).find(msgspec.json.encode(long)) == "M"


def test_an_absent_model_means_the_only_one() -> None:
    only = ModelNames({"m": "M"}, {})
    assert only.find(b"") == only.find(b"null") == "M"


def test_unknown_names_are_not_remembered() -> None:
    found = names()
    for number in range(10_000):
        assert found.find(b'"unknown-%d"' % number) is None
        assert found.find(b'"claude-%d"' % number) == "BIG"
    assert len(found._by_raw) <= 4096


def test_two_models_cannot_share_an_alias() -> None:
    with pytest.raises(ValueError, match="already names another model"):
        ModelNames({"a": 1, "b": 2}, {"a": ["x"], "b": ["x"]})
    with pytest.raises(ValueError, match="already names another model"):
        ModelNames({"a": 1, "b": 2}, {"a": ["b"]})


def test_shown_is_bounded() -> None:
    many = ModelNames({f"m{number:03}": number for number in range(100)}, {})
    assert many.shown().endswith(", ...")
    assert len(many.shown()) < 200


def test_globs() -> None:
    assert [is_glob(alias) for alias in ("a", "a*", "a?", "[ab]")] == [False, True, True, True]


def test_listing_suits_both_apis() -> None:
    data = msgspec.json.decode(listing([("m", 4096), ("alias", None)]))
    assert (data["object"], data["has_more"], data["first_id"], data["last_id"]) == ("list", False, "m", "alias")
    assert data["data"][0]["max_model_len"] == 4096
    assert "max_model_len" not in data["data"][1]
    assert {entry["type"] for entry in data["data"]} == {entry["object"] for entry in data["data"]} == {"model"}
    assert msgspec.json.decode(listing([]))["first_id"] is None


def test_so_many_spellings_are_remembered_and_no_name_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern matches without end, and anybody may ask."""
    monkeypatch.setattr("lmwarden.gateway.models._MAX_REMEMBERED", 5)
    found = names()
    assert found.find(b'"nobody"') is None
    assert found.find(msgspec.json.encode("claude-" + "a" * 300)) == "BIG"
    assert found._by_raw == {}
    for number in range(20):
        assert found.find(b'"claude-opus-%d"' % number) == "BIG"
    assert len(found._by_raw) == 5
