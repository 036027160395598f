//! The classes in Python for folded records.

use crate::batches;
use crate::folded::{Folded, Parts, Sealed};
use crate::unlocked;
use hashbrown::HashMap;
use pyo3::exceptions::{PyIndexError, PyRuntimeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyList, PyString, PyTuple};

/// Tag of group keys that are text, see `codec.py`.
const TEXT_TAG: u8 = b's';

/// Maximum size of all records of one object; groups beyond it are left to Python.
const MOST_BYTES: usize = 64 << 20;

/// The folded records of sealed groups of one shard, without an object for each.
#[pyclass(module = "streams_app_native")]
pub struct FoldedRecords {
    parts: Parts,
    most_value_bytes: usize,
    folded: Folded,
}

/// A batch for Python: its partition, the batch without checksum, and the indexes of its records.
type PackedBatch<'py> = (u32, Bound<'py, PyByteArray>, Vec<usize>);

/// A sealed group whose key is text; `listed` is the index of its set of names.
struct UsualGroup<'py> {
    group: Bound<'py, PyTuple>,
    member: Bound<'py, PyBytes>,
    reason: Bound<'py, PyString>,
    listed: usize,
}

/// Consecutive sealed groups that the native core can probably render.
#[derive(Default)]
struct Usual<'py> {
    groups: Vec<UsualGroup<'py>>,
    /// The JSON array of each set of names that occurs in the groups, and its index by the address of the set, which is alive.
    listed: Vec<Bound<'py, PyString>>,
    indexes: HashMap<usize, usize>,
}

impl<'py> Usual<'py> {
    /// Adds a group; returns `None` if its key is not text, or its names are not a `NameSet`.
    fn add(&mut self, group: Bound<'py, PyTuple>) -> Option<()> {
        let member = group.get_item(0).ok()?.downcast_into::<PyBytes>().ok()?;
        if member.as_bytes().first() != Some(&TEXT_TAG) {
            return None;
        }
        let reason = group.get_item(6).ok()?.downcast_into().ok()?;
        let names = group.get_item(9).ok()?;
        let address = names.as_ptr() as usize;
        let listed = match self.indexes.get(&address) {
            Some(found) => *found,
            None => {
                let text = names.getattr(intern!(names.py(), "listed")).ok()?;
                self.listed.push(text.downcast_into().ok()?);
                self.indexes.insert(address, self.listed.len() - 1);
                self.listed.len() - 1
            }
        };
        self.groups.push(UsualGroup { group, member, reason, listed });
        Some(())
    }

    /// Returns the fields of the groups, up to the first one that Python must render.
    fn fields(&self) -> Vec<Sealed<'_>> {
        self.groups.iter().map_while(|usual| self.sealed(usual)).collect()
    }

    fn sealed<'a>(&'a self, usual: &'a UsualGroup<'py>) -> Option<Sealed<'a>> {
        let number = |index: usize| usual.group.get_borrowed_item(index).ok()?.extract::<i64>().ok();
        Some(Sealed {
            key: &usual.member.as_bytes()[1..],
            first_offset: number(1)?,
            last_offset: number(2)?,
            events: number(3)?,
            first_event_ms: number(4)?,
            last_event_ms: number(5)?,
            reason: usual.reason.to_str().ok()?.as_bytes(),
            partitions: number(8)?,
            names: self.listed[usual.listed].to_str().ok()?.as_bytes(),
        })
    }
}

#[pymethods]
impl FoldedRecords {
    /// `parts` are the texts that all records have in common, see `Parts`.
    #[new]
    fn new(parts: (String, String, String, String, String, String), lost: i64, most_value_bytes: usize) -> Self {
        let (id, before_group, before_names, before_span, before_reason, behind) = parts;
        let parts = Parts {
            id: id.into_bytes(),
            before_group: before_group.into_bytes(),
            before_names: before_names.into_bytes(),
            before_span: before_span.into_bytes(),
            before_reason: before_reason.into_bytes(),
            behind: behind.into_bytes(),
            lost,
        };
        FoldedRecords { parts, most_value_bytes, folded: Folded::new(MOST_BYTES) }
    }

    /// Render groups from the index `first` on, up to the next one that Python must render; return its index, or None.
    fn advance(&mut self, py: Python<'_>, groups: &Bound<'_, PyList>, first: usize) -> PyResult<Option<usize>> {
        let mut usual = Usual::default();
        for index in first..groups.len() {
            if usual.add(groups.get_item(index)?.downcast_into::<PyTuple>()?).is_none() {
                break;
            }
        }
        let sealed = usual.fields();
        let (folded, parts, most) = (&mut self.folded, &self.parts, self.most_value_bytes);
        let next = unlocked(py, || {
            let done = sealed.iter().enumerate().take_while(|(at, group)| folded.render(first + at, parts, group, most));
            first + done.count()
        })?;
        Ok((next < groups.len()).then_some(next))
    }

    /// Add a record that Python has rendered for the group at the index `owner`; return whether there was room for it.
    fn put(&mut self, owner: usize, id: &[u8], key: &[u8], value: &[u8]) -> bool {
        self.folded.put(owner, id, key, value)
    }

    fn __len__(&self) -> usize {
        self.folded.len()
    }

    /// Return fold id, key and value of a record.
    fn record<'py>(&self, py: Python<'py>, index: usize) -> PyResult<[Bound<'py, PyBytes>; 3]> {
        let found = self.folded.at(index).ok_or_else(|| PyIndexError::new_err("record index out of range"))?;
        Ok([found.0, found.1, found.2].map(|bytes| PyBytes::new(py, bytes)))
    }

    /// Return, for each record, the index of its group.
    fn owners(&self) -> Vec<usize> {
        self.folded.owners().collect()
    }

    /// Pack the records with these indexes, or all, into batches, in the order in which batches begin.
    #[pyo3(signature = (partitions, batch_bytes, timestamp_ms, positions, /))]
    fn batches<'py>(
        &self,
        py: Python<'py>,
        partitions: u32,
        batch_bytes: usize,
        timestamp_ms: i64,
        positions: Option<Vec<usize>>,
    ) -> PyResult<Vec<PackedBatch<'py>>> {
        let records = &self.folded;
        let packed = unlocked(py, || match positions {
            Some(some) => batches::pack(records, some.into_iter(), partitions, batch_bytes, timestamp_ms),
            None => batches::pack(records, 0..records.len(), partitions, batch_bytes, timestamp_ms),
        })?;
        let packed = packed.ok_or_else(|| PyRuntimeError::new_err("records that a batch cannot have"))?;
        Ok(packed.into_iter().map(|batch| (batch.partition, PyByteArray::new(py, &batch.bytes), batch.positions)).collect())
    }
}
