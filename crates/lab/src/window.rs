//! A part of a disk as a disk of its own: a partition.

use moafs_disk::{Disk, DiskError, Lba, Limits, ReadPart, Request, SharedDisk, Tag, Ticket};

/// The sectors of a disk from one sector on, as a disk.
pub struct Window {
    inner: SharedDisk,
    start: u64,
    limits: Limits,
}

impl Window {
    /// Makes a disk of the `sectors` sectors of `inner` from `start` on.
    ///
    /// # Panics
    /// Panics if they do not all lie on it.
    pub fn new(inner: SharedDisk, start: u64, sectors: u64) -> Window {
        let limits = inner.limits().clone();
        let fits = start.checked_add(sectors).is_some_and(|end| end <= limits.sectors);
        assert!(fits, "{sectors} sectors from {start} on of {}", limits.sectors);
        Window { inner, start, limits: Limits { sectors, ..limits } }
    }

    fn at(&self, at: Lba) -> Lba {
        Lba(at.0 + self.start)
    }
}

impl Disk for Window {
    moafs_disk::forward_to!(inner: wait, make_durable, epoch, durable);

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&self, mut batch: Vec<Request>) -> Ticket {
        for request in &mut batch {
            // A request beyond the window must not reach the sectors beside it.
            let beyond = self.limits.check(request).is_err();
            request.at = if beyond { Lba(u64::MAX) } else { self.at(request.at) };
        }
        self.inner.submit(batch)
    }

    fn read_into(&self, parts: &mut [ReadPart<'_>], tag: Tag) -> Result<(), DiskError> {
        for part in parts.iter_mut() {
            self.limits.check_range("read", part.at, part.into.len() as u64)?;
            part.at = self.at(part.at);
        }
        self.inner.read_into(parts, tag)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use moafs_disk::{Buf, DiskExt, Kind, MemDisk};

    #[test]
    fn a_window_shows_its_sectors_and_no_others() {
        let disk = Arc::new(MemDisk::new(100));
        let window = Window::new(Arc::clone(&disk) as SharedDisk, 40, 20);
        let tag = Tag::volume(Kind::Swap);
        window.write(Lba(3), Buf::copy_of(&[7; 512]).freeze(), tag).unwrap();
        assert_eq!(disk.read(Lba(43), 512, tag).unwrap()[0], 7);
        assert_eq!(window.read(Lba(3), 512, tag).unwrap()[0], 7);
        for at in [20, 19, u64::MAX] {
            assert!(window.read(Lba(at), 1024, tag).is_err(), "{at}");
        }
        let mut into = [0; 512];
        window.read_into(&mut [ReadPart { at: Lba(3), into: &mut into }], tag).unwrap();
        assert_eq!(into[0], 7);
        assert!(window.read_into(&mut [ReadPart { at: Lba(20), into: &mut into }], tag).is_err());
    }
}
