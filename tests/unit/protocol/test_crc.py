"""Checksums equal zlib's with either implementation."""

import platform
import subprocess
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol.crc import crc32

PROGRAM = """
import sys
sys.modules["isal"] = None
from lockstep.protocol.crc import crc32
from lockstep.protocol.messages.message import Message, encode_message
from lockstep.protocol.messages.record import RecordView
assert crc32.__module__ == "zlib", crc32.__module__
print(RecordView(encode_message(Message("t", b"123456789"), 0, "id", 0)).body_crc)
"""


@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 2**32 - 1))
def test_crc32_equals_zlibs_for_any_bytes_in_any_parts(first: bytes, second: bytes, before: int) -> None:
    assert crc32(first, before) == zlib.crc32(first, before)
    assert crc32(memoryview(second), crc32(bytearray(first))) == zlib.crc32(first + second)


def test_crc32_has_the_check_value_of_the_polynomial() -> None:
    assert crc32(b"123456789") == 0xCBF43926


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64", "aarch64", "arm64"), reason="there is no wheel for this machine")
def test_crc32_uses_isal_on_this_machine() -> None:
    assert crc32.__module__ == "isal.isal_zlib"


def test_crc32_uses_zlib_without_isal() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert (run.stderr, run.stdout.strip()) == ("", str(0xCBF43926 & 0x7FFFFFFF))
