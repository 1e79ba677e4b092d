"""Which served model a request means.

First match: the exact name, an exact alias, then the globs in the order of configuration. A trailing ``[1m]``
(Claude Code's mark for a large context window, in any case and number) is no part of a name. What a client wrote
is looked up by the raw bytes of its JSON string, so the usual cost is one dictionary look-up; only known names are
remembered, and not more than a few thousand spellings. Beyond an exact look-up, only names of a length that somebody
could mean are looked at: a name may be as long as a body, and the loop that serves everybody reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Generic, TypeVar

import msgspec

M = TypeVar("M")

_LARGE_CONTEXT_MARK = "[1m]"
_GLOB = re.compile(r"[*?\[]")
_MAX_REMEMBERED = 4096
_MAX_CHARACTERS = 512
"""Of a name that is compared with patterns."""
_MAX_SHOWN = 20


def is_glob(alias: str) -> bool:
    """Whether an alias is a pattern."""
    return _GLOB.search(alias) is not None


class ModelNames(Generic[M]):
    """Finds models by name."""

    def __init__(self, models: Mapping[str, M], aliases: Mapping[str, Sequence[str]]) -> None:
        """Args: ``models`` by name, and each name's aliases.

        Raises:
            ValueError: an exact alias stands for two models.
        """
        self.exact: dict[str, M] = dict(models)
        self._globs: list[tuple[str, M]] = []
        for name, patterns in aliases.items():
            for alias in patterns:
                if is_glob(alias):
                    self._globs.append((alias, models[name]))
                elif self.exact.setdefault(alias, models[name]) is not models[name]:
                    raise ValueError(f"the alias {alias!r} of model {name!r} already names another model")
        self._only = next(iter(models.values())) if len(models) == 1 else None
        self._by_raw: dict[bytes, M] = {}

    def find(self, raw: bytes) -> M | None:
        """The model that the raw JSON value of ``model`` names, or None. Empty (absent): the only model."""
        model = self._by_raw.get(raw)
        if model is not None:
            return model
        if not raw or raw == b"null":
            return self._only
        try:
            name = msgspec.json.decode(raw, type=str)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        model = self._by_name(name)
        if model is not None and len(self._by_raw) < _MAX_REMEMBERED and len(raw) <= 256:
            self._by_raw[raw] = model
        return model

    def _by_name(self, name: str) -> M | None:
        model = self.exact.get(name)
        if model is None and len(name) <= _MAX_CHARACTERS:
            while name[-len(_LARGE_CONTEXT_MARK) :].lower() == _LARGE_CONTEXT_MARK:
                name = name[: -len(_LARGE_CONTEXT_MARK)]
            model = self.exact.get(name)
            if model is None:
                model = next((model for pattern, model in self._globs if fnmatchcase(name, pattern)), None)
        return model

    def shown(self) -> str:
        """The exact names, for an error message."""
        names = sorted(self.exact)
        more = ", ..." if len(names) > _MAX_SHOWN else ""
        return ", ".join(names[:_MAX_SHOWN]) + more


def listing(entries: Sequence[tuple[str, int | None]]) -> bytes:
    """The answer to ``GET /v1/models``: one object that is valid in OpenAI's and in Anthropic's form.

    Args:
        entries: (id, context window in tokens or None).
    """
    data: list[dict[str, Any]] = []
    for name, max_model_len in entries:
        entry: dict[str, Any] = {
            "id": name,
            "object": "model",
            "type": "model",
            "display_name": name,
            "created": 0,
            "created_at": "1970-01-01T00:00:00Z",
            "owned_by": "lmwarden",
        }
        if max_model_len is not None:
            entry["max_model_len"] = max_model_len
        data.append(entry)
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return msgspec.json.encode({"object": "list", "data": data, "has_more": False, "first_id": first, "last_id": last})
