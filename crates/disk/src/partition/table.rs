//! Partitions, as all kinds of tables have them.

use crate::{Buf, Disk, DiskError, DiskExt, Kind, Lba, SECTOR, Tag};

/// The type of a partition, as its table has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionType {
    /// A GUID in the byte order of the table.
    Guid([u8; 16]),
    /// The byte of a DOS table.
    Byte(u8),
}

/// A partition: a run of sectors of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Its number, from 1 on, as Linux counts: logical partitions begin at 5.
    pub number: u32,
    /// Its first sector.
    pub first: Lba,
    /// Number of sectors.
    pub sectors: u64,
    /// Its type.
    pub kind: PartitionType,
    /// Its GUID in the byte order of the table; `None` in a DOS table.
    pub guid: Option<[u8; 16]>,
    /// Its name; empty in a DOS table.
    pub name: String,
    /// True if it lies on the disk.
    pub fits: bool,
}

/// The partitions of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionTable {
    /// True if the copy at the end of the disk was read, because the table at its start is damaged.
    pub is_copy: bool,
    /// The partitions, by their numbers.
    pub partitions: Vec<Partition>,
}

/// Reads bytes of a table; `None` if they lie beyond the end of the disk.
pub(super) fn read(disk: &dyn Disk, at: Lba, bytes: usize) -> Result<Option<Buf>, DiskError> {
    let whole = bytes.next_multiple_of(SECTOR);
    let is_beyond = disk.limits().check_range("read", at, whole as u64).is_err();
    if is_beyond { Ok(None) } else { disk.read(at, whole, Tag::volume(Kind::Superblock)).map(Some) }
}

/// Returns true if a run of sectors that is not empty lies on the disk.
pub(super) fn fits(disk: &dyn Disk, first: u64, sectors: u64) -> bool {
    sectors > 0 && first.checked_add(sectors).is_some_and(|end| end <= disk.limits().sectors)
}
