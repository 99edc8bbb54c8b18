//! The scalars of msgpack, as the Python library reads and writes them. What is not one of them is None, and the kernel declines.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyString};

/// Reads values from the front of some bytes.
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Reader { rest: data }
    }

    pub fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn array_of<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn length(&mut self, bytes: usize) -> Option<usize> {
        match bytes {
            1 => self.byte().map(usize::from),
            2 => self.array_of().map(u16::from_be_bytes).map(usize::from),
            _ => usize::try_from(u32::from_be_bytes(self.array_of()?)).ok(),
        }
    }

    /// Return the number of elements of the array that begins here. Longer arrays than of 15 elements are not headers of this version.
    pub fn array(&mut self) -> Option<usize> {
        let first = self.byte()?;
        (first & 0xF0 == 0x90).then_some(usize::from(first & 0x0F))
    }

    /// Return the number of entries of the map that begins here.
    pub fn map(&mut self) -> Option<usize> {
        match self.byte()? {
            first @ 0x80..=0x8F => Some(usize::from(first & 0x0F)),
            0xDE => self.length(2),
            _ => None,
        }
    }

    /// Return the integer that begins here, which fits 64 bits signed.
    fn int_of(&mut self, first: u8) -> Option<i64> {
        Some(match first {
            0x00..=0x7F => i64::from(first),
            0xE0..=0xFF => i64::from(i8::from_be_bytes([first])),
            0xCC => i64::from(self.byte()?),
            0xCD => i64::from(u16::from_be_bytes(self.array_of()?)),
            0xCE => i64::from(u32::from_be_bytes(self.array_of()?)),
            0xCF => i64::try_from(u64::from_be_bytes(self.array_of()?)).ok()?,
            0xD0 => i64::from(i8::from_be_bytes([self.byte()?])),
            0xD1 => i64::from(i16::from_be_bytes(self.array_of()?)),
            0xD2 => i64::from(i32::from_be_bytes(self.array_of()?)),
            0xD3 => i64::from_be_bytes(self.array_of()?),
            _ => return None,
        })
    }

    pub fn int32(&mut self) -> Option<i32> {
        let first = self.byte()?;
        i32::try_from(self.int_of(first)?).ok()
    }

    fn text_of(&mut self, first: u8) -> Option<&'a str> {
        let length = match first {
            0xA0..=0xBF => usize::from(first & 0x1F),
            0xD9 => self.length(1)?,
            0xDA => self.length(2)?,
            0xDB => self.length(4)?,
            _ => return None,
        };
        std::str::from_utf8(self.take(length)?).ok()
    }

    pub fn text(&mut self) -> Option<&'a str> {
        let first = self.byte()?;
        self.text_of(first)
    }

    /// Return the str or nil that begins here.
    pub fn remark<'py>(&mut self, py: Python<'py>) -> Option<Option<Bound<'py, PyString>>> {
        match self.byte()? {
            0xC0 => Some(None),
            first => Some(Some(PyString::new(py, self.text_of(first)?))),
        }
    }

    /// Return the scalar that begins here.
    pub fn value<'py>(&mut self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        let first = self.byte()?;
        Some(match first {
            0xC0 => py.None().into_bound(py),
            0xC2 | 0xC3 => PyBool::new(py, first == 0xC3).to_owned().into_any(),
            0xC4..=0xC6 => {
                let length = self.length(1usize.checked_shl(u32::from(first.checked_sub(0xC4)?))?)?;
                PyBytes::new(py, self.take(length)?).into_any()
            }
            0xCA => PyFloat::new(py, f64::from(f32::from_be_bytes(self.array_of()?))).into_any(),
            0xCB => PyFloat::new(py, f64::from_be_bytes(self.array_of()?)).into_any(),
            0xA0..=0xBF | 0xD9..=0xDB => PyString::new(py, self.text_of(first)?).into_any(),
            _ => self.int_of(first)?.into_pyobject(py).ok()?.into_any(),
        })
    }
}

/// Write the head of an array (0x90) or of a map (0x80).
pub fn put_head(target: &mut Vec<u8>, kind: u8, count: usize) -> Option<()> {
    if count < 16 {
        target.push(kind | u8::try_from(count).ok()?);
    } else {
        target.push(if kind == 0x90 { 0xDC } else { 0xDE });
        target.extend_from_slice(&u16::try_from(count).ok()?.to_be_bytes());
    }
    Some(())
}

/// Write a scalar in its shortest form.
pub fn put_value(target: &mut Vec<u8>, value: &Bound<'_, PyAny>) -> Option<()> {
    if value.is_none() {
        target.push(0xC0);
    } else if let Ok(flag) = value.cast_exact::<PyBool>() {
        target.push(if flag.is_true() { 0xC3 } else { 0xC2 });
    } else if let Ok(number) = value.cast::<PyInt>() {
        put_int(target, number.extract().ok()?);
    } else if let Ok(text) = value.cast_exact::<PyString>() {
        put_text(target, text.to_str().ok()?.as_bytes())?;
    } else if let Ok(bytes) = value.cast_exact::<PyBytes>() {
        let bytes = bytes.as_bytes();
        put_length(target, [None, Some(0xC4), Some(0xC5), Some(0xC6)], bytes.len())?;
        target.extend_from_slice(bytes);
    } else if let Ok(number) = value.cast_exact::<PyFloat>() {
        target.push(0xCB);
        target.extend_from_slice(&number.value().to_be_bytes());
    } else {
        return None;
    }
    Some(())
}

fn put_text(target: &mut Vec<u8>, text: &[u8]) -> Option<()> {
    put_length(target, [Some(0xA0), Some(0xD9), Some(0xDA), Some(0xDB)], text.len())?;
    target.extend_from_slice(text);
    Some(())
}

/// Write the marker and length of a str or bin: `markers` are those of a length of 5, 8, 16 and 32 bits.
fn put_length(target: &mut Vec<u8>, markers: [Option<u8>; 4], length: usize) -> Option<()> {
    let [fixed, one, two, four] = markers;
    match (fixed, u8::try_from(length), u16::try_from(length)) {
        (Some(marker), Ok(short), _) if short < 32 => target.push(marker | short),
        (_, Ok(short), _) => target.extend_from_slice(&[one?, short]),
        (_, _, Ok(long)) => {
            target.push(two?);
            target.extend_from_slice(&long.to_be_bytes());
        }
        _ => {
            target.push(four?);
            target.extend_from_slice(&u32::try_from(length).ok()?.to_be_bytes());
        }
    }
    Some(())
}

fn put_int(target: &mut Vec<u8>, number: i64) {
    if let Ok(small) = u8::try_from(number) {
        if small >= 0x80 {
            target.push(0xCC);
        }
        target.push(small);
    } else if let Ok(short) = u16::try_from(number) {
        target.push(0xCD);
        target.extend_from_slice(&short.to_be_bytes());
    } else if let Ok(long) = u32::try_from(number) {
        target.push(0xCE);
        target.extend_from_slice(&long.to_be_bytes());
    } else if number > 0 {
        target.push(0xCF);
        target.extend_from_slice(&number.to_be_bytes());
    } else if let Ok(small) = i8::try_from(number) {
        if small < -32 {
            target.push(0xD0);
        }
        target.extend_from_slice(&small.to_be_bytes());
    } else if let Ok(short) = i16::try_from(number) {
        target.push(0xD1);
        target.extend_from_slice(&short.to_be_bytes());
    } else if let Ok(long) = i32::try_from(number) {
        target.push(0xD2);
        target.extend_from_slice(&long.to_be_bytes());
    } else {
        target.push(0xD3);
        target.extend_from_slice(&number.to_be_bytes());
    }
}
