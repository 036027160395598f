//! The events of a fetched range as columns, and their aggregation by group (see `folding/core/chunks.py`, the reference).

use crate::json::Mask;
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

pub struct Event {
    pub offset: i64,
    pub timestamp: i64,
    pub group: u32,
    pub names: Mask,
}

/// Events in offset order, each with the number of its group; the keys of groups are stored once.
#[derive(Default)]
pub struct Events {
    pub events: Vec<Event>,
    keys: Vec<u8>,
    ends: Vec<usize>,
    numbers: HashTable<u32>,
    hasher: DefaultHashBuilder,
    cut: usize,
}

impl Events {
    pub fn push(&mut self, offset: i64, timestamp: i64, member: (&[u8], &[u8]), names: Mask) {
        let group = self.number_of(member);
        self.events.push(Event { offset, timestamp, group, names });
    }

    pub fn key(&self, group: u32) -> &[u8] {
        let group = group as usize;
        let begin = if group == 0 { 0 } else { self.ends[group - 1] };
        &self.keys[begin..self.ends[group]]
    }

    /// Returns the number of a group whose key is given in two parts: its tag and the rest.
    fn number_of(&mut self, (tag, rest): (&[u8], &[u8])) -> u32 {
        let begin = self.keys.len();
        self.keys.extend_from_slice(tag);
        self.keys.extend_from_slice(rest);
        let (keys, ends, hasher) = (&self.keys, &self.ends, &self.hasher);
        let key_of = |group: u32| {
            let group = group as usize;
            &keys[if group == 0 { 0 } else { ends[group - 1] }..ends[group]]
        };
        let wanted = &keys[begin..];
        let hash = hasher.hash_one(wanted);
        if let Some(&found) = self.numbers.find(hash, |&group| key_of(group) == wanted) {
            self.keys.truncate(begin);
            return found;
        }
        let group = ends.len() as u32;
        self.ends.push(keys.len());
        let (keys, ends) = (&self.keys, &self.ends);
        self.numbers.insert_unique(hash, group, |&group| {
            let group = group as usize;
            hasher.hash_one(&keys[if group == 0 { 0 } else { ends[group - 1] }..ends[group]])
        });
        group
    }
}

/// What `ChunkCutter.next` is called with, and the settings of the fold that it needs. Times are in ms.
pub struct Limits {
    pub start_ms: i64,
    pub cap_ms: i64,
    /// Silence after which a new run begins; none if the backlog policy is `merge`.
    pub gap_ms: Option<i64>,
    pub pause_ms: i64,
    pub hold_ms: i64,
    pub max_changed: u32,
    pub may_close_often: bool,
    pub is_whole: bool,
    pub max_events: i64,
    pub max_near_events: i64,
    pub max_holds: i64,
    pub max_runs: usize,
    pub max_wide_runs: usize,
    pub max_names_of_runs: u32,
}

#[derive(Clone)]
pub struct Run {
    pub first_offset: i64,
    pub last_offset: i64,
    pub events: i64,
    pub low_ms: i64,
    pub high_ms: i64,
    pub first_score: i64,
    pub last_score: i64,
    pub names: Mask,
}

/// A chunk: the runs of each group, groups in the order of their first events.
pub struct Chunk {
    pub to: i64,
    pub clock_ms: i64,
    pub events: usize,
    pub groups: Vec<(u32, Vec<Run>)>,
    /// Length of each pause, and the number of its group.
    pub pauses: Vec<(i64, u32)>,
}

impl Events {
    /// Aggregates the next events, as `ChunkCutter.next` does; `end` is the last offset of the range.
    pub fn next_chunk(&mut self, end: i64, limits: &Limits) -> Chunk {
        let gap = limits.gap_ms.unwrap_or(i64::MAX);
        let mut max_events = if limits.is_whole { i64::MAX } else { limits.max_events.min(limits.max_near_events) };
        let mut max_runs = if limits.is_whole { usize::MAX } else { limits.max_runs.min(limits.max_wide_runs) };
        let mut chunk = Chunk { to: end, clock_ms: limits.start_ms, events: 0, groups: Vec::new(), pauses: Vec::new() };
        let mut places = vec![u32::MAX; self.ends.len()];
        let mut clock = limits.start_ms;
        let first = self.cut;
        for event in &self.events[first..] {
            chunk.events += 1;
            if clock < event.timestamp {
                clock = if event.timestamp < limits.cap_ms { event.timestamp } else { limits.cap_ms.max(clock) };
            }
            let stamp = if event.timestamp >= 0 { event.timestamp } else { clock };
            let place = &mut places[event.group as usize];
            if *place == u32::MAX {
                *place = chunk.groups.len() as u32;
                chunk.groups.push((event.group, vec![run_of(event, stamp, clock)]));
                continue;
            }
            let runs = &mut chunk.groups[*place as usize].1;
            let last = runs.len() - 1;
            let silence = clock - runs[last].last_score;
            if silence > limits.pause_ms {
                if silence > gap {
                    runs.push(run_of(event, stamp, clock));
                    if runs.len() < max_runs {
                        continue;
                    }
                    let names: u32 = runs.iter().map(|run| run.names.count()).sum();
                    if runs.len() < limits.max_runs && names < limits.max_names_of_runs {
                        max_runs = runs.len() + limits.max_wide_runs;
                        continue;
                    }
                    chunk.to = event.offset;
                    break;
                }
                chunk.pauses.push((silence, event.group));
            }
            let run = &mut runs[last];
            run.last_offset = event.offset;
            run.last_score = clock;
            run.events += 1;
            run.low_ms = run.low_ms.min(stamp);
            run.high_ms = run.high_ms.max(stamp);
            run.names.join(&event.names);
            if run.events >= max_events {
                if is_long(run, limits) {
                    chunk.to = event.offset;
                    break;
                }
                max_events = run.events + limits.max_near_events;
            }
        }
        self.cut = first + chunk.events;
        chunk.clock_ms = clock;
        chunk
    }
}

/// The groups of a chunk, sorted by the bytes of their keys.
pub struct Groups {
    keys: Vec<u8>,
    ends: Vec<usize>,
    runs: Vec<Vec<Run>>,
}

impl Groups {
    /// Sorts the groups of a chunk of these events.
    pub fn of(events: &Events, mut groups: Vec<(u32, Vec<Run>)>) -> Groups {
        groups.sort_unstable_by(|(one, _), (other, _)| events.key(*one).cmp(events.key(*other)));
        let mut found = Groups { keys: Vec::new(), ends: Vec::new(), runs: Vec::new() };
        for (group, runs) in groups {
            found.keys.extend_from_slice(events.key(group));
            found.ends.push(found.keys.len());
            found.runs.push(runs);
        }
        found
    }

    pub fn len(&self) -> usize {
        self.runs.len()
    }

    pub fn key(&self, index: usize) -> &[u8] {
        let begin = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.keys[begin..self.ends[index]]
    }

    pub fn at(&self, index: usize) -> (&[u8], &[Run]) {
        (self.key(index), &self.runs[index])
    }

    /// Returns the position of a group.
    pub fn find(&self, key: &[u8]) -> Option<usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = (low + high) / 2;
            if self.key(middle) < key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        (low < self.len() && self.key(low) == key).then_some(low)
    }
}

fn run_of(event: &Event, stamp: i64, clock: i64) -> Run {
    Run {
        first_offset: event.offset,
        last_offset: event.offset,
        events: 1,
        low_ms: stamp,
        high_ms: stamp,
        first_score: clock,
        last_score: clock,
        names: event.names,
    }
}

fn is_long(run: &Run, limits: &Limits) -> bool {
    let lasted_ms = run.last_score.saturating_sub(run.first_score);
    limits.may_close_often
        || run.events >= limits.max_events
        || lasted_ms >= limits.max_holds.saturating_mul(limits.hold_ms)
        || run.names.count() > limits.max_changed
}
