//! The broker's append of a frame (broker/lockstep/broker/store/log/append.py): check, patch and index its records.

use crate::arguments::Int;
use crate::fields::{
    array, body_crc, i64_at, size_at, u16_at, u32_at, BODY_AT, BODY_CRC_AT, BODY_LENGTH_AT, BORN_HOST_AT, MAGIC, MAGIC_AT,
    PHYSICAL_OFFSET_AT, PREPARED_OFFSET_AT, QUEUE_ID_AT, QUEUE_OFFSET_AT, RECONSUME_TIMES_AT, SENT_PROPERTIES_BYTES_MAX,
    STORE_TIMESTAMP_AT, SYS_FLAG_AT,
};
use crate::properties::{begins_with_sequence, is_text, read_room, scan, STAMP_HEAD};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyByteArrayMethods, PyBytes, PySequence};

/// Records are copied, patched and appended in pieces of this size, for which the allocator has warm memory.
const PIECE_BYTES: usize = 64 << 10;
/// Transaction 0x0C, IPv6 hosts 0x30, inner batch 0xC0.
const SYS_FLAGS_REFUSED: u32 = 0xFC;
/// Begins the checksum of a record that waits (waiting_records.py).
const SEAL_MARK: [u8; 4] = 0x4C53_5345u32.to_be_bytes();
pub const ENTRY_BYTES: usize = 20;

/// What the request and the queue say of the frame.
struct Rules<'a> {
    count: usize,
    /// The topic with its length byte.
    topic: &'a [u8],
    queue_id: u32,
    size_max: usize,
    trusted: bool,
    sequenced: bool,
    /// How the properties of each record begin, if the frame goes to a waiting room; else empty.
    home: &'a [u8],
    store_ms: i64,
    /// The latest time at which a record of a waiting room may be due; None if its records wait for a decision.
    due_max: Option<i64>,
}

/// One record of a checked frame, and the values that it gets.
struct Record {
    start: usize,
    end: usize,
    queue_offset: i64,
    physical: i64,
    /// Java's hash of the tag, or the due code of a record that goes to a waiting room.
    tag: i64,
}

/// Append the frame to `tail` with the broker's fields set. Return its consume-queue entries, or None to decline.
#[pyfunction]
#[pyo3(signature = (tail, frame, count, topic, queue_id, queue_offset, position, stamp, size_max, trusted, sequenced, home, due_max))]
#[allow(clippy::too_many_arguments)]
pub fn take_frame<'py>(
    py: Python<'py>,
    tail: &Bound<'py, PyByteArray>,
    frame: &[u8],
    count: Int,
    topic: &[u8],
    queue_id: Int,
    queue_offset: Int,
    position: Int,
    stamp: &[u8],
    size_max: Int,
    trusted: bool,
    sequenced: bool,
    home: &[u8],
    due_max: Option<Int>,
) -> PyResult<Option<Bound<'py, PyByteArray>>> {
    let place = || {
        let stamp: &[u8; 24] = stamp.try_into().ok()?;
        let rules = Rules {
            count: usize::try_from(count.0?).ok()?,
            topic,
            queue_id: u32::try_from(queue_id.0?).ok()?,
            size_max: usize::try_from(size_max.0?).ok()?,
            trusted,
            sequenced,
            home,
            store_ms: i64_at(stamp, STORE_TIMESTAMP_AT.checked_sub(BORN_HOST_AT)?)?,
            due_max: match due_max {
                Some(number) => Some(number.0?),
                None => None,
            },
        };
        let records = check(frame, &rules, queue_offset.0?, position.0?)?;
        let entries = entries_of(&records)?;
        Some((records, entries, stamp))
    };
    let Some((records, entries, stamp)) = place() else {
        return Ok(None);
    };
    let end = tail.len();
    if let Err(error) = append(py, tail, frame, &records, stamp, !home.is_empty()) {
        tail.resize(end)?;
        return Err(error);
    }
    Ok(Some(PyByteArray::new(py, &entries)))
}

/// Return the records of a frame in which nothing is wrong.
fn check(frame: &[u8], rules: &Rules, first: i64, position: i64) -> Option<Vec<Record>> {
    let mut records = Vec::new();
    let mut start = 0usize;
    while start < frame.len() {
        let size = size_at(frame, start)?;
        let end = start.checked_add(size)?;
        let record = frame.get(start..end)?;
        if size > rules.size_max.min(PIECE_BYTES) {
            return None;
        }
        let properties = check_record(record, rules)?;
        let (found, tag) = if rules.home.is_empty() {
            let found = scan(properties)?;
            let tag = i64::from(found.tag);
            (found, tag)
        } else {
            let room = read_room(properties, rules.home, rules.due_max.is_some())?;
            let mut found = scan(room.sent)?;
            found.marks = found.marks.checked_add(usize::from(properties.starts_with(STAMP_HEAD)))?;
            (found, room.code(rules.store_ms, rules.due_max)?)
        };
        if !rules.trusted && !found.allowed {
            return None;
        }
        let may_be_marked = rules.sequenced && start == 0 && found.marks == 1;
        if !rules.trusted && found.marks > 0 && !(may_be_marked && begins_with_sequence(properties, rules.count)?) {
            return None;
        }
        let queue_offset = first.checked_add(i64::try_from(records.len()).ok()?)?;
        let physical = position.checked_add(i64::try_from(start).ok()?)?;
        records.push(Record { start, end, queue_offset, physical, tag });
        start = end;
    }
    (records.len() == rules.count).then_some(records)
}

/// Return the properties of a record in which nothing is wrong.
fn check_record<'a>(record: &'a [u8], rules: &Rules) -> Option<&'a [u8]> {
    let body_bytes = size_at(record, BODY_LENGTH_AT)?;
    let behind = BODY_AT.checked_add(body_bytes)?;
    let body = record.get(BODY_AT..behind)?;
    let good = u32_at(record, MAGIC_AT)? == MAGIC
        && u32_at(record, QUEUE_ID_AT)? == rules.queue_id
        && array(record, QUEUE_OFFSET_AT)? == [0u8; 16]
        && u32_at(record, SYS_FLAG_AT)? & SYS_FLAGS_REFUSED == 0
        && array(record, BORN_HOST_AT)? == [0u8; 24]
        && (rules.trusted || array(record, RECONSUME_TIMES_AT)? == [0u8; 12])
        && 0 < body_bytes
        && body_crc(body) == u32_at(record, BODY_CRC_AT)?;
    if !good {
        return None;
    }
    let rest = record.get(behind..)?.strip_prefix(rules.topic)?;
    let properties = rest.get(2..)?;
    let property_bytes = usize::from(u16_at(rest, 0)?);
    // Which of longer properties count is for the Python form to say.
    (property_bytes == properties.len() && property_bytes <= SENT_PROPERTIES_BYTES_MAX && is_text(properties)).then_some(properties)
}

/// Return the consume-queue entries of the records: physical offset, size, tag hash.
fn entries_of(records: &[Record]) -> Option<Vec<u8>> {
    let mut entries = Vec::with_capacity(records.len().checked_mul(ENTRY_BYTES)?);
    for record in records {
        put_entry(&mut entries, record.physical, record.end.checked_sub(record.start)?, record.tag)?;
    }
    Some(entries)
}

/// Append the consume-queue entry of a record.
pub fn put_entry(entries: &mut Vec<u8>, physical: i64, size: usize, tag: i64) -> Option<()> {
    entries.extend_from_slice(&physical.to_be_bytes());
    entries.extend_from_slice(&u32::try_from(size).ok()?.to_be_bytes());
    entries.extend_from_slice(&tag.to_be_bytes());
    Some(())
}

/// Append the records to `tail` piece by piece. The error is that of Python: there is no memory, or `tail` is exported.
fn append<'py>(
    py: Python<'py>,
    tail: &Bound<'py, PyByteArray>,
    frame: &[u8],
    records: &[Record],
    stamp: &[u8; 24],
    seals: bool,
) -> PyResult<()> {
    let tail = tail.cast::<PySequence>()?;
    let mut left = records;
    while let Some(first) = left.first() {
        let fitting = left.partition_point(|record| record.end.saturating_sub(first.start) <= PIECE_BYTES);
        let (piece, others) = left.split_at_checked(fitting).unwrap_or((left, &[]));
        let end = piece.last().map_or(first.start, |last| last.end);
        let source = frame.get(first.start..end).unwrap_or_default();
        let patched = PyBytes::new_with(py, source.len(), |target| {
            target.copy_from_slice(source);
            patch(target, piece, first.start, stamp, seals).ok_or_else(|| PyValueError::new_err("a record is outside of its piece"))
        })?;
        tail.in_place_concat(patched.cast::<PySequence>()?)?;
        left = others;
    }
    Ok(())
}

/// Set the broker's fields of the records of a piece, whose first byte is byte `start` of the frame. `seals`: also their checksums.
fn patch(piece: &mut [u8], records: &[Record], start: usize, stamp: &[u8; 24], seals: bool) -> Option<()> {
    for record in records {
        let whole = piece.get_mut(record.start.checked_sub(start)?..record.end.checked_sub(start)?)?;
        let head: &mut [u8; BODY_AT] = whole.first_chunk_mut()?;
        set(head, QUEUE_OFFSET_AT, &record.queue_offset.to_be_bytes())?;
        set(head, PHYSICAL_OFFSET_AT, &record.physical.to_be_bytes())?;
        set(head, BORN_HOST_AT, stamp)?;
        if seals {
            let mut crc = crc32fast::Hasher::new();
            crc.update(whole.get(..PREPARED_OFFSET_AT)?);
            crc.update(whole.get(BODY_LENGTH_AT..)?);
            let head: &mut [u8; BODY_AT] = whole.first_chunk_mut()?;
            set(head, PREPARED_OFFSET_AT, &SEAL_MARK)?;
            set(head, PREPARED_OFFSET_AT.checked_add(SEAL_MARK.len())?, &crc.finalize().to_be_bytes())?;
        }
    }
    Some(())
}

fn set(head: &mut [u8; BODY_AT], at: usize, value: &[u8]) -> Option<()> {
    head.get_mut(at..at.checked_add(value.len())?)?.copy_from_slice(value);
    Some(())
}
