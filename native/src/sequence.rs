//! The sequence of an idempotent producer's frame (protocol/lockstep/protocol/messages/sequence.py).

use crate::arguments::Int;
use crate::decode::split_record;
use crate::fields::{PROPERTIES_BYTES_MAX, TOPIC_BYTES_MAX};
use crate::properties::STAMP_HEAD;
use pyo3::prelude::*;

const ZERO_DIGITS: &[u8] = b"00000000";
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
