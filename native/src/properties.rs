//! Properties as a record stores them: `name 0x01 value 0x02 name 0x01 value` (protocol/lockstep/protocol/messages/properties.py).

const TAGS: &[u8] = b"TAGS\x01";
const RETRY_TOPIC: &[u8] = b"RETRY_TOPIC\x01";
const OWN_PREFIX: &[u8] = b"__LS_";
const REFUSED: [&[u8]; 7] = [b"DELAY\x01", b"TIMER_", b"TRAN_MSG\x01", b"PGROUP\x01", RETRY_TOPIC, b"REAL_TOPIC\x01", b"REAL_QID\x01"];
pub const STAMP_HEAD: &[u8] = b"__LS_SEQ\x01";
pub const WAITED_HEAD: &[u8] = b"__LS_FROM\x01";
const TIMER_DELAY: &[u8] = b"TIMER_DELAY_MS\x01";
const TIMER_DELIVER: &[u8] = b"TIMER_DELIVER_MS\x01";
const TIMER_DIGITS_MAX: usize = 15;
pub const SEQUENCE_DIGITS: usize = 87;
const COUNT_AT: usize = 72;
const COUNT_DIGITS: usize = 6;

/// Whether the bytes may be properties of a stored record: UTF-8 without a byte 0.
pub fn is_text(properties: &[u8]) -> bool {
    // Without a branch for each byte the compiler uses vectors.
    let zeros = properties.iter().fold(0u8, |found, byte| found | u8::from(*byte == 0));
    zeros == 0 && std::str::from_utf8(properties).is_ok()
}

/// What `scan` found in the properties of one record.
pub struct Scan {
    /// Java's hash of the tag, 0 without one.
    pub tag: i32,
    /// Whether no name is refused in a batch.
    pub allowed: bool,
    /// How many names begin with `__LS_`.
    pub marks: usize,
}

/// Look at every name once. None if a tag is not UTF-8.
pub fn scan(properties: &[u8]) -> Option<Scan> {
    let mut found = Scan { tag: 0, allowed: true, marks: 0 };
    let mut tagged = false;
    for pair in properties.split(|byte| *byte == 2) {
        match pair.first() {
            Some(b'T') if !tagged && pair.starts_with(TAGS) => {
                tagged = true;
                found.tag = java_hash(std::str::from_utf8(pair.get(TAGS.len()..)?).ok()?);
            }
            Some(b'_') if pair.starts_with(OWN_PREFIX) => found.marks = found.marks.checked_add(1)?,
            Some(b'D' | b'P' | b'R' | b'T') if REFUSED.iter().any(|name| pair.starts_with(name)) => found.allowed = false,
            _ => {}
        }
    }
    Some(found)
}

/// The properties of a record that goes to a waiting room.
pub struct Room<'a> {
    /// What follows those of the room.
    pub sent: &'a [u8],
    /// Whether it waits until a time of day.
    absolute: bool,
    value: i64,
}

/// Return the properties of a waiting room: those of the home, after a sequence if there is one, and then, if it is `timed`, that of a timer.
/// None if they are not there.
pub fn read_room<'a>(properties: &'a [u8], home: &[u8], timed: bool) -> Option<Room<'a>> {
    let begun = match properties.strip_prefix(STAMP_HEAD) {
        Some(value) => {
            let (digits, others) = value.split_at_checked(SEQUENCE_DIGITS)?;
            if !digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
                return None;
            }
            others.strip_prefix(b"\x02")?
        }
        None => properties,
    };
    let timer = begun.strip_prefix(home)?;
    if !timed {
        return Some(Room { sent: timer, absolute: false, value: 0 });
    }
    let end = timer.iter().position(|byte| *byte == 2).unwrap_or(timer.len());
    let pair = timer.get(..end)?;
    let (absolute, digits) = match pair.strip_prefix(TIMER_DELAY) {
        Some(digits) => (false, digits),
        None => (true, pair.strip_prefix(TIMER_DELIVER)?),
    };
    if digits.len() > TIMER_DIGITS_MAX || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value: i64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let sent = timer.get(end.saturating_add(1)..).unwrap_or_default();
    (value > 0).then_some(Room { sent, absolute, value })
}

impl Room<'_> {
    /// Return the due code (rooms.py) of a record that is stored at this time, None if it is due after `due_max`.
    pub fn code(&self, store_ms: i64, due_max: Option<i64>) -> Option<i64> {
        let due_ms = if self.absolute { self.value } else { store_ms.checked_add(self.value)? };
        if due_max.is_some_and(|latest| due_ms > latest) {
            return None;
        }
        due_ms.checked_mul(4)?.checked_add(i64::from(self.absolute))
    }
}

/// Return Java's hash of the tag of stored properties, 0 without one, and whether the record is a copy for a retry. None if the tag is not
/// UTF-8.
pub fn tag_and_retry(properties: &[u8]) -> Option<(i32, bool)> {
    let (mut tag, mut retried) = (None, false);
    for (number, pair) in properties.split(|byte| *byte == 2).enumerate() {
        match pair.first() {
            Some(b'T') if tag.is_none() && pair.starts_with(TAGS) => {
                tag = Some(java_hash(std::str::from_utf8(pair.get(TAGS.len()..)?).ok()?))
            }
            Some(b'R') if number > 0 && pair.starts_with(RETRY_TOPIC) => retried = true,
            _ => {}
        }
    }
    Some((tag.unwrap_or(0), retried))
}

/// Java's String.hashCode: h = 31·h + UTF-16 unit, wrapped to int32.
fn java_hash(text: &str) -> i32 {
    text.encode_utf16().fold(0i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

/// Whether the properties begin with an `__LS_SEQ` of full length that counts `count` records. Its other digits the caller has checked.
pub fn begins_with_sequence(properties: &[u8], count: usize) -> Option<bool> {
    let value = properties.strip_prefix(STAMP_HEAD)?;
    let end = COUNT_AT.checked_add(COUNT_DIGITS)?;
    let counted = value.get(COUNT_AT..end)? == format!("{count:06x}").as_bytes();
    let whole = value.len() == SEQUENCE_DIGITS || *value.get(SEQUENCE_DIGITS)? == 2;
    Some(counted && whole)
}
