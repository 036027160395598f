//! Reads the group key and the changed names of an event in JSON, without decoding the rest.
//!
//! [`read`] accepts only what the readers in Python accept, and only usual events: strings without escapes, names that the fold has
//! seen before, no field twice. It returns `None` for every other event, which Python reads: Python alone decides why an event is
//! rejected.

use hashbrown::HashMap;

/// Number of bits of a [`Mask`], one for each changed name; Python gives a bit to fewer names (`folding/core/names.py`).
pub const MASK_BITS: usize = 1_024;

/// Nesting up to which values are skipped; Python has a higher limit.
const MAX_DEPTH: u32 = 100;

/// A set of changed names: one bit for each.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub struct Mask(pub [u64; MASK_BITS / 64]);

impl Mask {
    pub fn insert(&mut self, bit: u16) {
        self.0[usize::from(bit) / 64] |= 1 << (bit % 64);
    }

    pub fn join(&mut self, other: &Mask) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine |= theirs;
        }
    }

    pub fn count(&self) -> u32 {
        self.0.iter().map(|part| part.count_ones()).sum()
    }
}

/// The two fields that a fold reads, and its limits.
pub struct Fields {
    pub group: Vec<u8>,
    pub changed: Vec<u8>,
    pub value_bytes: usize,
    pub key_bytes: usize,
    pub names_per_event: u32,
    /// Bit of each name that Python has accepted.
    pub bits: HashMap<Vec<u8>, u16>,
}

/// Reads an event; returns its group key and its changed names, or `None` if Python must read it.
pub fn read<'a>(value: &'a [u8], fields: &Fields) -> Option<(&'a [u8], Mask)> {
    if value.len() > fields.value_bytes {
        return None;
    }
    let mut json = Json { bytes: value, at: 0 };
    let (mut group, mut changed) = (None, None);
    json.skip_spaces();
    json.expect(b'{')?;
    json.skip_spaces();
    loop {
        let name = json.plain_string()?;
        json.colon()?;
        if name == fields.group {
            if group.replace(json.plain_string()?).is_some() {
                return None;
            }
        } else if name == fields.changed {
            if changed.replace(json.names(fields)?).is_some() {
                return None;
            }
        } else {
            json.skip_value(1)?;
        }
        if json.is_last(b'}')? {
            break;
        }
    }
    json.skip_spaces();
    if json.at != value.len() || std::str::from_utf8(value).is_err() {
        return None;
    }
    let group = group.filter(|found| !found.is_empty() && found.len() <= fields.key_bytes)?;
    Some((group, changed?))
}

struct Json<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// Whether a byte needs no escape within a string and does not end it.
const PLAIN: [bool; 256] = {
    let mut table = [true; 256];
    let mut byte = 0;
    while byte < 32 {
        table[byte] = false;
        byte += 1;
    }
    table[b'"' as usize] = false;
    table[b'\\' as usize] = false;
    table
};

impl<'a> Json<'a> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn skip_while(&mut self, accept: impl Fn(u8) -> bool) {
        let rest = &self.bytes[self.at..];
        self.at += rest.iter().position(|&byte| !accept(byte)).unwrap_or(rest.len());
    }

    fn skip_spaces(&mut self) {
        self.skip_while(|byte| matches!(byte, b' ' | b'\n' | b'\r' | b'\t'));
    }

    fn colon(&mut self) -> Option<()> {
        self.skip_spaces();
        self.expect(b':')?;
        self.skip_spaces();
        Some(())
    }

    /// Reads what follows a member of an object or an array: a comma, or `end`, for which it returns true.
    fn is_last(&mut self, end: u8) -> Option<bool> {
        self.skip_spaces();
        let byte = self.peek()?;
        self.at += 1;
        if byte == b',' {
            self.skip_spaces();
            return Some(false);
        }
        (byte == end).then_some(true)
    }

    /// Reads a string without escapes.
    fn plain_string(&mut self) -> Option<&'a [u8]> {
        self.expect(b'"')?;
        let begin = self.at;
        self.skip_while(|byte| PLAIN[usize::from(byte)]);
        let end = self.at;
        self.expect(b'"')?;
        Some(&self.bytes[begin..end])
    }

    /// Reads changed names: the names of an object, the items of an array, or one string.
    fn names(&mut self, fields: &Fields) -> Option<Mask> {
        let (end, is_object) = match self.peek()? {
            b'{' => (b'}', true),
            b'[' => (b']', false),
            _ => {
                let mut mask = Mask::default();
                mask.insert(*fields.bits.get(self.plain_string()?)?);
                return Some(mask);
            }
        };
        self.at += 1;
        self.skip_spaces();
        let (mut mask, mut count) = (Mask::default(), 0);
        loop {
            mask.insert(*fields.bits.get(self.plain_string()?)?);
            count += 1;
            if is_object {
                self.colon()?;
                self.skip_value(2)?;
            }
            if self.is_last(end)? {
                break;
            }
        }
        (count <= fields.names_per_event).then_some(mask)
    }

    fn skip_value(&mut self, depth: u32) -> Option<()> {
        match self.peek()? {
            b'"' => self.skip_string(),
            b'{' => self.skip_members(depth, b'}'),
            b'[' => self.skip_members(depth, b']'),
            b't' => self.skip_word(b"true"),
            b'f' => self.skip_word(b"false"),
            b'n' => self.skip_word(b"null"),
            _ => self.skip_number(),
        }
    }

    fn skip_members(&mut self, depth: u32, end: u8) -> Option<()> {
        if depth >= MAX_DEPTH {
            return None;
        }
        self.at += 1;
        self.skip_spaces();
        if self.peek()? == end {
            self.at += 1;
            return Some(());
        }
        loop {
            if end == b'}' {
                self.skip_string()?;
                self.colon()?;
            }
            self.skip_value(depth + 1)?;
            if self.is_last(end)? {
                return Some(());
            }
        }
    }

    /// Skips a string. Escaped surrogates are left to Python.
    fn skip_string(&mut self) -> Option<()> {
        self.expect(b'"')?;
        loop {
            self.skip_while(|byte| PLAIN[usize::from(byte)]);
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    return Some(());
                }
                b'\\' if matches!(self.bytes.get(self.at + 1)?, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                    self.at += 2;
                }
                b'\\' if self.is_scalar_escape() => self.at += 6,
                _ => return None,
            }
        }
    }

    /// Returns whether `\u` and four hexadecimal digits follow that are no half of a surrogate pair.
    fn is_scalar_escape(&self) -> bool {
        let digits = match self.bytes.get(self.at + 1..self.at + 6) {
            Some([b'u', digits @ ..]) if digits.iter().all(u8::is_ascii_hexdigit) => digits,
            _ => return false,
        };
        !(matches!(digits[0], b'd' | b'D') && digits[1].to_ascii_lowercase() >= b'8')
    }

    fn skip_word(&mut self, word: &[u8]) -> Option<()> {
        self.bytes[self.at..].starts_with(word).then(|| self.at += word.len())
    }

    fn skip_digits(&mut self) -> Option<()> {
        let begin = self.at;
        self.skip_while(|byte| byte.is_ascii_digit());
        (self.at > begin).then_some(())
    }

    fn skip_number(&mut self) -> Option<()> {
        if self.peek()? == b'-' {
            self.at += 1;
        }
        if self.peek()? == b'0' {
            self.at += 1;
        } else {
            self.skip_digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.skip_digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek()?, b'+' | b'-') {
                self.at += 1;
            }
            self.skip_digits()?;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> Fields {
        let bits = [(b"likes".to_vec(), 0), (b"shares".to_vec(), 70)].into_iter().collect();
        Fields { group: b"id".into(), changed: b"m".into(), value_bytes: 500, key_bytes: 8, names_per_event: 2, bits }
    }

    fn names(value: &str) -> Option<u32> {
        read(value.as_bytes(), &fields()).map(|(_, mask)| mask.count())
    }

    #[test]
    fn usual_events_are_read() {
        for value in [
            r#"{"id":"a","m":{"likes":1,"shares":[{},{"x":-0.5e+7}]}}"#,
            " {\t\"x\" : \"\\n\\\"\\u00e9\\uD7FF\\ue000\" , \"m\" : [ \"likes\" , \"shares\" ] ,\r\n\"id\":\"é\" } ",
        ] {
            assert_eq!(names(value), Some(2), "{value}");
        }
        assert_eq!(names(r#"{"m":"shares","id":"a"}"#), Some(1));
    }

    #[test]
    fn unusual_events_are_left_to_python() {
        for value in [
            "",
            "{",
            "{}",
            "null",
            r#"{"id":"a"}"#,
            r#"{"m":["likes"]}"#,
            r#"{"id":"","m":["likes"]}"#,
            r#"{"id":"123456789","m":["likes"]}"#,
            r#"{"id":1,"m":["likes"]}"#,
            r#"{"id":"a","id":"b","m":["likes"]}"#,
            r#"{"id":"a","m":["likes"],"m":["likes"]}"#,
            r#"{"id":"a","m":["new"]}"#,
            r#"{"id":"a","m":{}}"#,
            r#"{"id":"a","m":["likes","likes","likes"]}"#,
            r#"{"id":"\u0061","m":["likes"]}"#,
            r#"{"id":"a","m":["likes"],}"#,
            r#"{"id":"a","m":["likes"]} x"#,
            r#"{"id":"a","m":["likes"],"x":01}"#,
            r#"{"id":"a","m":["likes"],"x":.5}"#,
            r#"{"id":"a","m":["likes"],"x":1.}"#,
            r#"{"id":"a","m":["likes"],"x":+1}"#,
            r#"{"id":"a","m":["likes"],"x":1e}"#,
            r#"{"id":"a","m":["likes"],"x":tru}"#,
            "{\"id\":\"a\",\"m\":[\"likes\"],\"x\":\"\n\"}",
            r#"{"id":"a","m":["likes"],"x":"\x"}"#,
        ] {
            assert_eq!(names(value), None, "{value}");
        }
        assert!(read(b"{\"id\":\"\xff\",\"m\":[\"likes\"]}", &fields()).is_none());
        let deep = format!(r#"{{"id":"a","m":["likes"],"x":{}1{}}}"#, "[".repeat(120), "]".repeat(120));
        assert_eq!(names(&deep), None);
    }
}
