//! The positions of the head: every command to the drive, in the order of service.

use moafs_disk::{Disk, DiskError, Kind, ReadPart, Request, SECTOR, SharedDisk, Tag, Ticket};
use parking_lot::Mutex;

/// One command of the drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadAccess {
    /// First sector of the access.
    pub at: u64,
    /// Length of the access in sectors.
    pub sectors: u32,
    /// True for a page, in or out; false for a file's data or metadata.
    pub is_page: bool,
}

/// Strokes of the head between accesses that follow one another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Strokes {
    /// Number of accesses in the list.
    pub accesses: u64,
    /// Number of accesses that are pages.
    pub page_accesses: u64,
    /// Strokes over more than the given distance.
    pub long: u64,
    /// Long strokes from a file to a page or back.
    pub long_between: u64,
    /// Sum of all distances, in sectors.
    pub sectors: u64,
}

impl Strokes {
    /// Counts the strokes of a list of accesses; those over more than `long_sectors` are long.
    pub fn of(accesses: &[HeadAccess], long_sectors: u64) -> Strokes {
        let mut strokes = Strokes {
            accesses: accesses.len() as u64,
            page_accesses: accesses.iter().filter(|access| access.is_page).count() as u64,
            ..Strokes::default()
        };
        for two in accesses.windows(2) {
            let distance = two[1].at.abs_diff(two[0].at + u64::from(two[0].sectors));
            strokes.sectors += distance;
            if distance > long_sectors {
                strokes.long += 1;
                strokes.long_between += u64::from(two[0].is_page != two[1].is_page);
            }
        }
        strokes
    }
}

/// A disk that lists all accesses. Below a queue with one command out, their order is that of service.
pub struct HeadLog {
    inner: SharedDisk,
    accesses: Mutex<Vec<HeadAccess>>,
}

impl HeadLog {
    /// Makes a disk that lists the accesses to `inner`.
    pub fn new(inner: SharedDisk) -> HeadLog {
        HeadLog { inner, accesses: Mutex::default() }
    }

    /// Returns the list, and begins a new one.
    pub fn take(&self) -> Vec<HeadAccess> {
        std::mem::take(&mut self.accesses.lock())
    }

    fn note(&self, at: u64, bytes: u64, tag: Tag) {
        let sectors = u32::try_from(bytes / SECTOR as u64).unwrap_or(u32::MAX);
        self.accesses.lock().push(HeadAccess { at, sectors, is_page: tag.kind == Kind::Swap });
    }
}

impl Disk for HeadLog {
    moafs_disk::forward_to!(inner: limits, wait, make_durable, epoch, durable);

    fn submit(&self, batch: Vec<Request>) -> Ticket {
        batch.iter().for_each(|request| self.note(request.at.0, request.bytes(), request.tag));
        self.inner.submit(batch)
    }

    fn read_into(&self, parts: &mut [ReadPart<'_>], tag: Tag) -> Result<(), DiskError> {
        parts.iter().for_each(|part| self.note(part.at.0, part.into.len() as u64, tag));
        self.inner.read_into(parts, tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strokes_are_counted_between_neighbours() {
        let access = |at, is_page| HeadAccess { at, sectors: 8, is_page };
        let list = [access(0, true), access(8, true), access(1000, false), access(0, true), access(2000, true)];
        let strokes = Strokes::of(&list, 500);
        assert_eq!((strokes.accesses, strokes.page_accesses), (5, 4));
        assert_eq!((strokes.long, strokes.long_between), (3, 2));
        assert_eq!(strokes.sectors, 984 + 1008 + 1992);
        assert_eq!(Strokes::of(&[], 1), Strokes::default());
    }
}
