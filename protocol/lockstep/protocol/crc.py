"""CRC-32 (ISO 3309, zlib's, RocketMQ's body CRC): by Intel's ISA-L if installed, in a fifth of zlib's time for 1 KiB."""

try:
    from isal.isal_zlib import crc32
except ImportError:  # the standard library's gives the same numbers
    from zlib import crc32

__all__ = ["crc32"]
