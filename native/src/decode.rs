//! The consumer's split of a pull (protocol/lockstep/protocol/messages/message.py, `decode_messages`).

use crate::fields::{
    i64_at, size_at, u16_at, u32_at, BODY_AT, BODY_LENGTH_AT, MAGIC, MAGIC_AT, QUEUE_OFFSET_AT, SYS_FLAG_AT, SYS_FLAG_IPV6,
};
use pyo3::prelude::*;

/// Where the parts of a record are: start of the topic, start of the properties, end.
type Place = (usize, usize, usize);

/// Return four numbers for each record, or None to decline, as for IPv6 hosts: start of its topic, start of its properties, its end, its queue offset.
#[pyfunction]
pub fn split_records(data: &[u8]) -> Option<Vec<i64>> {
    let mut numbers = Vec::with_capacity(data.len().checked_div(64)?);
    let mut start = 0usize;
    while start < data.len() {
        let (topic_at, properties_at, end) = split_record(data, start)?;
        for place in [topic_at, properties_at, end] {
            numbers.push(i64::try_from(place).ok()?);
        }
        numbers.push(i64_at(data, start.checked_add(QUEUE_OFFSET_AT)?)?);
        start = end;
    }
    Some(numbers)
}

pub fn split_record(data: &[u8], start: usize) -> Option<Place> {
    let size = size_at(data, start)?;
    let end = start.checked_add(size)?;
    let record = data.get(start..end)?;
    let body_bytes = size_at(record, BODY_LENGTH_AT)?;
    if u32_at(record, MAGIC_AT)? != MAGIC || u32_at(record, SYS_FLAG_AT)? & SYS_FLAG_IPV6 != 0 {
        return None;
    }
    let topic_at = BODY_AT.checked_add(body_bytes)?.checked_add(1)?;
    let topic_bytes = usize::from(*record.get(topic_at.checked_sub(1)?)?);
    let length_at = topic_at.checked_add(topic_bytes)?;
    let properties_at = length_at.checked_add(2)?;
    if record.len().checked_sub(properties_at)? != usize::from(u16_at(record, length_at)?) {
        return None;
    }
    Some((start.checked_add(topic_at)?, start.checked_add(properties_at)?, end))
}
