"""A minimal HTTP client for the admin port."""

import asyncio


async def fetch(address: str, path: str, method: str = "GET", body: str = "") -> tuple[int, str]:
    """Send a request. Return (status, body)."""
    return await raw(address, f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())


async def raw(address: str, request: bytes) -> tuple[int, str]:
    """Send these bytes as a request. Return (status, body)."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        head, _, body = (await asyncio.wait_for(reader.read(), 30)).partition(b"\r\n\r\n")
        return int(head.split(b" ")[1]), body.decode()
    finally:
        writer.close()
