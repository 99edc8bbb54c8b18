//! The producer's record of one message (protocol/lockstep/protocol/messages/message.py).

use crate::arguments::Int;
use crate::fields::{body_crc, MAGIC, PROPERTIES_BYTES_MAX, RECORD_BYTES_MIN, TOPIC_BYTES_MAX};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

const UNIQ_KEY_HEAD: &[u8] = b"UNIQ_KEY\x01";

/// Return the record of a message with the broker's fields zero, or None to decline.
#[pyfunction]
#[pyo3(signature = (topic, queue_id, body, properties, unique_key, flag, born_ms))]
#[allow(clippy::too_many_arguments)]
pub fn encode_message<'py>(
    py: Python<'py>,
    topic: &[u8],
    queue_id: Int,
    body: &[u8],
    properties: &[u8],
    unique_key: &str,
    flag: Int,
    born_ms: Int,
) -> Option<Bound<'py, PyBytes>> {
    let record = Record::new(topic, body, properties, unique_key, None, flag.0?)?;
    let (queue_id, born_ms) = (i32::try_from(queue_id.0?).ok()?, born_ms.0?);
    write(py, record.size, |target| record.put(target, queue_id, born_ms).map(|_| ()))
}

/// Return the records of messages, one after the other, and their sizes; None to decline. Bodies above `body_bytes_max` are compressed.
///
/// The unique keys are `key_head` and a counter of four digits that rises from `key_first`.
#[pyfunction]
#[pyo3(signature = (messages, queue_id, key_head, key_first, key_count, born_ms, body_bytes_max))]
#[allow(clippy::too_many_arguments)]
pub fn encode_messages<'py>(
    py: Python<'py>,
    messages: &Bound<'py, PyList>,
    queue_id: Int,
    key_head: &str,
    key_first: Int,
    key_count: usize,
    born_ms: &Bound<'py, PyList>,
    body_bytes_max: Int,
) -> Option<(Bound<'py, PyBytes>, Vec<usize>)> {
    let queue_id = i32::try_from(queue_id.0?).ok()?;
    let body_bytes_max = usize::try_from(body_bytes_max.0?).ok()?;
    if messages.len() != key_count || born_ms.len() != key_count {
        return None;
    }
    let counters = u16::try_from(key_first.0?).ok()?..=u16::MAX;
    let parts = messages
        .iter()
        .zip(counters)
        .zip(born_ms.iter())
        .map(|((message, counter), born_ms)| Parts::of(&message, counter, &born_ms))
        .collect::<Option<Vec<_>>>()?;
    let records = parts.iter().map(|part| part.record(key_head)).collect::<Option<Vec<_>>>()?;
    if records.len() != key_count || records.iter().any(|record| record.body.len() > body_bytes_max) {
        return None;
    }
    let sizes: Vec<usize> = records.iter().map(|record| record.size).collect();
    let total = sizes.iter().try_fold(0usize, |sum, size| sum.checked_add(*size))?;
    let data = write(py, total, |mut target| {
        for (record, part) in records.iter().zip(&parts) {
            target = record.put(target, queue_id, part.born_ms)?;
        }
        Some(())
    })?;
    Some((data, sizes))
}

/// The attributes of a Message that its record has.
struct Parts<'py> {
    topic: Bound<'py, PyBytes>,
    body: Bound<'py, PyBytes>,
    properties: Bound<'py, PyBytes>,
    counter: u16,
    flag: i64,
    born_ms: i64,
}

impl<'py> Parts<'py> {
    fn of(message: &Bound<'py, PyAny>, counter: u16, born_ms: &Bound<'py, PyAny>) -> Option<Self> {
        let py = message.py();
        let bytes = |name| message.getattr(name).ok()?.cast_into_exact::<PyBytes>().ok();
        Some(Parts {
            topic: bytes(intern!(py, "stored_topic"))?,
            body: bytes(intern!(py, "body"))?,
            properties: bytes(intern!(py, "stored_properties"))?,
            counter,
            flag: message.getattr(intern!(py, "flag")).ok()?.extract::<Int>().ok()?.0?,
            born_ms: born_ms.extract::<Int>().ok()?.0?,
        })
    }

    fn record<'a>(&'a self, key_head: &'a str) -> Option<Record<'a>> {
        Record::new(self.topic.as_bytes(), self.body.as_bytes(), self.properties.as_bytes(), key_head, Some(self.counter), self.flag)
    }
}

/// A message whose record fits the layout.
struct Record<'a> {
    size: usize,
    topic: &'a [u8],
    body: &'a [u8],
    properties: &'a [u8],
    property_bytes: u16,
    key_head: &'a str,
    /// The last digits of the unique key.
    key_tail: Option<[u8; 4]>,
    flag: i32,
}

impl<'a> Record<'a> {
    fn new(topic: &'a [u8], body: &'a [u8], properties: &'a [u8], key_head: &'a str, counter: Option<u16>, flag: i64) -> Option<Self> {
        let key_tail = counter.map(|number| [12, 8, 4, 0].map(|shift| hex_digit(number >> shift)));
        let separator = usize::from(!properties.is_empty());
        let property_bytes = properties
            .len()
            .checked_add(separator)?
            .checked_add(UNIQ_KEY_HEAD.len())?
            .checked_add(key_head.len())?
            .checked_add(key_tail.map_or(0, |digits| digits.len()))?;
        if topic.len() > TOPIC_BYTES_MAX || property_bytes > PROPERTIES_BYTES_MAX {
            return None;
        }
        let size = RECORD_BYTES_MIN.checked_add(body.len())?.checked_add(topic.len())?.checked_add(property_bytes)?;
        u32::try_from(size).ok()?;
        let (property_bytes, flag) = (u16::try_from(property_bytes).ok()?, i32::try_from(flag).ok()?);
        Some(Record { size, topic, body, properties, property_bytes, key_head, key_tail, flag })
    }

    /// Write the record to the beginning of `target`, and return the rest.
    fn put<'t>(&self, target: &'t mut [u8], queue_id: i32, born_ms: i64) -> Option<&'t mut [u8]> {
        let mut rest = target;
        for part in [
            &u32::try_from(self.size).ok()?.to_be_bytes()[..],
            &MAGIC.to_be_bytes(),
            &body_crc(self.body).to_be_bytes(),
            &queue_id.to_be_bytes(),
            &self.flag.to_be_bytes(),
            &[0; 20],
            &born_ms.to_be_bytes(),
            &[0; 36],
            &u32::try_from(self.body.len()).ok()?.to_be_bytes(),
            self.body,
            &[u8::try_from(self.topic.len()).ok()?],
            self.topic,
            &self.property_bytes.to_be_bytes(),
            self.properties,
            if self.properties.is_empty() { b"" } else { b"\x02" },
            UNIQ_KEY_HEAD,
            self.key_head.as_bytes(),
            self.key_tail.as_ref().map_or(b"", |digits| &digits[..]),
        ] {
            let (here, behind) = rest.split_at_mut_checked(part.len())?;
            here.copy_from_slice(part);
            rest = behind;
        }
        Some(rest)
    }
}

/// Return the upper-case digit of the last four bits.
fn hex_digit(number: u16) -> u8 {
    let [_, byte] = (number & 0x0F).to_be_bytes();
    if byte < 10 {
        b'0' | byte
    } else {
        b'A'.wrapping_add(byte).wrapping_sub(10)
    }
}

/// Return `size` bytes that `fill` has written.
fn write<'py>(py: Python<'py>, size: usize, fill: impl FnOnce(&mut [u8]) -> Option<()>) -> Option<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, size, |target| fill(target).ok_or_else(|| PyValueError::new_err("the parts are longer than their sum"))).ok()
}
