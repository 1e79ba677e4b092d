"""What one client connection remembers of its last head, so that the next one like it need not be parsed.

See ``known_heads`` for what "like it" means. ``keep`` must be called with the bytes of exactly one head and the request
that the parser made of exactly these bytes. What comes back from ``recall`` carries the same credential, byte for byte,
and whose key that was found to be: whoever takes it asks whether the key is still good.
"""

from __future__ import annotations

from lmwarden.gateway.known_heads import MAX_MISSES, KnownHead, remember
from lmwarden.gateway.request import ClientRequest, with_length


class HeadMemory:
    """One head."""

    __slots__ = ("_known", "_misses", "_request")

    def __init__(self) -> None:
        self._known: KnownHead | None = None
        self._request: ClientRequest | None = None
        self._misses = 0
        """Heads in a row that were not known."""

    @property
    def useful(self) -> bool:
        """False: this client does not repeat itself."""
        return self._misses < MAX_MISSES

    def recall(self, data: bytes, max_body_bytes: int) -> tuple[ClientRequest, int] | None:
        """The request at the beginning of ``data`` and where its body begins; None: its head is not known."""
        known, request = self._known, self._request
        if known is None or request is None:
            return None
        found = known.match(data)
        if found is None or found[0] > max_body_bytes:
            return None
        self._misses = 0
        length, end = found
        return with_length(request, length), end

    def forget(self) -> None:
        """Another head came."""
        self._known = self._request = None

    def keep(self, head: bytes, request: ClientRequest) -> None:
        """Remember this head, if it may repeat."""
        if not request.rememberable:
            return
        self._misses += 1
        if request.credential is not None and request.credential not in head:
            self.forget()  # it would carry somebody else's key from here on
            return
        self._known = remember(head)
        self._request = request.copied() if self._known is not None else None
