//! Parses the records of a record batch (format 2, KIP-98) without an object for each.

use std::ops::Range;

/// Minimum size of a record, which has empty fields; it bounds what is allocated for a count that is wrong.
const MIN_RECORD_BYTES: usize = 7;
const HEADER_BYTES: usize = 61;

/// Where the fields of a record are in the body of its batch.
#[derive(Clone, Copy)]
pub struct Row {
    pub offset: i64,
    pub timestamp: i64,
    key: Field,
    value: Field,
    headers: u32,
    pub header_count: u32,
}

/// Begin and length of bytes in the body; the length of `None` is negative.
#[derive(Clone, Copy)]
struct Field {
    begin: u32,
    length: i32,
}

impl Field {
    fn of<'a>(&self, body: &'a [u8]) -> Option<&'a [u8]> {
        let length = usize::try_from(self.length).ok()?;
        let begin = self.begin as usize;
        body.get(begin..begin + length)
    }
}

impl Row {
    pub fn key<'a>(&self, body: &'a [u8]) -> Option<&'a [u8]> {
        self.key.of(body)
    }

    pub fn value<'a>(&self, body: &'a [u8]) -> Option<&'a [u8]> {
        self.value.of(body)
    }

    /// Returns name and value of each header.
    pub fn headers<'a>(&self, body: &'a [u8]) -> Vec<(&'a str, Option<&'a [u8]>)> {
        let mut cursor = Cursor { body, at: self.headers as usize };
        (0..self.header_count).map_while(|_| cursor.header()).collect()
    }
}

/// Parses the records of a batch; returns `None` if anything is unusual, so that the parser in Python decides.
///
/// `header` is the batch with at least its first 61 bytes, `body` its records, decompressed.
pub fn parse(header: &[u8], body: &[u8]) -> Option<Vec<Row>> {
    let header = header.get(..HEADER_BYTES)?;
    let number = |range: Range<usize>| header[range].iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
    if header[16] != 2 || body.len() > i32::MAX as usize {
        return None;
    }
    let base_offset = number(0..8) as i64;
    let is_append_time = header[22] & 0x08 != 0;
    let (first_timestamp, max_timestamp) = (number(27..35) as i64, number(35..43) as i64);
    let count = number(57..61) as usize;
    if count > body.len() / MIN_RECORD_BYTES {
        return None;
    }
    let mut rows: Vec<Row> = Vec::with_capacity(count);
    let mut cursor = Cursor { body, at: 0 };
    for _ in 0..count {
        let length = usize::try_from(cursor.varint()?).ok()?;
        let end = cursor.at.checked_add(length).filter(|end| *end <= body.len())?;
        body.get(cursor.at).filter(|attributes| **attributes < 0x80)?; // not used; aiokafka reads them as a varint
        cursor.at += 1;
        let timestamp = first_timestamp.checked_add(cursor.varint()?)?;
        let offset = base_offset.checked_add(cursor.varint()?)?;
        if rows.last().map_or(-1, |former| former.offset) >= offset {
            return None;
        }
        let (key, value) = (cursor.field()?, cursor.field()?);
        let header_count = u32::try_from(cursor.varint()?).ok()?;
        let headers = cursor.at as u32;
        for _ in 0..header_count {
            cursor.header()?;
        }
        if cursor.at != end {
            return None;
        }
        rows.push(Row {
            offset,
            timestamp: if is_append_time { max_timestamp } else { timestamp },
            key,
            value,
            headers,
            header_count,
        });
    }
    (cursor.at == body.len()).then_some(rows)
}

struct Cursor<'a> {
    body: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Reads a zigzag number of at most ten bytes.
    fn varint(&mut self) -> Option<i64> {
        let mut found = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.body.get(self.at)?;
            self.at += 1;
            found |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some((found >> 1) as i64 ^ -((found & 1) as i64));
            }
        }
        None
    }

    fn field(&mut self) -> Option<Field> {
        let length = i32::try_from(self.varint()?).ok()?;
        let begin = u32::try_from(self.at).ok()?;
        if length < 0 {
            return (length == -1).then_some(Field { begin, length });
        }
        self.at = self.at.checked_add(length as usize).filter(|end| *end <= self.body.len())?;
        Some(Field { begin, length })
    }

    fn header(&mut self) -> Option<(&'a str, Option<&'a [u8]>)> {
        let name = std::str::from_utf8(self.field()?.of(self.body)?).ok()?;
        Some((name, self.field()?.of(self.body)))
    }
}
