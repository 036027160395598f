//! Renders sealed groups as folded records (see `Renderer` in `folding/core/record.py`, the reference).

/// The version of a record is the partition count of the source times this, plus its last offset, plus the lost offsets.
const VERSION_SHIFT: i64 = 1 << 40;

/// Size of the numbers in a value, at most.
const NUMBERS_BYTES: usize = 200;

/// The parts that all records of a shard have in common.
pub struct Parts {
    /// The fold id up to the offsets.
    pub id: Vec<u8>,
    pub before_group: Vec<u8>,
    pub before_names: Vec<u8>,
    pub before_span: Vec<u8>,
    pub before_reason: Vec<u8>,
    /// What follows the offsets in the fold id if offsets were lost.
    pub behind: Vec<u8>,
    pub lost: i64,
}

/// A sealed group with one text field as its key.
pub struct Sealed<'a> {
    pub key: &'a [u8],
    pub first_offset: i64,
    pub last_offset: i64,
    pub events: i64,
    pub first_event_ms: i64,
    pub last_event_ms: i64,
    pub reason: &'a [u8],
    pub partitions: i64,
    /// The changed names as a sorted JSON array.
    pub names: &'a [u8],
}

/// Where fold id, key and value of a record are; they follow each other.
struct Place {
    begin: usize,
    key: usize,
    value: usize,
    end: usize,
    owner: usize,
}

/// Rendered records, one after the other.
pub struct Folded {
    bytes: Vec<u8>,
    places: Vec<Place>,
    most_bytes: usize,
}

impl Folded {
    pub fn new(most_bytes: usize) -> Folded {
        Folded { bytes: Vec::new(), places: Vec::new(), most_bytes }
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns fold id, key and value.
    pub fn at(&self, index: usize) -> Option<(&[u8], &[u8], &[u8])> {
        let place = self.places.get(index)?;
        Some((&self.bytes[place.begin..place.key], &self.bytes[place.key..place.value], &self.bytes[place.value..place.end]))
    }

    /// Returns, for each record, the position of its group.
    pub fn owners(&self) -> impl Iterator<Item = usize> + '_ {
        self.places.iter().map(|place| place.owner)
    }

    /// Adds a record that Python has rendered; returns false if there is no room for it.
    pub fn put(&mut self, owner: usize, id: &[u8], key: &[u8], value: &[u8]) -> bool {
        if id.len() + key.len() + value.len() > self.most_bytes.saturating_sub(self.bytes.len()) {
            return false;
        }
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(id);
        let key_begin = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let value_begin = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.places.push(Place { begin, key: key_begin, value: value_begin, end: self.bytes.len(), owner });
        true
    }

    /// Renders a group; returns false, without a change, if Python must render it.
    pub fn render(&mut self, owner: usize, parts: &Parts, sealed: &Sealed, most_value_bytes: usize) -> bool {
        let shift = sealed.partitions.checked_mul(VERSION_SHIFT);
        let version = shift.and_then(|sum| sum.checked_add(sealed.last_offset)).and_then(|sum| sum.checked_add(parts.lost));
        let (Some(version), Ok(key)) = (version, std::str::from_utf8(sealed.key)) else {
            return false;
        };
        let used = self.bytes.len();
        // An escaped character has six bytes at most, and the id is in the header, too.
        let common = 2 * parts.id.len() + parts.before_group.len() + parts.before_names.len() + parts.before_span.len();
        let usual = common + parts.before_reason.len() + 2 * parts.behind.len() + sealed.reason.len() + NUMBERS_BYTES;
        let most = usual.saturating_add(7 * key.len()).saturating_add(sealed.names.len());
        if sealed.names.len() > most_value_bytes || most > self.most_bytes.saturating_sub(used) {
            return false;
        }
        let out = &mut self.bytes;
        out.extend_from_slice(&parts.id);
        let span = out.len();
        decimal(out, sealed.first_offset);
        out.push(b'-');
        decimal(out, sealed.last_offset);
        out.extend_from_slice(&parts.behind);
        let key_begin = out.len();
        out.extend_from_slice(sealed.key);
        let value_begin = out.len();
        out.extend_from_slice(&parts.before_group);
        json_text(out, key);
        out.extend_from_slice(&parts.before_names);
        out.extend_from_slice(sealed.names);
        out.extend_from_slice(&parts.before_span);
        out.extend_from_within(span..key_begin);
        out.extend_from_slice(&parts.before_reason);
        out.extend_from_slice(sealed.reason);
        out.extend_from_slice(b"\",\"events\":");
        decimal(out, sealed.events);
        out.extend_from_slice(b",\"first_event_ms\":");
        decimal(out, sealed.first_event_ms);
        out.extend_from_slice(b",\"last_event_ms\":");
        decimal(out, sealed.last_event_ms);
        out.extend_from_slice(b",\"version\":");
        decimal(out, version);
        out.extend_from_slice(b"}}");
        if out.len() - value_begin > most_value_bytes {
            out.truncate(used);
            return false;
        }
        self.places.push(Place { begin: used, key: key_begin, value: value_begin, end: self.bytes.len(), owner });
        true
    }
}

fn decimal(out: &mut Vec<u8>, number: i64) {
    let mut digits = [0; 20];
    let (mut at, mut rest) = (digits.len(), number.unsigned_abs());
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[at..]);
}

/// Writes text as JSON with the escapes of orjson.
fn json_text(out: &mut Vec<u8>, text: &str) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    for &byte in text.as_bytes() {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            8 => out.extend_from_slice(b"\\b"),
            12 => out.extend_from_slice(b"\\f"),
            0..=31 => {
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
            }
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}
