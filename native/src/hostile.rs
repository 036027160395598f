//! Hostile bytes: whatever a broker or a producer sends, parsing and reading neither panic nor allocate more than a few times its size.

#![cfg_attr(fuzzing, allow(dead_code, unused_imports))]

use crate::batches;
use crate::folded::{Folded, Parts, Sealed};
use crate::json::{self, Fields};
use crate::range::{Events, Limits};
use crate::records::{self, Row};

/// A small generator of pseudorandom numbers (xorshift64*), so that a failure can be repeated by its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }

    fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }
}

pub fn fields() -> Fields {
    let bits = [(b"likes".to_vec(), 0), (b"shares".to_vec(), 255)].into_iter().collect();
    Fields { group: b"id".to_vec(), changed: b"m".to_vec(), value_bytes: 1_000, key_bytes: 40, names_per_event: 5, bits }
}

fn put_varint(out: &mut Vec<u8>, number: i64) {
    let mut rest = ((number << 1) ^ (number >> 63)) as u64;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

fn put_field(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as i64);
    out.extend_from_slice(bytes);
}

const VALUES: [&str; 6] = [
    r#"{"id":"a","m":{"likes":1,"shares":[{},{"x":-0.5e+7}]}}"#,
    r#"{"id":"b","m":["likes"],"x":"\u00e9\n"}"#,
    r#"{"m":"shares","id":"é"}"#,
    r#"{"id":"a","m":{"new":1}}"#,
    "",
    "[[[[[[[[[[[[[[[[",
];

/// Returns the first 61 bytes of a batch, and its records.
fn batch(random: &mut Random) -> (Vec<u8>, Vec<u8>) {
    let (mut header, mut body) = (vec![0; 61], Vec::new());
    let count = 1 + random.below(30);
    header[16] = 2;
    header[57..].copy_from_slice(&(count as u32).to_be_bytes());
    for offset in 0..count {
        let mut record = vec![0];
        put_varint(&mut record, random.below(5_000) as i64);
        put_varint(&mut record, offset as i64);
        put_field(&mut record, b"key");
        put_field(&mut record, random.pick(&VALUES).as_bytes());
        let headers = random.below(3);
        put_varint(&mut record, headers as i64);
        for _ in 0..headers {
            put_field(&mut record, b"name");
            put_varint(&mut record, -1);
        }
        put_field(&mut body, &record);
    }
    (header, body)
}

/// Flips bits, removes or repeats bytes, cuts the end off, or writes a size that is not true.
fn damage(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..1 + random.below(3) {
        if bytes.is_empty() {
            return;
        }
        let at = random.below(bytes.len());
        match random.below(5) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes.truncate(at),
            2 => {
                bytes.remove(at);
            }
            3 => bytes.insert(at, bytes[at]),
            _ => {
                let lies = [i64::MAX, i64::MIN, i64::from(i32::MAX), i64::from(i32::MIN), 1 << 40, -1, -2, 0, 1_000_000];
                let mut size = Vec::new();
                put_varint(&mut size, lies[random.below(lies.len())]);
                bytes.splice(at..at + 1, size);
            }
        }
    }
}

fn limits(random: &mut Random) -> Limits {
    Limits {
        start_ms: 500,
        cap_ms: 10_i64.pow(random.below(14) as u32),
        gap_ms: [None, Some(300)][random.below(2)],
        pause_ms: 100,
        hold_ms: 3_000,
        max_changed: 3,
        may_close_often: random.below(2) == 0,
        is_whole: random.below(2) == 0,
        max_events: 4,
        max_near_events: 2,
        max_holds: 2,
        max_runs: 3,
        max_wide_runs: 2,
        max_names_of_runs: 3,
    }
}

/// Reads and aggregates the usual events among these records.
fn fold(random: &mut Random, rows: &[Row], body: &[u8]) {
    let (mut events, fields) = (Events::default(), fields());
    for row in rows {
        let stated = row.key(body).map_or(0, <[u8]>::len) + row.value(body).map_or(0, <[u8]>::len);
        assert!(stated <= body.len());
        assert!(row.headers(body).len() <= row.header_count as usize);
        if let Some((group, names)) = row.value(body).and_then(|value| json::read(value, &fields)) {
            events.push(row.offset, row.timestamp, (b"s", group), names);
        }
    }
    if let Some(last) = rows.last() {
        let mut left = events.events.len();
        while left > 0 {
            let chunk = events.next_chunk(last.offset, &limits(random));
            assert!(chunk.events > 0);
            left -= chunk.events;
        }
    }
}

/// Parses a batch, reads and aggregates it; returns whether it was accepted.
pub fn read_batch(seed: u64, header: &[u8], body: &[u8]) -> bool {
    let Some(rows) = records::parse(header, body) else { return false };
    // A record has seven bytes at least: memory is bounded by what was received, not by a size that it states.
    assert!(rows.capacity() <= body.len() / 7, "seed {seed}");
    fold(&mut Random(seed | 1), &rows, body);
    true
}

#[test]
fn whole_batches_are_parsed() {
    let mut random = Random(1);
    for _ in 0..1_000 {
        let (header, body) = batch(&mut random);
        let rows = records::parse(&header, &body).expect("a usual batch");
        fold(&mut random, &rows, &body);
    }
}

#[test]
fn damaged_batches_neither_panic_nor_take_much_memory() {
    let mut refused = 0;
    for seed in 1..100_000 {
        let random = &mut Random(seed);
        let (mut header, mut body) = batch(random);
        damage(random, &mut body);
        if random.below(3) == 0 {
            damage(random, &mut header);
        }
        refused += u32::from(!read_batch(seed, &header, &body));
    }
    assert!(refused > 50_000);
}

#[test]
fn counts_and_times_at_the_limits_of_their_types_are_refused() {
    let (mut header, body) = batch(&mut Random(7));
    header[57..].copy_from_slice(&[0xff; 4]);
    assert!(records::parse(&header, &body).is_none());
    let (mut header, body) = batch(&mut Random(7));
    header[..8].copy_from_slice(&i64::MAX.to_be_bytes());
    assert!(records::parse(&header, &body).is_none());
    let (mut header, body) = batch(&mut Random(7));
    header[27..35].copy_from_slice(&i64::MAX.to_be_bytes());
    assert!(records::parse(&header, &body).is_none());
}

#[test]
fn damaged_events_do_not_panic() {
    let fields = fields();
    for seed in 1..200_000 {
        let random = &mut Random(seed);
        let mut value = random.pick(&VALUES).as_bytes().to_vec();
        damage(random, &mut value);
        if let Some((group, names)) = json::read(&value, &fields) {
            assert!(!group.is_empty() && group.len() <= fields.key_bytes && names.count() <= 2, "seed {seed}");
        }
    }
}

#[test]
fn records_of_any_size_and_number_are_rendered_and_packed() {
    for seed in 1..2_000 {
        let random = &mut Random(seed);
        let parts = Parts {
            id: b"f:t:0:".to_vec(),
            before_group: b"{\"g\":".to_vec(),
            before_names: b",\"m\":".to_vec(),
            before_span: b",\"fold\":{\"id\":\"f:t:0:".to_vec(),
            before_reason: b"\",\"reason\":\"".to_vec(),
            behind: Vec::new(),
            lost: 0,
        };
        let most_bytes = random.below(20_000);
        let mut folded = Folded::new(most_bytes);
        for owner in 0..random.below(50) {
            let mut key = vec![b"a\0\"\xc3\xa9"[random.below(5)]; random.below(300)];
            damage(random, &mut key);
            let number = [0, -1, i64::MAX, i64::MIN, 1 << 50][random.below(5)];
            let (first_offset, last_offset) = (number, number);
            let (events, first_event_ms, last_event_ms) = (number, number, number);
            let names = vec![b'n'; random.below(500)];
            let sealed = Sealed {
                key: &key,
                first_offset,
                last_offset,
                events,
                first_event_ms,
                last_event_ms,
                reason: b"quiet",
                partitions: number,
                names: &names,
            };
            if !folded.render(owner, &parts, &sealed, 800) {
                folded.put(owner, b"id", &key, &names);
            }
        }
        let sizes = (0..folded.len()).map(|at| folded.at(at).map_or(0, |(id, key, value)| id.len() + key.len() + value.len()));
        assert!(sizes.sum::<usize>() <= most_bytes, "seed {seed}");
        let partitions = random.below(4) as u32;
        let packed = batches::pack(&folded, 0..folded.len(), partitions, random.below(3_000), number_of(random));
        let Some(packed) = packed else {
            assert!(partitions == 0 && folded.len() > 0, "seed {seed}");
            continue;
        };
        let mut positions: Vec<usize> = packed.iter().flat_map(|batch| batch.positions.iter().copied()).collect();
        positions.sort_unstable();
        assert_eq!((0..folded.len()).collect::<Vec<_>>(), positions);
        for batch in packed {
            let rows = records::parse(&batch.bytes[..61], &batch.bytes[61..]).expect("a batch that readers accept");
            for (row, position) in rows.iter().zip(batch.positions) {
                let (_, key, value) = folded.at(position).expect("a record");
                assert_eq!((Some(key), Some(value)), (row.key(&batch.bytes[61..]), row.value(&batch.bytes[61..])));
            }
        }
    }
    assert!(batches::pack(&Folded::new(9), [0].into_iter(), 1, 1, 0).is_none());
}

fn number_of(random: &mut Random) -> i64 {
    [0, -1, i64::MAX, i64::MIN][random.below(4)]
}
