//! The sequence of an idempotent producer's frame (protocol/lockstep/protocol/messages/sequence.py).

use crate::arguments::Int;
use crate::decode::split_record;
use crate::fields::{PROPERTIES_BYTES_MAX, TOPIC_BYTES_MAX};
use crate::properties::{SEQUENCE_DIGITS, STAMP_HEAD};
use pyo3::prelude::*;

pub const ZERO_DIGITS: &[u8] = b"00000000";
const CRC_DIGITS: usize = 8;

/// Return whether the first record begins its properties with this sequence and the frame has this running CRC. False: the Python form
/// decides. `crc_before` is None if it is not known.
#[pyfunction]
#[pyo3(signature = (frame, producer_id, partition, epoch, first, count, flags, crc, crc_before))]
#[allow(clippy::too_many_arguments)]
pub fn carries_sequence(
    frame: &[u8],
    producer_id: &str,
    partition: Int,
    epoch: Int,
    first: Int,
    count: Int,
    flags: Int,
    crc: Int,
    crc_before: Option<u32>,
) -> bool {
    let check = || {
        let (partition, epoch) = (u32::try_from(partition.0?).ok()?, u64::try_from(epoch.0?).ok()?);
        let (first, count) = (u64::try_from(first.0?).ok()?, u32::try_from(count.0?).ok()?);
        let (flags, crc) = (u8::try_from(flags.0?).ok()?, u32::try_from(crc.0?).ok()?);
        let sequence = format!("{producer_id}{partition:08x}{epoch:016x}{first:016x}{count:06x}{flags}");
        let (topic_at, stamp_at, record_end) = split_record(frame, 0)?;
        let topic_bytes = stamp_at.checked_sub(topic_at)?.checked_sub(2)?;
        if topic_bytes > TOPIC_BYTES_MAX || record_end.checked_sub(stamp_at)? > PROPERTIES_BYTES_MAX {
            return None;
        }
        let digits_at = stamp_at.checked_add(STAMP_HEAD.len())?.checked_add(sequence.len())?;
        let end = digits_at.checked_add(CRC_DIGITS)?;
        let stamp = frame.get(stamp_at..digits_at)?.strip_prefix(STAMP_HEAD)?;
        let is_hex = producer_id.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        i64::try_from(first.checked_add(u64::from(count))?).ok()?;
        let well_formed = is_hex && producer_id.len() == 32 && sequence.len() == 79 && flags < 4;
        if !well_formed || stamp != sequence.as_bytes() || frame.get(digits_at..end)? != format!("{crc:08x}").as_bytes() {
            return None;
        }
        let Some(before) = crc_before else { return Some(true) };
        let mut running = crc32fast::Hasher::new_with_initial(before);
        for part in [frame.get(..digits_at)?, ZERO_DIGITS, frame.get(end..)?] {
            running.update(part);
        }
        Some(running.finalize() == crc)
    };
    check().unwrap_or(false)
}

/// The sequence in the properties of the first record of a frame.
#[derive(Clone, Copy)]
pub struct Sequence<'a> {
    /// The digits of the producer id and of the partition.
    pub scope: &'a [u8],
    pub producer: &'a str,
    pub partition: u32,
    pub epoch: i64,
    pub first: i64,
    pub next: i64,
    pub count: u32,
    pub crc: u32,
    /// Where the digits of the CRC begin in the properties.
    pub crc_at: usize,
    flags: u32,
}

impl<'a> Sequence<'a> {
    /// Return the sequence that these properties begin with, if there is one. None to decline: it is malformed.
    pub fn find(properties: &'a [u8]) -> Option<Option<Self>> {
        let Some(rest) = properties.strip_prefix(STAMP_HEAD) else { return Some(None) };
        let (value, behind) = rest.split_at_checked(SEQUENCE_DIGITS)?;
        if !matches!(behind.first(), None | Some(2)) {
            return None;
        }
        let (scope, _) = value.split_at_checked(40)?;
        let (producer, rest) = value.split_at_checked(32)?;
        hex(producer.get(..16)?)?;
        hex(producer.get(16..)?)?;
        let (partition, rest) = rest.split_at_checked(8)?;
        let (epoch, rest) = rest.split_at_checked(16)?;
        let (first, rest) = rest.split_at_checked(16)?;
        let (count, rest) = rest.split_at_checked(6)?;
        let (flags, crc) = rest.split_at_checked(1)?;
        let (first, count) = (i64::try_from(hex(first)?).ok()?, u32::try_from(hex(count)?).ok()?);
        let sequence = Sequence {
            scope,
            producer: std::str::from_utf8(producer).ok()?,
            partition: u32::try_from(hex(partition)?).ok()?,
            epoch: i64::try_from(hex(epoch)?).ok()?,
            first,
            next: first.checked_add(i64::from(count))?,
            count,
            crc: u32::try_from(hex(crc)?).ok()?,
            crc_at: STAMP_HEAD.len().checked_add(SEQUENCE_DIGITS)?.checked_sub(CRC_DIGITS)?,
            flags: u32::try_from(hex(flags)?).ok()?,
        };
        (sequence.count > 0 && sequence.flags < 4).then_some(Some(sequence))
    }

    pub fn first_known(&self) -> bool {
        self.flags & 1 != 0
    }

    pub fn given(&self) -> bool {
        self.flags & 2 != 0
    }
}

/// Return the number of these lower-case hex digits, of which there are at most 16.
fn hex(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0u64, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit.wrapping_sub(b'0'),
            b'a'..=b'f' => digit.wrapping_sub(b'a').wrapping_add(10),
            _ => return None,
        };
        Some(number << 4 | u64::from(value))
    })
}
