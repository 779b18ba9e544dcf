//! The disk of one partition.

use crate::completions::Completions;
use crate::{Disk, DiskError, Done, Lba, Limits, ReadPart, Request, SharedDisk, Tag, Ticket};

/// A run of sectors of a disk, as a disk of its own. No request leaves it.
pub struct PartitionDisk {
    below: SharedDisk,
    first: Lba,
    limits: Limits,
    batches: Completions<Batch>,
}

/// A batch that was submitted and not yet waited for.
struct Batch {
    below: Ticket,
    /// For each request the reason for which it was refused; the others went to the disk below.
    refused: Vec<Option<DiskError>>,
}

impl PartitionDisk {
    /// Makes the disk of `sectors` sectors from `first` on.
    ///
    /// # Errors
    /// [`DiskError::BeyondEnd`] if they do not lie on the disk.
    pub fn new(below: SharedDisk, first: Lba, sectors: u64) -> Result<PartitionDisk, DiskError> {
        let all = below.limits();
        let limits = Limits { sectors, ..all.clone() };
        let is_on_disk = first.0.checked_add(sectors).is_some_and(|end| end <= all.sectors);
        if !is_on_disk {
            let bytes = sectors.saturating_mul(crate::SECTOR as u64);
            return Err(DiskError::BeyondEnd { at: first, bytes, sectors: all.sectors });
        }
        Ok(PartitionDisk { below, first, limits, batches: Completions::default() })
    }

    fn shifted(&self, at: Lba) -> Lba {
        Lba(self.first.0 + at.0)
    }
}

impl Disk for PartitionDisk {
    crate::forward_to!(below: make_durable, epoch, durable);

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&self, batch: Vec<Request>) -> Ticket {
        let refused: Vec<_> = batch.iter().map(|request| self.limits.check(request).err()).collect();
        let sound = batch.into_iter().zip(&refused).filter(|(_, refused)| refused.is_none());
        let below = sound.map(|(request, _)| Request { at: self.shifted(request.at), ..request }).collect();
        self.batches.put(Batch { below: self.below.submit(below), refused })
    }

    fn wait(&self, ticket: Ticket) -> Vec<Done> {
        let Batch { below, refused } = self.batches.take(ticket);
        let mut done = self.below.wait(below).into_iter();
        let ended = refused.into_iter().map(|refused| match refused {
            Some(error) => Some(Done { result: Err(error), epoch: self.epoch() }),
            None => done.next(),
        });
        ended.map(|done| done.expect("the disk below ends each request")).collect()
    }

    fn read_into(&self, parts: &mut [ReadPart<'_>], tag: Tag) -> Result<(), DiskError> {
        for part in &*parts {
            self.limits.check_range("read", part.at, part.into.len() as u64)?;
        }
        let shift = |part: &'_ mut ReadPart<'_>| part.at = self.shifted(part.at);
        parts.iter_mut().for_each(shift);
        let read = self.below.read_into(parts, tag);
        parts.iter_mut().for_each(|part| part.at = Lba(part.at.0 - self.first.0));
        read
    }
}
