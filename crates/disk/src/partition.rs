//! Partitions: the tables that divide a disk, and the disk that shows one of them.
//!
//! [`PartitionTable::read`] finds a GUID partition table (GPT), by its copy at the end of the disk if the first one is
//! damaged, or a DOS partition table (MBR) with logical partitions. Tables are read and never written. Nothing in one
//! is believed: entries are counted, and those that do not fit on the disk are kept with [`Partition::fits`] false, so
//! that they can be shown.
//!
//! [`PartitionDisk`] is the disk of one partition: no request leaves it.
//!
//! Reference: UEFI specification 2.10, chapter 5.
//!
//! | module | contents |
//! |---|---|
//! | `gpt` | GUID partition tables |
//! | `mbr` | DOS partition tables |
//! | `part` | [`PartitionDisk`] |

mod gpt;
mod mbr;
mod part;
mod table;

pub use part::PartitionDisk;
pub use table::{Partition, PartitionTable, PartitionType};

use crate::{Disk, DiskError};

impl PartitionTable {
    /// Reads the partition table of a disk; `None` if it has none.
    ///
    /// # Errors
    /// Device errors.
    pub fn read(disk: &dyn Disk) -> Result<Option<PartitionTable>, DiskError> {
        match gpt::read(disk)? {
            Some(table) => Ok(Some(table)),
            None => mbr::read(disk),
        }
    }
}

#[cfg(test)]
mod tests;
