"""Compressed bodies for tests."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Callable
from functools import partial

import brotli

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def raw_deflate(data: bytes) -> bytes:
    """Deflate without its wrapping, as some send it."""
    encoder = zlib.compressobj(level=1, wbits=-zlib.MAX_WBITS)
    return encoder.compress(data) + encoder.flush()


ENCODERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "zstd": ("zstd", zstd.compress),
    "gzip": ("gzip", partial(gzip.compress, compresslevel=1)),
    "x-gzip": ("gzip", partial(gzip.compress, compresslevel=1)),
    "deflate": ("deflate", partial(zlib.compress, level=1)),
    "raw deflate": ("deflate", raw_deflate),
    "br": ("br", partial(brotli.compress, quality=3)),
}
"""By what is sent: the coding, and what makes it."""


def zstd_of_window(data: bytes, window_log: int) -> bytes:
    """A frame that needs a window of so many bits."""
    encoder = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: window_log})
    return encoder.compress(data) + encoder.flush()
