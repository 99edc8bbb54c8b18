//! The producer's record of one message (protocol/lockstep/protocol/message.py, `encode_message`).

use crate::arguments::Int;
use crate::fields::{body_crc, MAGIC, PROPERTIES_BYTES_MAX, RECORD_BYTES_MIN, TOPIC_BYTES_MAX};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

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
    let separator: &[u8] = if properties.is_empty() { b"" } else { b"\x02" };
    let property_bytes = properties
        .len()
        .checked_add(separator.len())?
        .checked_add(UNIQ_KEY_HEAD.len())?
        .checked_add(unique_key.len())?;
    if topic.len() > TOPIC_BYTES_MAX || property_bytes > PROPERTIES_BYTES_MAX {
        return None;
    }
    let size = RECORD_BYTES_MIN
        .checked_add(body.len())?
        .checked_add(topic.len())?
        .checked_add(property_bytes)?;
    let mut head = Head { bytes: [0; 88], at: 0 };
    head.put(&u32::try_from(size).ok()?.to_be_bytes())?;
    head.put(&MAGIC.to_be_bytes())?;
    head.put(&body_crc(body).to_be_bytes())?;
    head.put(&i32::try_from(queue_id.0?).ok()?.to_be_bytes())?;
    head.put(&i32::try_from(flag.0?).ok()?.to_be_bytes())?;
    head.put(&[0; 16])?;
    head.put(&[0; 4])?;
    head.put(&born_ms.0?.to_be_bytes())?;
    head.put(&[0; 36])?;
    head.put(&u32::try_from(body.len()).ok()?.to_be_bytes())?;
    let topic_length = [u8::try_from(topic.len()).ok()?];
    let property_length = u16::try_from(property_bytes).ok()?.to_be_bytes();
    let parts: [&[u8]; 9] = [
        &head.bytes,
        body,
        &topic_length,
        topic,
        &property_length,
        properties,
        separator,
        UNIQ_KEY_HEAD,
        unique_key.as_bytes(),
    ];
    join(py, size, &parts)
}

struct Head {
    bytes: [u8; 88],
    at: usize,
}

impl Head {
    fn put(&mut self, value: &[u8]) -> Option<()> {
        let end = self.at.checked_add(value.len())?;
        self.bytes.get_mut(self.at..end)?.copy_from_slice(value);
        self.at = end;
        Some(())
    }
}

/// Return `parts`, which have `size` bytes together, as bytes.
fn join<'py>(py: Python<'py>, size: usize, parts: &[&[u8]]) -> Option<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, size, |mut target| {
        for part in parts {
            let (here, behind) = std::mem::take(&mut target)
                .split_at_mut_checked(part.len())
                .ok_or_else(|| pyo3::exceptions::PyValueError::new_err("parts are longer than their size"))?;
            here.copy_from_slice(part);
            target = behind;
        }
        Ok(())
    })
    .ok()
}
