"""API keys: made, checked, revoked, and nowhere in clear."""

from __future__ import annotations

import errno
import hashlib
import hmac
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from lmwarden.access.keys import MAX_CREDENTIAL_BYTES, Authenticator, KeyNameError, KeyStore, digest_of
from lmwarden.access.secrets import StorageError

SECRET = b"s" * 32


@pytest.fixture
def store(tmp_path: Path) -> KeyStore:
    return KeyStore(tmp_path, SECRET)


def authenticator(store: KeyStore) -> Authenticator:
    return Authenticator(store, SECRET, required=True)


def test_a_key_is_accepted_and_names_its_owner(store: KeyStore) -> None:
    anna, ben = store.create("anna"), store.create("ben")
    check = authenticator(store).check
    first, second = check(anna.encode()), check(ben.encode())
    assert first is not None
    assert second is not None
    assert (first.name, second.name) == ("anna", "ben")
    assert first.digest != second.digest
    assert anna.startswith("lmw_")
    assert anna != ben


@pytest.mark.parametrize(
    "credential", [b"", b"lmw_", b"x" * MAX_CREDENTIAL_BYTES, b"x" * 1_000_000, b"\xff\x00", "ключ".encode()]
)
def test_anything_else_is_nobodys(store: KeyStore, credential: bytes) -> None:
    key = store.create("anna").encode()
    check = authenticator(store).check
    for wrong in (credential, key + credential if credential else key[:-1]):
        assert check(wrong) is None


def test_another_installation_does_not_know_the_key(store: KeyStore, tmp_path: Path) -> None:
    key = store.create("anna").encode()
    other = b"o" * 32
    assert Authenticator(KeyStore(tmp_path, other), other, required=True).check(key) is None


def test_the_file_is_private_and_holds_no_key(store: KeyStore, tmp_path: Path) -> None:
    key = store.create("anna")
    path = tmp_path / "keys.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert key not in text
    for plain in (hashlib.sha256, hashlib.blake2b, hashlib.md5):
        assert plain(key.encode()).hexdigest()[:16] not in text


def test_a_running_gateway_follows_the_command_line(store: KeyStore, tmp_path: Path) -> None:
    auth = authenticator(store)
    another_process = KeyStore(tmp_path, SECRET)
    key = another_process.create("anna").encode()
    assert auth.check(key) is None
    auth.refresh()
    assert auth.check(key) is not None
    another_process.revoke("anna")
    auth.refresh()
    assert auth.check(key) is None
    assert auth.key_count == 0


def test_a_damaged_file_leaves_the_last_good_keys(store: KeyStore, tmp_path: Path) -> None:
    key = store.create("anna").encode()
    auth = authenticator(store)
    for text in ("{", '{"keys": 3}', '{"keys": [{"name": "x", "digest": "zz", "created": ""}]}'):
        (tmp_path / "keys.json").write_text(text)
        auth.refresh()
        assert auth.check(key) is not None
    with pytest.raises(StorageError, match="is damaged"):
        store.digests()


def test_what_was_wrong_with_the_file_may_end_without_a_change_of_it(
    store: KeyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given back to its owner, or read while too many files were open: a key that was revoked must not work on."""
    key, auth = store.create("anna").encode(), authenticator(store)
    another_process = KeyStore(tmp_path, SECRET)
    auth.refresh()
    another_process.revoke("anna")
    with monkeypatch.context() as patch, capture_logs() as logs:

        def refused(path: Path) -> bytes:
            raise OSError(errno.EMFILE, "Too many open files")

        patch.setattr(Path, "read_bytes", refused)
        for _ in range(3):
            auth.refresh()
    assert auth.check(key) is not None
    assert [entry["log_level"] for entry in logs] == ["error"]
    auth.refresh()
    assert auth.check(key) is None


def test_names(store: KeyStore) -> None:
    store.create("anna")
    with pytest.raises(KeyNameError, match="exists already"):
        store.create("anna")
    for bad in ("", "a" * 65, "a b", "ä", "a/b", "a\n", ".", "..", "-_"):
        with pytest.raises(KeyNameError, match="allowed: 1 to 64 letters"):
            store.create(bad)
    with pytest.raises(KeyNameError, match=r"no key 'ben'; existing: anna"):
        store.revoke("ben")
    assert [key.name for key in store.stored()] == ["anna"]


def test_a_change_of_this_process_holds_from_the_next_request_on(store: KeyStore) -> None:
    auth = authenticator(store)
    key = store.create("anna").encode()
    assert auth.check(key) is not None
    store.revoke("anna")
    assert auth.check(key) is None


def test_a_key_that_was_found_is_still_good_until_it_is_revoked(store: KeyStore) -> None:
    secret, _ = store.create("anna"), store.create("ben")
    keys = Authenticator(store, SECRET, required=True)
    found = keys.check(secret.encode())
    assert found is not None
    assert keys.still_good(found) == found
    store.revoke("ben")
    assert keys.still_good(found) == found
    store.revoke("anna")
    assert keys.still_good(found) is None
    store.create("anna")
    assert keys.still_good(found) is None, "another key of the same name"


def test_a_key_knows_its_models(store: KeyStore) -> None:
    limited, free = store.create("anna", ["small", "big", "small"]), store.create("ben")
    check = authenticator(store).check
    anna, ben = check(limited.encode()), check(free.encode())
    assert anna is not None
    assert ben is not None
    assert (anna.models, ben.models) == (frozenset(("big", "small")), None)
    assert [key.models for key in store.stored()] == [["big", "small"], None]


def test_files_of_before_have_keys_for_all_models(store: KeyStore, tmp_path: Path) -> None:
    digest = digest_of(b"lmw_old", SECRET).hex()
    line = f'{{"name": "old", "digest": "{digest}", "created": "2026-01-01T00:00:00Z"}}'
    (tmp_path / "keys.json").write_text(f'{{"keys": [{line}], "version": 1}}')
    found = authenticator(store).check(b"lmw_old")
    assert found is not None
    assert found.models is None


def test_a_key_stays_good_whatever_version_hashed_it() -> None:
    """The hash is what the file keeps: another one would lock everybody out."""
    assert digest_of(b"lmw_old", b"s" * 32).hex() == "8e1176108fee8d41457da94a48065010"


def test_as_many_models_with_names_as_long_as_allowed(store: KeyStore) -> None:
    models = sorted(f"{number:03}" + "x" * 253 for number in range(100))
    store.create("anna", models)
    assert [key.models for key in store.stored()] == [models]


@pytest.mark.parametrize(
    "models",
    [
        [],
        [""],
        ["a\nb"],
        ["good", "a\nb"],
        ["good", " a"],
        [" a"],
        ["x" * 257],
        [f"m{number}" for number in range(101)],
    ],
)
def test_models_that_cannot_be_names(store: KeyStore, models: list[str]) -> None:
    with pytest.raises(KeyNameError, match="the models of a key are 1 to 100 names"):
        store.create("anna", models)
    assert store.stored() == []


def test_changes_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    """Each writer has a store of its own, as the console and the command line have."""

    def change(number: int) -> None:
        own = KeyStore(tmp_path, SECRET)
        own.create(f"kept-{number}")
        own.create(f"gone-{number}")
        own.revoke(f"gone-{number}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(change, range(8)))
    names = {key.name for key in KeyStore(tmp_path, SECRET).stored()}
    assert names == {f"kept-{number}" for number in range(8)}


def test_the_found_digest_is_compared_in_constant_time(store: KeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """No timing is measured here: this is the path that every accepted key takes, and the only one."""
    key = store.create("anna").encode()
    auth = authenticator(store)
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return False

    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert auth.check(key) is None
    digest = digest_of(key, SECRET)
    assert compared == [(digest, digest)]


def test_the_lock_is_private_and_one_that_cannot_be_made_is_one_line(store: KeyStore, tmp_path: Path) -> None:
    store.create("anna")
    lock = tmp_path / "keys.lock"
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600
    lock.unlink()
    lock.mkdir()
    with pytest.raises(StorageError, match=r"keys\.lock: cannot be opened: Is a directory"):
        store.revoke("anna")
