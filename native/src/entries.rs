//! The broker's check of what a pull read from files (broker/lockstep/broker/store/queues/reader.py, `Check.run`).

use crate::arguments::Int;
use crate::fields::{
    body_crc, i64_at, size_at, u16_at, u32_at, BODY_AT, BODY_CRC_AT, BODY_LENGTH_AT, MAGIC, MAGIC_AT, PHYSICAL_OFFSET_AT, QUEUE_ID_AT,
    QUEUE_OFFSET_AT, SYS_FLAG_AT, SYS_FLAG_IPV6,
};
use crate::frame::ENTRY_BYTES;
use crate::properties::is_text;
use pyo3::prelude::*;
use pyo3::types::PyList;

/// Return how many entries, from number `ordinal` of `indexes` on, match the records of `data`, if that is every record; None to decline.
///
/// `indexes` are the numbers of the `count` chosen entries; None: the first ones. `topic` has its length byte.
#[pyfunction]
#[pyo3(signature = (data, position, entries, indexes, count, ordinal, offset, queue_id, topic))]
#[allow(clippy::too_many_arguments)]
pub fn check_run(
    data: &[u8],
    position: Int,
    entries: &[u8],
    indexes: Option<&Bound<'_, PyList>>,
    count: Int,
    ordinal: Int,
    offset: Int,
    queue_id: Int,
    topic: &[u8],
) -> Option<usize> {
    let (position, offset, queue_id) = (position.0?, offset.0?, u32::try_from(queue_id.0?).ok()?);
    let (first, count) = (usize::try_from(ordinal.0?).ok()?, usize::try_from(count.0?).ok()?);
    let mut ordinal = first;
    let mut start = 0usize;
    while start < data.len() {
        if ordinal >= count {
            return None;
        }
        let index = index_of(indexes, ordinal)?;
        let entry = entries.get(index.checked_mul(ENTRY_BYTES)?..)?.get(..ENTRY_BYTES)?;
        let size = size_at(data, start)?;
        let stop = start.checked_add(size)?;
        let record = data.get(start..stop)?;
        let physical = position.checked_add(i64::try_from(start).ok()?)?;
        let good = i64_at(entry, 0)? == physical
            && size_at(entry, 8)? == size
            && i64_at(record, PHYSICAL_OFFSET_AT)? == physical
            && i64_at(record, QUEUE_OFFSET_AT)? == offset.checked_add(i64::try_from(index).ok()?)?
            && check_record(record, queue_id, topic)?;
        if !good {
            return None;
        }
        start = stop;
        ordinal = ordinal.checked_add(1)?;
    }
    ordinal.checked_sub(first)
}

/// Return the runs of the chosen entries (`indexes` and `count` as above): adjacent records are one run of (position, bytes). None to decline.
#[pyfunction]
pub fn join_entries(entries: &[u8], indexes: Option<&Bound<'_, PyList>>, count: Int) -> Option<Vec<(i64, i64)>> {
    let count = usize::try_from(count.0?).ok()?;
    let mut runs = Vec::new();
    let mut run: Option<(i64, i64)> = None;
    for ordinal in 0..count {
        let index = index_of(indexes, ordinal)?;
        let at = index.checked_mul(ENTRY_BYTES)?;
        let (position, size) = (i64_at(entries, at)?, i64::from(u32_at(entries, at.checked_add(8)?)?));
        if position < 0 || size > i64::from(i32::MAX) {
            return None;
        }
        run = match run {
            Some((start, bytes)) if start.checked_add(bytes)? == position => Some((start, bytes.checked_add(size)?)),
            before => {
                runs.extend(before);
                Some((position, size))
            }
        };
    }
    runs.extend(run);
    Some(runs)
}

fn index_of(indexes: Option<&Bound<'_, PyList>>, ordinal: usize) -> Option<usize> {
    match indexes {
        Some(numbers) => numbers.get_item(ordinal).ok()?.extract().ok(),
        None => Some(ordinal),
    }
}

/// Whether a record of this queue is whole and its body and properties are good.
fn check_record(record: &[u8], queue_id: u32, topic: &[u8]) -> Option<bool> {
    let behind = BODY_AT.checked_add(size_at(record, BODY_LENGTH_AT)?)?;
    let body = record.get(BODY_AT..behind)?;
    let rest = record.get(behind..)?.strip_prefix(topic)?;
    let properties = rest.get(2..)?;
    Some(
        u32_at(record, MAGIC_AT)? == MAGIC
            && u32_at(record, QUEUE_ID_AT)? == queue_id
            && u32_at(record, SYS_FLAG_AT)? & SYS_FLAG_IPV6 == 0
            && body_crc(body) == u32_at(record, BODY_CRC_AT)?
            && usize::from(u16_at(rest, 0)?) == properties.len()
            && is_text(properties),
    )
}
