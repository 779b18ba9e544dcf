//! DOS partition tables, in the master boot record and in the chain of records of an extended partition.

use std::collections::BTreeSet;

use super::table::{Partition, PartitionTable, PartitionType, fits, read as read_bytes};
use crate::{Disk, DiskError, Lba, SECTOR};

/// The last bytes of a boot record.
const SIGNATURE: [u8; 2] = [0x55, 0xAA];
const ENTRIES_AT: usize = 446;
const ENTRY_BYTES: usize = 16;
/// Most logical partitions that are looked for.
const LOGICAL_MAX: usize = 128;
/// Types of an extended partition: it holds logical ones.
const EXTENDED: [u8; 3] = [0x05, 0x0F, 0x85];
/// The type of the entry that stands for a GUID partition table.
const PROTECTIVE: u8 = 0xEE;

/// An entry that is in use.
#[derive(Clone, Copy)]
struct Entry {
    kind: u8,
    /// The first sector, relative to what the record belongs to.
    first: u64,
    sectors: u64,
}

/// Reads the table; `None` if the disk has none.
pub(super) fn read(disk: &dyn Disk) -> Result<Option<PartitionTable>, DiskError> {
    let Some(entries) = read_record(disk, 0)? else { return Ok(None) };
    if entries.iter().all(Option::is_none) {
        return Ok(None);
    }
    let mut partitions = Vec::new();
    for (number, entry) in (1..).zip(entries) {
        let Some(entry) = entry.filter(|entry| entry.kind != PROTECTIVE) else { continue };
        partitions.push(partition(disk, number, entry, 0));
    }
    let extended = entries.iter().flatten().find(|entry| EXTENDED.contains(&entry.kind));
    if let Some(extended) = extended {
        read_logical(disk, extended.first, &mut partitions)?;
    }
    Ok(Some(PartitionTable { is_copy: false, partitions }))
}

/// Follows the chain of records in an extended partition: each has one logical partition, and leads to the next record.
fn read_logical(disk: &dyn Disk, extended: u64, partitions: &mut Vec<Partition>) -> Result<(), DiskError> {
    let (mut at, mut seen) = (extended, BTreeSet::new());
    while seen.len() < LOGICAL_MAX && seen.insert(at) {
        let Some([logical, next, ..]) = read_record(disk, at)? else { return Ok(()) };
        if let Some(logical) = logical {
            partitions.push(partition(disk, 4 + seen.len() as u32, logical, at));
        }
        let Some(next) = next.filter(|next| EXTENDED.contains(&next.kind)) else { return Ok(()) };
        at = extended + next.first;
    }
    Ok(())
}

/// Reads a boot record; `None` if there is none.
fn read_record(disk: &dyn Disk, at: u64) -> Result<Option<[Option<Entry>; 4]>, DiskError> {
    let Some(bytes) = read_bytes(disk, Lba(at), SECTOR)? else { return Ok(None) };
    let entry = |index: usize| &bytes[ENTRIES_AT + index * ENTRY_BYTES..][..ENTRY_BYTES];
    // Boot sectors of file systems end like that as well; a partition is bootable (0x80) or not.
    let is_record = bytes[SECTOR - 2..] == SIGNATURE && (0..4).all(|index| matches!(entry(index)[0], 0 | 0x80));
    Ok(is_record.then(|| std::array::from_fn(|index| decode(entry(index)))))
}

fn decode(entry: &[u8]) -> Option<Entry> {
    let u32_at = |at: usize| u64::from(u32::from_le_bytes(std::array::from_fn(|index| entry[at + index])));
    let entry = Entry { kind: entry[4], first: u32_at(8), sectors: u32_at(12) };
    (entry.kind != 0 && entry.sectors > 0).then_some(entry)
}

fn partition(disk: &dyn Disk, number: u32, entry: Entry, base: u64) -> Partition {
    let first = base + entry.first;
    Partition {
        number,
        first: Lba(first),
        sectors: entry.sectors,
        kind: PartitionType::Byte(entry.kind),
        guid: None,
        name: String::new(),
        fits: fits(disk, first, entry.sectors),
    }
}
