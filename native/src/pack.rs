//! Packs groups as arguments of `fold.lua`, in msgpack (see `folding/store/arguments.py` and `codec.py`, the reference).

use crate::json::Mask;
use crate::range::{Groups, Run};
use hashbrown::HashMap;

/// A script call gets no further group once its runs have this many parts, such as names.
const MAX_PARTS: usize = 16_000;

/// Maximum size of the packed names of a packed group.
const PACKED_BYTES: usize = 400;

/// Number of bytes of sessions, or of packed groups, that count as one part.
const BYTES_OF_A_PART: usize = 25;

const QUIET: &[u8] = b"quiet";
const MAX_HOLD: &[u8] = b"max_hold";

/// Bounds and identity of a shard; times in ms.
pub struct Settings {
    pub epoch: Vec<u8>,
    pub quiet_ms: i64,
    pub hold_ms: i64,
    /// 0 if there is no such bound.
    pub max_events: i64,
    pub max_changed: u32,
    pub may_send_sessions: bool,
    pub partitions: i64,
}

/// A set of names as Python has packed it: as a map for the outbox, and as fields of a sidecar without their array header.
pub struct PackedNames {
    pub map: Vec<u8>,
    pub fields: Vec<u8>,
}

/// A run that is sent as a finished record for the outbox.
pub struct Session<'a> {
    pub member: &'a [u8],
    pub run: &'a Run,
    pub is_hold: bool,
    pub due_ms: i64,
}

/// Groups in the order of their bytes; `values` is an array with two items for each.
pub struct Packed<'a> {
    pub groups: usize,
    pub values: Vec<u8>,
    pub sessions: Vec<Session<'a>>,
    /// The records of the sessions, in a row.
    pub records: Vec<u8>,
    /// Lowest first offset of the sessions; 0 if there are none.
    pub lowest: i64,
    /// Number of sessions before each group, and of all, as u32.
    pub starts: Vec<u8>,
    /// Of each session where its record begins, as u32, and first offset, first and last score, as f64.
    pub spans: Vec<u8>,
}

impl Settings {
    /// Returns whether no bound closes a group that a run opens, within the run or at its end.
    fn is_plain(&self, run: &Run) -> bool {
        run.last_score - run.first_score < self.hold_ms
            && run.names.count() <= self.max_changed
            && !(self.max_events > 0 && run.events >= self.max_events)
    }

    /// Returns how many of the runs silence has ended; 0 if another bound may close the group in one of them.
    fn session_count(&self, runs: &[Run], clock_ms: i64) -> usize {
        if !self.may_send_sessions {
            return 0;
        }
        let count = runs.len() - usize::from(clock_ms - runs[runs.len() - 1].last_score <= self.quiet_ms);
        if runs[..count].iter().all(|run| self.is_plain(run)) {
            count
        } else {
            0
        }
    }

    /// Packs at most `most` groups, from position `first` on. `names` has each set of names that occurs in them. With `may_pack`, runs are
    /// packed as Redis stores small groups.
    #[allow(clippy::too_many_arguments)]
    pub fn pack<'a>(
        &self,
        groups: &'a Groups,
        first: usize,
        most: usize,
        clock_ms: i64,
        silent_from_ms: i64,
        may_pack: bool,
        names: &HashMap<Mask, PackedNames>,
    ) -> Packed<'a> {
        let mut packed = Packed {
            groups: 0,
            values: Vec::new(),
            sessions: Vec::new(),
            records: Vec::new(),
            lowest: 0,
            starts: vec![0; 4],
            spans: Vec::new(),
        };
        let mut parts = 0;
        for index in first..groups.len().min(first + most) {
            if parts + packed.records.len() / BYTES_OF_A_PART >= MAX_PARTS {
                break;
            }
            packed.groups += 1;
            let (member, runs) = groups.at(index);
            let out = &mut packed.values;
            text(out, member);
            let (sessions, rest) = runs.split_at(self.session_count(runs, clock_ms));
            for run in sessions {
                let session = self.session(member, run);
                packed.spans.extend_from_slice(&(packed.records.len() as u32).to_be_bytes());
                self.pack_session(&mut packed.records, &session, &names[&run.names].map);
                for number in [run.first_offset, run.first_score, run.last_score] {
                    packed.spans.extend_from_slice(&(number as f64).to_be_bytes());
                }
                packed.sessions.push(session);
            }
            packed.starts.extend_from_slice(&(packed.sessions.len() as u32).to_be_bytes());
            match rest {
                [] => out.push(FALSE),
                [run] if self.is_plain(run) => parts += self.pack_run(out, run, silent_from_ms, may_pack, &names[&run.names]),
                _ => {
                    array(out, rest.len());
                    for run in rest {
                        parts += self.pack_run(out, run, silent_from_ms, may_pack, &names[&run.names]);
                    }
                }
            }
        }
        packed.lowest = packed.sessions.iter().map(|session| session.run.first_offset).min().unwrap_or(0);
        let mut values = Vec::with_capacity(packed.values.len() + 5);
        array(&mut values, 2 * packed.groups);
        values.append(&mut packed.values);
        packed.values = values;
        packed
    }

    fn session<'a>(&self, member: &'a [u8], run: &'a Run) -> Session<'a> {
        let (hold_due_ms, quiet_due_ms) = (run.first_score + self.hold_ms, run.last_score + self.quiet_ms);
        Session { member, run, is_hold: hold_due_ms <= quiet_due_ms, due_ms: hold_due_ms.min(quiet_due_ms) }
    }

    fn pack_session(&self, out: &mut Vec<u8>, session: &Session, names: &[u8]) {
        let run = session.run;
        array(out, 10);
        text(out, session.member);
        for number in [run.first_offset, run.last_offset, run.events, run.low_ms, run.high_ms] {
            integer(out, number);
        }
        text(out, session.reason());
        integer(out, session.due_ms);
        integer(out, self.partitions);
        out.extend_from_slice(names);
    }

    /// Packs a run in the form of the group that it would open; returns its number of parts.
    fn pack_run(&self, out: &mut Vec<u8>, run: &Run, silent_from_ms: i64, may_pack: bool, names: &PackedNames) -> usize {
        let (opened, score) = (run.first_score, run.last_score);
        let silent = score.max(silent_from_ms);
        let count = run.names.count() as usize;
        let mut info = Vec::with_capacity(64);
        let is_packed = may_pack && names.map.len() <= PACKED_BYTES;
        array(&mut info, 8 + usize::from(!is_packed) + usize::from(silent > score));
        if !is_packed {
            text(&mut info, &self.epoch);
        }
        for number in [
            run.first_offset,
            run.last_offset - run.first_offset,
            opened,
            score - opened,
            run.events,
            run.low_ms - opened,
            run.high_ms - run.low_ms,
            count as i64,
        ] {
            integer(&mut info, number);
        }
        if silent > score {
            integer(&mut info, silent - score);
        }
        if is_packed {
            info.extend_from_slice(&names.map);
            array(out, 3);
            integer(out, run.first_offset);
            integer(out, silent);
            text(out, &info);
            return 3 + info.len() / BYTES_OF_A_PART;
        }
        array(out, 4 + 2 * count);
        integer(out, run.first_offset);
        integer(out, silent);
        text(out, b"\xff");
        text(out, &info);
        out.extend_from_slice(&names.fields);
        4 + 2 * count
    }
}

impl Session<'_> {
    pub fn reason(&self) -> &'static [u8] {
        if self.is_hold {
            MAX_HOLD
        } else {
            QUIET
        }
    }
}

// msgpack without the types for bytes, as `Packer(use_bin_type=False)` of Python writes it

const FALSE: u8 = 0xc2;

fn array(out: &mut Vec<u8>, length: usize) {
    match length {
        0..=15 => out.push(0x90 | length as u8),
        16..=0xffff => put(out, 0xdc, &(length as u16).to_be_bytes()),
        _ => put(out, 0xdd, &(length as u32).to_be_bytes()),
    }
}

fn text(out: &mut Vec<u8>, bytes: &[u8]) {
    match bytes.len() {
        length @ 0..=31 => out.push(0xa0 | length as u8),
        length @ 32..=0xffff => put(out, 0xda, &(length as u16).to_be_bytes()),
        length => put(out, 0xdb, &(length as u32).to_be_bytes()),
    }
    out.extend_from_slice(bytes);
}

fn integer(out: &mut Vec<u8>, number: i64) {
    match number {
        -32..=0x7f => out.push(number as u8),
        0x80..=0xff => put(out, 0xcc, &[number as u8]),
        0x100..=0xffff => put(out, 0xcd, &(number as u16).to_be_bytes()),
        0x1_0000..=0xffff_ffff => put(out, 0xce, &(number as u32).to_be_bytes()),
        0x1_0000_0000.. => put(out, 0xcf, &number.to_be_bytes()),
        -0x80..=-33 => put(out, 0xd0, &[number as u8]),
        -0x8000..=-0x81 => put(out, 0xd1, &(number as i16).to_be_bytes()),
        -0x8000_0000..=-0x8001 => put(out, 0xd2, &(number as i32).to_be_bytes()),
        _ => put(out, 0xd3, &number.to_be_bytes()),
    }
}

fn put(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.push(tag);
    out.extend_from_slice(bytes);
}
