"""A minimal HTTP client for the admin port."""

import asyncio


async def fetch(address: str, path: str, method: str = "GET", body: str = "") -> tuple[int, str]:
    """Send a request. Return (status, body)."""
    return await raw(address, f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())


async def raw(address: str, request: bytes) -> tuple[int, str]:
    """Send these bytes as a request. Return (status, body)."""
    status, _, body = await raw_response(address, request)
    return status, body.decode()


async def raw_response(address: str, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send these bytes as a request. Return (status, headers by their names in lower case, body)."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        head, _, body = (await asyncio.wait_for(reader.read(), 30)).partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        named = [line.partition(":") for line in lines]
        return int(first.split(" ")[1]), {name.lower(): value.strip() for name, _, value in named}, body
    finally:
        writer.close()
