"""The wire protocol that nameserver, broker and client share: frames, codes, headers, bodies, records. Pure: bytes in, values out."""
