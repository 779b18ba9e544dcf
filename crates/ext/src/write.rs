//! Writing several blocks at once.

use moafs_disk::{Epoch, Kind, Lba, Request, SharedDisk};
use moafs_vfs::{Error, Result};

/// Writes metadata. Returns the epoch in which the last of it completed.
///
/// # Errors
/// The first device error; that the host is full only if there is no other. Any of the writes may have been carried
/// out.
pub(crate) fn write_all(disk: &SharedDisk, writes: Vec<Request>) -> Result<Epoch> {
    let whats: Vec<(Lba, Kind)> = writes.iter().map(|write| (write.at, write.tag.kind)).collect();
    let ticket = disk.submit(writes);
    let (mut newest, mut full) = (Epoch::default(), None);
    for (done, (at, kind)) in disk.wait(ticket).into_iter().zip(whats) {
        let failed = |source| Error::disk(format!("writing {kind:?} at sector {}", at.0), source);
        match done.result.map_err(failed) {
            Ok(_) => newest = newest.max(done.epoch),
            Err(error) if error.is_host_full() => full = full.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    full.map_or(Ok(newest), Err)
}

/// Writes metadata, and returns when it is durable. `doing` says what the flush is for.
///
/// # Errors
/// As [`write_all`], and those of the flush.
pub(crate) fn write_durably(disk: &SharedDisk, writes: Vec<Request>, doing: &'static str) -> Result<()> {
    let epoch = write_all(disk, writes)?;
    disk.make_durable(epoch).map_err(|source| Error::disk(doing, source))
}
