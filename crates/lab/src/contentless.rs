//! A disk that keeps metadata and forgets file data: so that a 4 GiB volume costs the memory of its tables.
//!
//! The requests themselves say whether they carry file data ([`moafs_disk::Tag`]). Reads of file
//! data give a pattern. For aging and for saving aged images, where no time passes; modelled drives
//! forget file data by themselves.

use moafs_disk::completions::Completions;
use moafs_disk::{Disk, Done, MemDisk, Request, Ticket};

/// The byte that file data read as.
const PATTERN: u8 = 0x5a;

/// A disk in memory that forgets file data.
pub struct Contentless {
    kept: MemDisk,
    completions: Completions,
}

impl Contentless {
    /// Makes a disk that keeps metadata in `kept`.
    pub fn new(kept: MemDisk) -> Contentless {
        Contentless { kept, completions: Completions::default() }
    }

    /// Returns an independent copy of the metadata kept so far.
    pub fn snapshot(&self) -> MemDisk {
        self.kept.snapshot()
    }

    /// Answers a request about file data; returns any other request, which goes to the kept
    /// metadata.
    fn forget(&self, request: Request) -> Result<Done, Request> {
        if !request.tag.kind.is_contents() {
            return Err(request);
        }
        if let Err(error) = self.limits().check(&request) {
            return Ok(Done { result: Err(error), epoch: self.epoch() });
        }
        let mut into = request.op.into_buffers();
        into.iter_mut().for_each(|buf| buf.fill(PATTERN));
        Ok(Done { result: Ok(into), epoch: self.epoch() })
    }

    fn execute(&self, request: Request) -> Done {
        // A discarded block may become metadata later: its first write then goes to the kept
        // metadata.
        match self.forget(request) {
            Ok(done) => done,
            Err(request) => self.kept.wait(self.kept.submit(vec![request])).remove(0),
        }
    }
}

impl Disk for Contentless {
    moafs_disk::forward_to!(kept: limits, make_durable, epoch, durable);

    fn submit(&self, batch: Vec<Request>) -> Ticket {
        self.completions.put(batch.into_iter().map(|request| self.execute(request)).collect())
    }

    fn wait(&self, ticket: Ticket) -> Vec<Done> {
        self.completions.take(ticket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use moafs_disk::{Buf, DiskExt, Kind, Lba, Op, Tag};

    #[test]
    fn metadata_stay_and_data_are_forgotten() {
        let disk = Contentless::new(MemDisk::new(64));
        let page = || Buf::copy_of(&[7; 512]).freeze();
        disk.write(Lba(0), page(), Tag::volume(Kind::Bitmap)).unwrap();
        disk.write(Lba(1), page(), Tag::volume(Kind::Data)).unwrap();
        assert_eq!(disk.read(Lba(0), 512, Tag::volume(Kind::Bitmap)).unwrap()[0], 7);
        assert_eq!(disk.read(Lba(1), 512, Tag::volume(Kind::Data)).unwrap()[0], PATTERN);
        assert_eq!(disk.read(Lba(1), 512, Tag::volume(Kind::Bitmap)).unwrap()[0], 0);
        let beyond = Request { op: Op::Discard { sectors: 2 }, at: Lba(63), tag: Tag::volume(Kind::Data) };
        assert!(disk.run(vec![beyond])[0].result.is_err());
    }
}
