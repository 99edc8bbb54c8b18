//! The scan of the log (broker/lockstep/broker/store/log/scan_run.py): a run of good ordinary records, and what a start keeps of them.

use crate::arguments::Int;
use crate::fields::{
    array, body_crc, i64_at, size_at, u16_at, u32_at, BODY_AT, BODY_CRC_AT, BODY_LENGTH_AT, BORN_HOST_AT, MAGIC, MAGIC_AT,
    PHYSICAL_OFFSET_AT, PREPARED_OFFSET_AT, PROPERTIES_BYTES_MAX, QUEUE_ID_AT, QUEUE_OFFSET_AT, RECONSUME_TIMES_AT, RECORD_BYTES_MIN,
    STORE_TIMESTAMP_AT, SYS_FLAG_AT, SYS_FLAG_IPV6,
};
use crate::frame::{put_entry, ENTRY_BYTES};
use crate::properties::{is_text, tag_and_retry, WAITED_HEAD};
use crate::sequence::{Sequence, ZERO_DIGITS};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};
use std::collections::HashMap;

/// Set for the messages of a transaction that have no place in their queue: prepared 0x4, rolled back 0xC.
const SYS_FLAG_UNQUEUED: u32 = 0x04;

/// Why a run ends.
enum Stop {
    /// The Python form decides what comes next.
    Odd,
    /// A record or a frame is not whole: the window has to have this byte, at least.
    Cut(usize),
    Raised(PyErr),
}

impl From<PyErr> for Stop {
    fn from(error: PyErr) -> Self {
        Stop::Raised(error)
    }
}

/// Bytes, how many more than these the window has to have for the next record (0: another reason ends the run), the first and the last store time, the position of the last record, queues, frames.
type Run<'py> = (usize, usize, i64, i64, i64, Vec<QueueRow<'py>>, Vec<FrameRow<'py>>);
/// Topic, queue id, first queue offset, number of entries, entries.
type QueueRow<'py> = (Bound<'py, PyString>, u32, i64, usize, Bound<'py, PyBytes>);
/// Scope, (epoch, first, next, CRC, given), (queue offset, position, store time) of a frame.
type FrameRow<'py> = (ScopeKey<'py>, (i64, i64, i64, u32, bool), (i64, i64, i64));
/// Producer id, partition, topic, queue id.
type ScopeKey<'py> = (Bound<'py, PyString>, u32, Bound<'py, PyString>, u32);

/// Return what a run of good ordinary records in [start, end) of the window gives, or None to decline. `start` is `position` of the log.
///
/// `queue_of(topic, queue id)` returns the topic as str and the expected queue offset (−1: any), or None if the Python form decides. `scopes`
/// has the last frames before the run. For another scope `crc_before(scope, epoch, first sequence, store time)` returns the running CRC that a frame
/// goes on from. With `condense` only the last frame of each scope in the run is returned, in the order of these; else every frame.
#[pyfunction]
#[pyo3(signature = (window, start, end, position, queue_of, scopes, crc_before, condense))]
#[allow(clippy::too_many_arguments)]
pub fn scan_run<'py>(
    py: Python<'py>,
    window: &[u8],
    start: usize,
    end: usize,
    position: Int,
    queue_of: &Bound<'py, PyAny>,
    scopes: &Bound<'py, PyDict>,
    crc_before: &Bound<'py, PyAny>,
    condense: bool,
) -> PyResult<Option<Run<'py>>> {
    let Some(position) = position.0.filter(|position| *position >= 0) else { return Ok(None) };
    let Some(data) = window.get(start..end) else { return Ok(None) };
    let mut scan = Scan {
        data,
        position,
        condense,
        before: Before { py, queue_of, scopes, crc_before },
        end: 0,
        first_ms: None,
        last_ms: i64::MIN,
        last_record: -1,
        queues: Vec::new(),
        queue_places: HashMap::new(),
        scopes: Vec::new(),
        scope_places: HashMap::new(),
        frame_count: 0,
        entries: Vec::new(),
        sent: Vec::new(),
    };
    let cut = loop {
        match scan.take() {
            Ok(()) => {}
            Err(Stop::Odd) => break 0,
            Err(Stop::Cut(end)) => break end.saturating_sub(scan.end),
            Err(Stop::Raised(error)) => return Err(error),
        }
    };
    Ok(if scan.end > 0 || cut > 0 { scan.rows(cut) } else { None })
}

/// A good record.
struct Record<'a> {
    bytes: &'a [u8],
    end: usize,
    topic: &'a [u8],
    queue_id: u32,
    queue_offset: i64,
    physical: i64,
    store_ms: i64,
    tag: i32,
    sequence: Option<Sequence<'a>>,
    /// Where the properties begin.
    properties_at: usize,
}

/// The entries of one queue.
struct Queue<'py> {
    topic: Bound<'py, PyString>,
    queue_id: u32,
    first: i64,
    next: i64,
    entries: Vec<u8>,
}

/// The last frame of one scope, or one of all.
struct Scope<'a> {
    first: Record<'a>,
    sequence: Sequence<'a>,
    /// The index of its queue.
    queue: usize,
    /// The number of the frame in the run.
    number: usize,
}

/// What Python knows of the log before the run.
struct Before<'a, 'py> {
    py: Python<'py>,
    queue_of: &'a Bound<'py, PyAny>,
    scopes: &'a Bound<'py, PyDict>,
    crc_before: &'a Bound<'py, PyAny>,
}

struct Scan<'a, 'py> {
    data: &'a [u8],
    position: i64,
    condense: bool,
    before: Before<'a, 'py>,
    /// Where the run ends so far.
    end: usize,
    first_ms: Option<i64>,
    last_ms: i64,
    last_record: i64,
    queues: Vec<Queue<'py>>,
    queue_places: HashMap<(&'a [u8], u32), usize>,
    scopes: Vec<Scope<'a>>,
    /// By producer and partition, and the index of the queue.
    scope_places: HashMap<(&'a [u8], usize), usize>,
    frame_count: usize,
    /// The entries of the frame that is being read.
    entries: Vec<u8>,
    /// One record as it was sent.
    sent: Vec<u8>,
}

impl<'a, 'py> Scan<'a, 'py> {
    /// Take the record or the frame at the end of the run.
    fn take(&mut self) -> Result<(), Stop> {
        let first = self.record(self.end)?;
        let place = self.queue_place(&first)?;
        let next = self.queues.get(place).ok_or(Stop::Odd)?.next;
        if first.queue_offset != next || first.store_ms < self.last_ms {
            return Err(Stop::Odd);
        }
        self.entries.clear();
        self.put_entry(&first)?;
        let (mut end, mut last_ms, mut last_record, mut count) = (first.end, first.store_ms, first.physical, 1u32);
        if let Some(sequence) = first.sequence {
            let mut running = self.previous(&first, &sequence, place)?.map(crc32fast::Hasher::new_with_initial);
            self.digest(&mut running, &first, Some(&sequence))?;
            while count < sequence.count {
                let record = self.record(end)?;
                let good = record.sequence.is_none()
                    && record.topic == first.topic
                    && record.queue_id == first.queue_id
                    && Some(record.queue_offset) == next.checked_add(i64::from(count))
                    && record.store_ms >= last_ms;
                if !good {
                    return Err(Stop::Odd);
                }
                self.put_entry(&record)?;
                self.digest(&mut running, &record, None)?;
                (end, last_ms, last_record) = (record.end, record.store_ms, record.physical);
                count = count.checked_add(1).ok_or(Stop::Odd)?;
            }
            if running.is_some_and(|running| running.finalize() != sequence.crc) {
                return Err(Stop::Odd);
            }
        }
        let queue = self.queues.get_mut(place).ok_or(Stop::Odd)?;
        queue.next = next.checked_add(i64::from(count)).ok_or(Stop::Odd)?;
        queue.entries.extend_from_slice(&self.entries);
        self.first_ms.get_or_insert(first.store_ms);
        (self.end, self.last_ms, self.last_record) = (end, last_ms, last_record);
        if let Some(sequence) = first.sequence {
            self.keep(first, sequence, place);
        }
        Ok(())
    }

    /// Return the record at `start`.
    fn record(&self, start: usize) -> Result<Record<'a>, Stop> {
        let rest = self.data.get(start..).ok_or(Stop::Odd)?;
        let physical = i64::try_from(start).ok().and_then(|start| self.position.checked_add(start)).ok_or(Stop::Odd)?;
        let Some(head) = rest.get(..BODY_AT) else { return Err(Stop::Cut(start.saturating_add(BODY_AT))) };
        let size = size_at(head, 0).ok_or(Stop::Odd)?;
        if u32_at(head, MAGIC_AT) != Some(MAGIC) || i64_at(head, PHYSICAL_OFFSET_AT) != Some(physical) || size < RECORD_BYTES_MIN {
            return Err(Stop::Odd);
        }
        let end = start.checked_add(size).ok_or(Stop::Odd)?;
        let bytes = rest.get(..size).ok_or(Stop::Cut(end))?;
        read(bytes, end, physical).ok_or(Stop::Odd)
    }

    /// Return the index of the record's queue, which is new if this is its first record in the run.
    fn queue_place(&mut self, record: &Record<'a>) -> Result<usize, Stop> {
        let key = (record.topic, record.queue_id);
        if let Some(place) = self.queue_places.get(&key) {
            return Ok(*place);
        }
        let name = PyBytes::new(self.before.py, record.topic);
        let known: Option<(Bound<'py, PyString>, i64)> = self.before.queue_of.call1((name, record.queue_id))?.extract()?;
        let (topic, expected) = known.ok_or(Stop::Odd)?;
        let first = if expected < 0 { record.queue_offset } else { expected };
        let place = self.queues.len();
        self.queues.push(Queue { topic, queue_id: record.queue_id, first, next: first, entries: Vec::new() });
        self.queue_places.insert(key, place);
        Ok(place)
    }

    fn put_entry(&mut self, record: &Record) -> Result<(), Stop> {
        put_entry(&mut self.entries, record.physical, record.bytes.len(), i64::from(record.tag)).ok_or(Stop::Odd)
    }

    /// Return the running CRC that a frame goes on from, or None if it is not known.
    fn previous(&self, first: &Record<'a>, sequence: &Sequence<'a>, place: usize) -> Result<Option<u32>, Stop> {
        if sequence.first == 0 {
            return Ok(Some(0));
        }
        if sequence.first_known() {
            return Ok(None);
        }
        let goes_on = |epoch: i64, next: i64| (epoch, next) == (sequence.epoch, sequence.first);
        if let Some(last) = self.scope_places.get(&(sequence.scope, place)).and_then(|index| self.scopes.get(*index)) {
            return Ok(goes_on(last.sequence.epoch, last.sequence.next).then_some(last.sequence.crc));
        }
        let scope = self.key(sequence, place).ok_or(Stop::Odd)?.into_pyobject(self.before.py)?;
        match self.before.scopes.get_item(&scope)? {
            Some(known) => {
                let (epoch, _, next, crc, _): (i64, i64, i64, u32, bool) = known.extract()?;
                Ok(goes_on(epoch, next).then_some(crc))
            }
            None => Ok(self.before.crc_before.call1((scope, sequence.epoch, sequence.first, first.store_ms))?.extract()?),
        }
    }

    fn key(&self, sequence: &Sequence, place: usize) -> Option<ScopeKey<'py>> {
        let queue = self.queues.get(place)?;
        Some((PyString::new(self.before.py, sequence.producer), sequence.partition, queue.topic.clone(), queue.queue_id))
    }

    /// Add a record of a frame to its running CRC: as it was sent, with the broker's fields zero and the digits of the CRC as '0'.
    fn digest(&mut self, running: &mut Option<crc32fast::Hasher>, record: &Record, sequence: Option<&Sequence>) -> Result<(), Stop> {
        let Some(running) = running else { return Ok(()) };
        self.sent.clear();
        self.sent.extend_from_slice(record.bytes);
        let mut set = |begin: usize, value: &[u8]| {
            let end = begin.checked_add(value.len())?;
            self.sent.get_mut(begin..end)?.copy_from_slice(value);
            Some(())
        };
        set(QUEUE_OFFSET_AT, &[0; SYS_FLAG_AT - QUEUE_OFFSET_AT]).ok_or(Stop::Odd)?;
        set(BORN_HOST_AT, &[0; RECONSUME_TIMES_AT - BORN_HOST_AT]).ok_or(Stop::Odd)?;
        if let Some(sequence) = sequence {
            let digits_at = record.properties_at.checked_add(sequence.crc_at).ok_or(Stop::Odd)?;
            set(digits_at, ZERO_DIGITS).ok_or(Stop::Odd)?;
        }
        running.update(&self.sent);
        Ok(())
    }

    /// Keep the frame as the last one of its scope.
    fn keep(&mut self, first: Record<'a>, sequence: Sequence<'a>, queue: usize) {
        let end = self.scopes.len();
        let place = self.scope_places.entry((sequence.scope, queue)).or_insert(end);
        if !self.condense {
            *place = end;
        }
        let scope = Scope { first, sequence, queue, number: self.frame_count };
        self.frame_count = self.frame_count.saturating_add(1);
        match self.scopes.get_mut(*place) {
            Some(last) => *last = scope,
            None => self.scopes.push(scope),
        }
    }

    fn rows(mut self, cut: usize) -> Option<Run<'py>> {
        let py = self.before.py;
        self.scopes.sort_unstable_by_key(|scope| scope.number);
        let mut frames = Vec::with_capacity(self.scopes.len());
        for Scope { first, sequence, queue, .. } in &self.scopes {
            let end = (sequence.epoch, sequence.first, sequence.next, sequence.crc, sequence.given());
            frames.push((self.key(sequence, *queue)?, end, (first.queue_offset, first.physical, first.store_ms)));
        }
        let queues = self.queues.into_iter().filter(|queue| !queue.entries.is_empty());
        let queues = queues
            .map(|queue| {
                let count = queue.entries.len().checked_div(ENTRY_BYTES)?;
                Some((queue.topic, queue.queue_id, queue.first, count, PyBytes::new(py, &queue.entries)))
            })
            .collect::<Option<Vec<_>>>()?;
        Some((self.end, cut, self.first_ms.unwrap_or(0), self.last_ms, self.last_record, queues, frames))
    }
}

/// Return the record of these bytes if it is an ordinary one and nothing in it is wrong. Its size, magic and position have been checked.
fn read(bytes: &[u8], end: usize, physical: i64) -> Option<Record<'_>> {
    let behind = BODY_AT.checked_add(size_at(bytes, BODY_LENGTH_AT)?)?;
    let body = bytes.get(BODY_AT..behind)?;
    let (topic_bytes, rest) = bytes.get(behind..)?.split_first()?;
    let (topic, rest) = rest.split_at_checked(usize::from(*topic_bytes))?;
    let properties = rest.get(2..)?;
    let (queue_id, queue_offset) = (u32_at(bytes, QUEUE_ID_AT)?, i64_at(bytes, QUEUE_OFFSET_AT)?);
    let good = i32::try_from(queue_id).is_ok()
        && i32::try_from(bytes.len()).is_ok()
        && queue_offset >= 0
        && u32_at(bytes, SYS_FLAG_AT)? & (SYS_FLAG_IPV6 | SYS_FLAG_UNQUEUED) == 0
        && array(bytes, PREPARED_OFFSET_AT)? == [0u8; 8]
        && usize::from(u16_at(rest, 0)?) == properties.len()
        && properties.len() <= PROPERTIES_BYTES_MAX
        && is_text(properties)
        && body_crc(body) == u32_at(bytes, BODY_CRC_AT)?;
    if !good {
        return None;
    }
    if properties.starts_with(WAITED_HEAD) {
        return None;
    }
    let (tag, retried) = tag_and_retry(properties)?;
    let sequence = if retried { None } else { Sequence::find(properties)? };
    Some(Record {
        bytes,
        end,
        topic,
        queue_id,
        queue_offset,
        physical,
        store_ms: i64_at(bytes, STORE_TIMESTAMP_AT)?,
        tag,
        sequence,
        properties_at: bytes.len().checked_sub(properties.len())?,
    })
}
