//! The layout of a record (protocol/lockstep/protocol/messages/record.py) and reads that check their bounds.

pub const MAGIC: u32 = 0xDAA3_20A7;
pub const CRC_MASK: u32 = 0x7FFF_FFFF;
pub const TOPIC_BYTES_MAX: usize = 127;
pub const PROPERTIES_BYTES_MAX: usize = 32_767;
pub const SENT_PROPERTIES_BYTES_MAX: usize = 30 << 10;
pub const SYS_FLAG_IPV6: u32 = 0x30;

pub const MAGIC_AT: usize = 4;
pub const BODY_CRC_AT: usize = 8;
pub const QUEUE_ID_AT: usize = 12;
pub const QUEUE_OFFSET_AT: usize = 20;
pub const PHYSICAL_OFFSET_AT: usize = 28;
pub const SYS_FLAG_AT: usize = 36;
pub const BORN_HOST_AT: usize = 48;
pub const STORE_TIMESTAMP_AT: usize = 56;
pub const RECONSUME_TIMES_AT: usize = 72;
pub const PREPARED_OFFSET_AT: usize = 76;
pub const BODY_LENGTH_AT: usize = 84;
pub const BODY_AT: usize = 88;
/// The size of a record without body, topic and properties.
pub const RECORD_BYTES_MIN: usize = 91;

pub fn array<const N: usize>(data: &[u8], at: usize) -> Option<[u8; N]> {
    data.get(at..at.checked_add(N)?)?.try_into().ok()
}

pub fn u16_at(data: &[u8], at: usize) -> Option<u16> {
    array(data, at).map(u16::from_be_bytes)
}

pub fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    array(data, at).map(u32::from_be_bytes)
}

pub fn i64_at(data: &[u8], at: usize) -> Option<i64> {
    array(data, at).map(i64::from_be_bytes)
}

pub fn size_at(data: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u32_at(data, at)?).ok()
}

/// The CRC that a record has of its body.
pub fn body_crc(body: &[u8]) -> u32 {
    crc32fast::hash(body) & CRC_MASK
}
