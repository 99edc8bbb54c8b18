"""What curl would do, as far as the admin port is concerned."""

import asyncio


async def fetch(address: str, path: str, method: str = "GET", body: str = "") -> tuple[int, str]:
    """(status, body) of one request."""
    return await raw(address, f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())


async def raw(address: str, request: bytes) -> tuple[int, str]:
    """As `fetch`, of these very bytes."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        head, _, body = (await asyncio.wait_for(reader.read(), 30)).partition(b"\r\n\r\n")
        return int(head.split(b" ")[1]), body.decode()
    finally:
        writer.close()
