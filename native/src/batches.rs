//! Packs folded records into record batches (format 2, KIP-98) by partition (see `TopicProducer`, the reference).
//!
//! Producer id, epoch, sequence number and checksum are written by Python, when the producer sends a batch.

use crate::folded::Folded;
use hashbrown::HashMap;

const HEADER_BYTES: usize = 61;
/// Bytes of a batch before the field that its length counts from.
const UNCOUNTED_BYTES: usize = 12;
const ID_HEADER: &[u8] = b"fold-id";

/// A batch without checksum; `positions` are the indexes of its records.
pub struct Batch {
    pub partition: u32,
    pub bytes: Vec<u8>,
    pub positions: Vec<usize>,
}

/// Packs records in their order. A batch of several records is smaller than `batch_bytes`, as aiokafka's builder makes it.
///
/// Returns `None` if a size is beyond the format.
pub fn pack(
    records: &Folded,
    positions: impl Iterator<Item = usize>,
    partitions: u32,
    batch_bytes: usize,
    timestamp_ms: i64,
) -> Option<Vec<Batch>> {
    let mut batches: Vec<Batch> = Vec::new();
    let mut open: HashMap<u32, usize> = HashMap::new();
    for position in positions {
        let (id, key, value) = records.at(position)?;
        let partition = (murmur2(key) & 0x7fff_ffff).checked_rem(partitions)?;
        let index = *open.entry(partition).or_insert_with(|| {
            batches.push(Batch::new(partition));
            batches.len() - 1
        });
        if !batches[index].append(position, id, key, value, batch_bytes)? {
            open.insert(partition, batches.len());
            let mut batch = Batch::new(partition);
            batch.append(position, id, key, value, usize::MAX)?;
            batches.push(batch);
        }
    }
    batches.iter_mut().try_for_each(|batch| batch.finish(timestamp_ms))?;
    Some(batches)
}

impl Batch {
    fn new(partition: u32) -> Batch {
        Batch { partition, bytes: vec![0; HEADER_BYTES], positions: Vec::new() }
    }

    /// Appends a record; returns false if the batch is full. An empty batch accepts any record.
    fn append(&mut self, position: usize, id: &[u8], key: &[u8], value: &[u8], batch_bytes: usize) -> Option<bool> {
        let offset = self.positions.len();
        // Attributes and the difference of timestamps, which is 0, take a byte each; so does the number of headers.
        let fields = [key.len(), value.len(), ID_HEADER.len(), id.len()];
        let length = 3 + varint_bytes(offset) + fields.iter().map(|size| varint_bytes(*size) + size).sum::<usize>();
        let sum = self.bytes.len() + varint_bytes(length) + length;
        if offset > 0 && sum >= batch_bytes {
            return Some(false);
        }
        i32::try_from(sum).ok()?;
        let out = &mut self.bytes;
        varint(out, length);
        out.extend_from_slice(&[0, 0]);
        varint(out, offset);
        field(out, key);
        field(out, value);
        varint(out, 1);
        field(out, ID_HEADER);
        field(out, id);
        self.positions.push(position);
        Some(true)
    }

    /// Writes the header without checksum, as of a producer that is not idempotent.
    fn finish(&mut self, timestamp_ms: i64) -> Option<()> {
        let length = i32::try_from(self.bytes.len() - UNCOUNTED_BYTES).ok()?;
        let count = i32::try_from(self.positions.len()).ok()?;
        let header = &mut self.bytes[..HEADER_BYTES];
        header[8..12].copy_from_slice(&length.to_be_bytes());
        header[12..16].copy_from_slice(&(-1_i32).to_be_bytes()); // leader epoch
        header[16] = 2; // magic
        header[23..27].copy_from_slice(&(count - 1).to_be_bytes()); // last offset
        header[27..35].copy_from_slice(&timestamp_ms.to_be_bytes());
        header[35..43].copy_from_slice(&timestamp_ms.to_be_bytes());
        header[43..51].copy_from_slice(&(-1_i64).to_be_bytes()); // producer id
        header[51..53].copy_from_slice(&(-1_i16).to_be_bytes()); // producer epoch
        header[57..61].copy_from_slice(&count.to_be_bytes());
        Some(())
    }
}

fn field(out: &mut Vec<u8>, bytes: &[u8]) {
    varint(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// Writes a number that is not negative as a zigzag varint.
fn varint(out: &mut Vec<u8>, number: usize) {
    let mut rest = (number as u64) << 1;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

fn varint_bytes(number: usize) -> usize {
    let bits = 64 - ((number as u64) << 1 | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// Kafka's 32-bit Murmur2 (`org.apache.kafka.common.utils.Utils.murmur2`).
pub fn murmur2(key: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ key.len() as u32;
    let words = key.chunks_exact(4);
    let rest = words.remainder();
    for word in words {
        let mut mixed = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        mixed ^= mixed >> 24;
        hash = hash.wrapping_mul(M) ^ mixed.wrapping_mul(M);
    }
    if !rest.is_empty() {
        for (place, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * place);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ hash >> 15
}
