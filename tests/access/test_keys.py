"""API keys: made, checked, revoked, and nowhere in clear."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path

import pytest

from lmwarden.access.keys import MAX_CREDENTIAL_BYTES, Authenticator, KeyNameError, KeyStore
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


def test_a_running_gateway_follows(store: KeyStore) -> None:
    auth = authenticator(store)
    key = store.create("anna").encode()
    assert auth.check(key) is None
    auth.refresh()
    assert auth.check(key) is not None
    store.revoke("anna")
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


def test_names(store: KeyStore) -> None:
    store.create("anna")
    with pytest.raises(KeyNameError, match="exists already"):
        store.create("anna")
    for bad in ("", "a" * 65, "a b", "ä", "a/b", "a\n"):
        with pytest.raises(KeyNameError, match="allowed: 1 to 64 letters"):
            store.create(bad)
    with pytest.raises(KeyNameError, match=r"no key 'ben'; existing: anna"):
        store.revoke("ben")
    assert [key.name for key in store.stored()] == ["anna"]
