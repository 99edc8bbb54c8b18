//! The native header of a frame (protocol/lockstep/protocol/codec/msgpack_header.py): msgpack, scalars only.

use crate::fields::array;
use crate::msgpack::{put_head, put_value, Reader};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

const MSGPACK: u8 = 0x4D;
const ELEMENTS: usize = 6;
const FIELDS_MAX: usize = 128;

/// A frame: code, opaque, flag, version, remark, fields, body, serialize type, header bytes; and where it ends.
type Frame<'py> = ((i32, i32, i32, i32, Option<Bound<'py, PyString>>, Bound<'py, PyDict>, Bound<'py, PyBytes>, u8, usize), usize);

/// Return the frame that begins at `start`, or None to decline: it is not complete, or not one that is usual.
#[pyfunction]
pub fn next_frame<'py>(py: Python<'py>, data: &[u8], start: usize, frame_bytes_max: usize, header_bytes_max: usize) -> Option<Frame<'py>> {
    let length = usize::try_from(i32::from_be_bytes(array(data, start)?)).ok()?;
    let begin = start.checked_add(4)?;
    let end = begin.checked_add(length)?;
    if length > frame_bytes_max.checked_sub(4)? {
        return None;
    }
    let (word, rest) = data.get(begin..end)?.split_at_checked(4)?;
    let [kind, size @ ..] = word else { return None };
    let header_bytes = size.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    if *kind != MSGPACK || header_bytes > header_bytes_max {
        return None;
    }
    let (header, body) = rest.split_at_checked(header_bytes)?;
    let mut reader = Reader::new(header);
    if reader.array()? != ELEMENTS {
        return None;
    }
    let (code, flag, opaque, version) = (reader.int32()?, reader.int32()?, reader.int32()?, reader.int32()?);
    let remark = reader.remark(py)?;
    let count = reader.map()?;
    if count > FIELDS_MAX {
        return None;
    }
    let fields = PyDict::new(py);
    for _ in 0..count {
        let name = PyString::new(py, reader.text()?);
        fields.set_item(name, reader.value(py)?).ok()?;
    }
    let body = PyBytes::new(py, body);
    reader.is_at_end().then_some(((code, opaque, flag, version, remark, fields, body, *kind, header_bytes), end))
}

/// Return the frame of a command with its header and body, or None to decline: it is too large, or a value is no scalar.
#[pyfunction]
pub fn encode_frame<'py>(
    py: Python<'py>,
    command: &Bound<'py, PyAny>,
    header_bytes_max: usize,
    frame_bytes_max: usize,
) -> Option<Bound<'py, PyBytes>> {
    let body = command.getattr(intern!(py, "body")).ok()?.cast_into_exact::<PyBytes>().ok()?;
    let codec: u8 = command.getattr(intern!(py, "codec")).ok()?.extract().ok()?;
    let mut header = Vec::with_capacity(256);
    put_head(&mut header, 0x90, ELEMENTS)?;
    for name in [intern!(py, "code"), intern!(py, "flag"), intern!(py, "opaque"), intern!(py, "version"), intern!(py, "remark")] {
        put_value(&mut header, &command.getattr(name).ok()?)?;
    }
    let fields = command.getattr(intern!(py, "fields")).ok()?.cast_into_exact::<PyDict>().ok()?;
    put_head(&mut header, 0x80, fields.len())?;
    for (name, value) in fields.iter() {
        put_value(&mut header, name.cast_exact::<PyString>().ok()?.as_any())?;
        put_value(&mut header, &value)?;
    }
    let body = body.as_bytes();
    let length = header.len().checked_add(4)?.checked_add(body.len())?;
    if header.len() > header_bytes_max || length.checked_add(4)? > frame_bytes_max {
        return None;
    }
    let word = u32::from(codec).checked_shl(24)? | u32::try_from(header.len()).ok()?;
    let size = length.checked_add(4)?;
    let mut frame = Vec::with_capacity(size);
    frame.extend_from_slice(&i32::try_from(length).ok()?.to_be_bytes());
    frame.extend_from_slice(&word.to_be_bytes());
    frame.extend_from_slice(&header);
    PyBytes::new_with(py, size, |target| {
        for (part, at) in [(&frame[..], 0), (body, frame.len())] {
            if let Some(place) = at.checked_add(part.len()).and_then(|end| target.get_mut(at..end)) {
                place.copy_from_slice(part);
            }
        }
        Ok(())
    })
    .ok()
}
