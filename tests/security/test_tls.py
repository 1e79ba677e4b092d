"""TLS on the client port: what ``tls_cert`` and ``tls_key`` give, and that nothing weaker is spoken."""

from __future__ import annotations

import asyncio
import ssl
import stat
import warnings
from pathlib import Path

import pytest
from tests.gateway.certificate import self_signed
from tests.security.house import MODEL, House, house
from tests.waiting import PATIENCE_S

from lmwarden.config import Flag


def flags(folder: Path) -> tuple[tuple[Flag, Flag], Path]:
    """TLS for the client port, and the certificate to trust."""
    certificate, key = self_signed(folder)
    key.chmod(stat.S_IRUSR)
    flag = (Flag("--cert", ("client", "tls_cert"), str(certificate)), Flag("--key", ("client", "tls_key"), str(key)))
    return flag, certificate


async def answer(of: House, context: ssl.SSLContext, sends: bytes) -> tuple[bytes, str | None]:
    """What comes until the end, and the version of TLS that was spoken."""
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", of.client_port, ssl=context)
        version = writer.get_extra_info("ssl_object").version()
        writer.write(sends)
        try:
            return await reader.read(-1), version
        finally:
            writer.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_it_serves_over_tls(tmp_path: Path, version: ssl.TLSVersion) -> None:
    more, certificate = flags(tmp_path)
    async with house(tmp_path, *more) as of:
        assert of.warden.client_url.startswith("https://")
        context = ssl.create_default_context(cafile=str(certificate))
        context.minimum_version = context.maximum_version = version
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
        got, spoken = await answer(of, context, of.post("/v1/chat/completions", body))
        assert got.startswith(b"HTTP/1.1 200 ")
        assert spoken == version.name.replace("_", ".")


async def test_old_versions_and_plain_text_get_nothing(tmp_path: Path) -> None:
    more, certificate = flags(tmp_path)
    async with house(tmp_path, *more) as of:
        old = ssl.create_default_context(cafile=str(certificate))
        with warnings.catch_warnings():  # Python warns of what is tried here
            warnings.simplefilter("ignore", DeprecationWarning)
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await answer(of, old, b"")
        assert not (await of.ask(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")).startswith(b"HTTP")
        assert of.engine.generations == []
