//! Optional native core of streams_app. Each function has a twin in Python, which is the reference: results are equal.
//!
//! Functions that work on whole ranges release the global lock. What they cannot read, they leave to Python.
#![forbid(unsafe_code)]

mod batches;
mod folded;
#[cfg(any(test, fuzzing))]
mod hostile;
mod json;
mod pack;
mod range;
mod records;
mod sending;

/// What the targets of `native/fuzz` call.
#[cfg(fuzzing)]
pub mod fuzzing {
    pub use crate::hostile::{fields, read_batch};
    pub use crate::json::{read, Mask};
}

use hashbrown::HashMap;
use json::{Fields, Mask, MASK_BITS};
use pack::PackedNames;
use pyo3::exceptions::{PyIndexError, PyKeyError, PyRuntimeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList, PySlice, PyString};
use range::{Events, Limits, Run};
use records::Row;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

/// Runs code without the global lock. A panic becomes a RuntimeError, after which Python does the work.
fn unlocked<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    py.allow_threads(|| catch_unwind(AssertUnwindSafe(work))).map_err(|_| PyRuntimeError::new_err("the native core panicked"))
}

/// The records of one batch.
struct Columns {
    body: PyBackedBytes,
    rows: Vec<Row>,
}

/// Consecutive records of one or several batches; slices share the batches.
#[pyclass(frozen, sequence, module = "streams_app_native")]
struct Records {
    parts: Vec<(Arc<Columns>, usize, usize)>,
    length: usize,
}

impl Records {
    fn of(parts: Vec<(Arc<Columns>, usize, usize)>) -> Self {
        let length = parts.iter().map(|(_, begin, end)| end - begin).sum();
        Records { parts, length }
    }

    fn rows(&self) -> impl Iterator<Item = (&Columns, &Row)> {
        self.parts.iter().flat_map(|(columns, begin, end)| columns.rows[*begin..*end].iter().map(move |row| (&**columns, row)))
    }

    fn at(&self, mut index: usize) -> Option<Record> {
        for (columns, begin, end) in &self.parts {
            if index < end - begin {
                return Some(Record { columns: columns.clone(), row: columns.rows[begin + index] });
            }
            index -= end - begin;
        }
        None
    }

    fn slice(&self, from: usize, to: usize) -> Self {
        let (mut parts, mut passed) = (Vec::new(), 0);
        for (columns, begin, end) in &self.parts {
            let size = end - begin;
            let (first, last) = (from.clamp(passed, passed + size) - passed, to.clamp(passed, passed + size) - passed);
            if first < last {
                parts.push((columns.clone(), begin + first, begin + last));
            }
            passed += size;
        }
        Records::of(parts)
    }
}

#[pymethods]
impl Records {
    /// Parse the records of a batch: its first 61 bytes, and its records, decompressed. Return None if the batch is unusual.
    #[staticmethod]
    fn parse(py: Python<'_>, header: PyBackedBytes, body: PyBackedBytes) -> PyResult<Option<Records>> {
        let rows = unlocked(py, || records::parse(&header, &body))?;
        Ok(rows.map(|rows| {
            let length = rows.len();
            Records::of(vec![(Arc::new(Columns { body, rows }), 0, length)])
        }))
    }

    #[staticmethod]
    fn joined(parts: Vec<PyRef<'_, Records>>) -> Records {
        Records::of(parts.iter().flat_map(|part| part.parts.iter().cloned()).collect())
    }

    /// Whether one of the records has a header.
    #[getter]
    fn has_headers(&self) -> bool {
        self.rows().any(|(_, row)| row.header_count > 0)
    }

    fn __len__(&self) -> usize {
        self.length
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        if let Ok(slice) = index.downcast::<PySlice>() {
            let found = slice.indices(self.length as isize)?;
            if found.step != 1 {
                let listed = PyList::new(py, self.rows_as_records())?;
                return listed.as_any().get_item(index);
            }
            let from = found.start as usize;
            let part = self.slice(from, from + found.slicelength);
            return Ok(Bound::new(py, part)?.into_any());
        }
        let mut at: isize = index.extract()?;
        if at < 0 {
            at += self.length as isize;
        }
        let found = usize::try_from(at).ok().and_then(|at| self.at(at));
        let record = found.ok_or_else(|| PyIndexError::new_err("record index out of range"))?;
        Ok(Bound::new(py, record)?.into_any())
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyList::new(py, self.rows_as_records())?.try_iter()?.into_any())
    }
}

impl Records {
    fn rows_as_records(&self) -> Vec<Record> {
        let parts = self.parts.iter();
        parts
            .flat_map(|(columns, begin, end)| (*begin..*end).map(|at| Record { columns: columns.clone(), row: columns.rows[at] }))
            .collect()
    }
}

/// A record with the attributes that readers use.
#[pyclass(frozen, module = "streams_app_native")]
struct Record {
    columns: Arc<Columns>,
    row: Row,
}

#[pymethods]
impl Record {
    #[getter]
    fn offset(&self) -> i64 {
        self.row.offset
    }

    #[getter]
    fn timestamp(&self) -> i64 {
        self.row.timestamp
    }

    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.row.key(&self.columns.body).map(|found| PyBytes::new(py, found))
    }

    #[getter]
    fn value<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.row.value(&self.columns.body).map(|found| PyBytes::new(py, found))
    }

    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let found = self.row.headers(&self.columns.body);
        PyList::new(py, found.into_iter().map(|(name, value)| (name, value.map(|bytes| PyBytes::new(py, bytes)))))
    }
}

/// Reads the events of one fold that keeps names, from JSON.
#[pyclass(module = "streams_app_native")]
struct Reader {
    fields: Fields,
}

#[pymethods]
impl Reader {
    #[new]
    fn new(group: &str, changed: &str, value_bytes: usize, key_bytes: usize, names_per_event: u32) -> Self {
        let (group, changed) = (group.as_bytes().to_vec(), changed.as_bytes().to_vec());
        Reader { fields: Fields { group, changed, value_bytes, key_bytes, names_per_event, bits: Default::default() } }
    }

    /// Accept a changed name, of which Python has seen that it is valid, with its bit in masks. Return whether there is room for it.
    fn learn(&mut self, name: &Bound<'_, PyString>, bit: usize) -> PyResult<bool> {
        if bit < MASK_BITS {
            self.fields.bits.insert(name.to_cow()?.as_bytes().to_vec(), bit as u16);
        }
        Ok(bit < MASK_BITS)
    }
}

/// The events of a range. Iterating over it yields `(offset, timestamp, group, names)`, names as a mask.
#[pyclass(module = "streams_app_native")]
struct EventColumns {
    records: Py<Records>,
    events: Events,
    read: usize,
    /// Number of events whose record key is not their group key, and the offset of one of them.
    #[pyo3(get)]
    misrouted: u64,
    #[pyo3(get)]
    misrouted_example: Option<i64>,
}

/// A chunk as `next_chunk` returns it: `(to, clock_ms, events, groups, pauses, paused)`.
type Chunked<'py> = (i64, i64, usize, Bound<'py, Groups>, Vec<i64>, Bound<'py, PyList>);

/// Tag of group keys that are text, see `codec.py`.
const TEXT_TAG: &[u8] = b"s";

#[pymethods]
impl EventColumns {
    #[new]
    fn new(records: Py<Records>) -> Self {
        EventColumns { records, events: Events::default(), read: 0, misrouted: 0, misrouted_example: None }
    }

    /// Read events up to the next one that Python must read; return its index, or None if all are read.
    fn advance(&mut self, py: Python<'_>, reader: PyRef<'_, Reader>) -> PyResult<Option<usize>> {
        let records = self.records.clone_ref(py);
        let (records, fields) = (records.get(), &reader.fields);
        unlocked(py, || {
            for (columns, row) in records.slice(self.read, records.length).rows() {
                self.read += 1;
                let key = row.key(&columns.body);
                let Some((group, names)) = row.value(&columns.body).and_then(|value| json::read(value, fields)) else {
                    return Some(self.read - 1);
                };
                if key != Some(group) {
                    self.misrouted += 1;
                    self.misrouted_example = Some(row.offset);
                }
                self.events.push(row.offset, row.timestamp, (TEXT_TAG, group), names);
            }
            None
        })
    }

    /// Add the event that Python has read. The mask of its names is 32 bytes, little-endian.
    fn put(&mut self, offset: i64, timestamp: i64, group: &[u8], names: [u8; MASK_BITS / 8]) {
        let mut mask = Mask::default();
        for (part, bytes) in mask.0.iter_mut().zip(names.chunks_exact(8)) {
            *part = bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        }
        self.events.push(offset, timestamp, (group, b""), mask);
    }

    fn __len__(&self) -> usize {
        self.events.events.len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let listed = PyList::empty(py);
        for event in &self.events.events {
            let group = PyBytes::new(py, self.events.key(event.group));
            listed.append((event.offset, event.timestamp, group, number_of(py, &event.names)?))?;
        }
        Ok(listed.try_iter()?.into_any())
    }

    /// Aggregate the next events as `ChunkCutter.next` does.
    ///
    fn next_chunk<'py>(&mut self, py: Python<'py>, end: i64, limits: CutLimits) -> PyResult<Chunked<'py>> {
        let events = &mut self.events;
        let chunk = unlocked(py, || events.next_chunk(end, &limits.into()))?;
        let paused = PyList::new(py, chunk.pauses.iter().map(|(_, group)| PyBytes::new(py, events.key(*group))))?;
        let pauses = chunk.pauses.iter().map(|(silence, _)| *silence).collect();
        let (to, clock_ms, count, groups) = (chunk.to, chunk.clock_ms, chunk.events, chunk.groups);
        let groups = Groups { groups: unlocked(py, || range::Groups::of(events, groups))? };
        Ok((to, clock_ms, count, Bound::new(py, groups)?, pauses, paused))
    }
}

/// The groups of a chunk. Iterating over it yields the keys of groups in the order of their bytes, in which they are folded.
#[pyclass(frozen, module = "streams_app_native")]
struct Groups {
    groups: range::Groups,
}

#[pymethods]
impl Groups {
    fn __len__(&self) -> usize {
        self.groups.len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let keys = (0..self.groups.len()).map(|index| PyBytes::new(py, self.groups.key(index)));
        Ok(PyList::new(py, keys)?.try_iter()?.into_any())
    }

    /// Return the eight numbers of each run of a group, for a `GroupRun`.
    fn runs<'py>(&self, py: Python<'py>, key: &[u8]) -> PyResult<Vec<RunFields<'py>>> {
        let index = self.groups.find(key).ok_or_else(|| PyKeyError::new_err("no such group"))?;
        let (_, runs) = self.groups.at(index);
        runs.iter().map(|run| fields_of(py, run)).collect()
    }
}

/// The numbers of a run: first and last offset, events, lowest and highest time, first and last score, and names as a mask.
type RunFields<'py> = (i64, i64, i64, i64, i64, i64, i64, Bound<'py, PyAny>);

fn fields_of<'py>(py: Python<'py>, run: &Run) -> PyResult<RunFields<'py>> {
    let names = number_of(py, &run.names)?;
    Ok((run.first_offset, run.last_offset, run.events, run.low_ms, run.high_ms, run.first_score, run.last_score, names))
}

/// Packs the groups of one shard as arguments of `fold.lua`; used for all chunks from one claim to the next.
#[pyclass(module = "streams_app_native")]
struct Packer {
    settings: pack::Settings,
    packed: HashMap<Mask, PackedNames>,
    sets: HashMap<Mask, Py<PyAny>>,
}

/// Number of sets of names of which a packer keeps the bytes.
const CACHED_SETS: usize = 10_000;

/// Packed groups: their number, msgpack of their values, of each session the fields of a `SealedGroup`, and the packed sessions.
type PackedFields<'py> = (usize, Bound<'py, PyBytes>, Bound<'py, PyList>, SessionFields<'py>);

/// The fields of `PackedSessions`: records, lowest first offset, starts and spans.
type SessionFields<'py> = (Bound<'py, PyBytes>, i64, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

#[pymethods]
impl Packer {
    #[new]
    fn new(
        epoch: Vec<u8>,
        quiet_ms: i64,
        hold_ms: i64,
        max_events: i64,
        max_changed: u32,
        may_send_sessions: bool,
        partitions: i64,
    ) -> Self {
        let settings = pack::Settings { epoch, quiet_ms, hold_ms, max_events, max_changed, may_send_sessions, partitions };
        Packer { settings, packed: HashMap::new(), sets: HashMap::new() }
    }

    /// Pack at most `most` groups from the group `first` on.
    ///
    /// `names_of` returns, for a mask, the set of names, its msgpack map, and msgpack of its fields without a header.
    #[allow(clippy::too_many_arguments)]
    fn pack<'py>(
        &mut self,
        py: Python<'py>,
        groups: &Groups,
        first: &[u8],
        most: usize,
        clock_ms: i64,
        silent_from_ms: i64,
        may_pack: bool,
        names_of: &Bound<'py, PyAny>,
    ) -> PyResult<PackedFields<'py>> {
        let groups = &groups.groups;
        let first = groups.find(first).ok_or_else(|| PyKeyError::new_err("no such group"))?;
        if self.packed.len() > CACHED_SETS {
            self.packed.clear();
            self.sets.clear();
        }
        for index in first..groups.len().min(first + most) {
            for run in groups.at(index).1 {
                if !self.packed.contains_key(&run.names) {
                    let (set, map, fields): (Py<PyAny>, Vec<u8>, Vec<u8>) =
                        names_of.call1((number_of(py, &run.names)?,))?.extract()?;
                    self.packed.insert(run.names, PackedNames { map, fields });
                    self.sets.insert(run.names, set);
                }
            }
        }
        let (settings, names) = (&self.settings, &self.packed);
        let packed = unlocked(py, || settings.pack(groups, first, most, clock_ms, silent_from_ms, may_pack, names))?;
        let sessions = PyList::empty(py);
        for session in &packed.sessions {
            let run = session.run;
            sessions.append((
                PyBytes::new(py, session.member),
                run.first_offset,
                run.last_offset,
                run.events,
                run.low_ms,
                run.high_ms,
                if session.is_hold { intern!(py, "max_hold") } else { intern!(py, "quiet") },
                session.due_ms,
                self.settings.partitions,
                &self.sets[&run.names],
            ))?;
        }
        Ok((
            packed.groups,
            PyBytes::new(py, &packed.values),
            sessions,
            (PyBytes::new(py, &packed.records), packed.lowest, PyBytes::new(py, &packed.starts), PyBytes::new(py, &packed.spans)),
        ))
    }
}

/// Attributes of a Python object with the arguments of [`EventColumns::next_chunk`]; see [`Limits`].
#[derive(FromPyObject)]
struct CutLimits {
    start_ms: i64,
    cap_ms: i64,
    gap_ms: Option<i64>,
    pause_ms: i64,
    hold_ms: i64,
    max_changed: u32,
    may_close_often: bool,
    is_whole: bool,
    max_events: i64,
    max_near_events: i64,
    max_holds: i64,
    max_runs: usize,
    max_wide_runs: usize,
    max_names_of_runs: u32,
}

impl From<CutLimits> for Limits {
    fn from(given: CutLimits) -> Limits {
        Limits {
            start_ms: given.start_ms,
            cap_ms: given.cap_ms,
            gap_ms: given.gap_ms,
            pause_ms: given.pause_ms,
            hold_ms: given.hold_ms,
            max_changed: given.max_changed,
            may_close_often: given.may_close_often,
            is_whole: given.is_whole,
            max_events: given.max_events,
            max_near_events: given.max_near_events,
            max_holds: given.max_holds,
            max_runs: given.max_runs,
            max_wide_runs: given.max_wide_runs,
            max_names_of_runs: given.max_names_of_runs,
        }
    }
}

/// Converts a mask to an int of Python.
fn number_of<'py>(py: Python<'py>, names: &Mask) -> PyResult<Bound<'py, PyAny>> {
    let [low, rest @ ..] = names.0;
    let mut found = low.into_pyobject(py)?.into_any();
    for (place, part) in rest.iter().enumerate().filter(|(_, part)| **part != 0) {
        let shifted = part.into_pyobject(py)?.into_any().lshift(64 * (place + 1))?;
        found = found.bitor(shifted)?;
    }
    Ok(found)
}

#[pymodule]
fn streams_app_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("MASK_BITS", MASK_BITS)?;
    module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<Records>()?;
    module.add_class::<Reader>()?;
    module.add_class::<Packer>()?;
    module.add_class::<sending::FoldedRecords>()?;
    module.add_class::<EventColumns>()
}
