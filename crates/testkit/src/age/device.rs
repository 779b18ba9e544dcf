//! A memory disk whose requests take time, and on which zeros take no memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use moafs_disk::mem::MemDisk;
use moafs_disk::{Disk, DiskError, Done, Epoch, Op, Request, SECTOR, Ticket};
use moafs_runtime::{Rt, sleep_until};

/// A disk whose requests take time, so that clients' calls interleave. A volume of gigabytes can be full because its
/// filling is zeros.
pub struct SlowDisk {
    store: Arc<MemDisk>,
    rt: Rt,
    noise: AtomicU64,
}

/// Shortest time of a request, in microseconds.
const REQUEST_US: u64 = 20;

impl SlowDisk {
    /// Creates a disk that keeps its contents in `store`; `seed` draws the times of requests.
    pub fn new(store: Arc<MemDisk>, rt: Rt, seed: u64) -> SlowDisk {
        SlowDisk { store, rt, noise: AtomicU64::new(seed.wrapping_mul(77)) }
    }

    fn pass_time(&self) {
        let noise = self.noise.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        sleep_until(&*self.rt, self.rt.now() + Duration::from_micros(REQUEST_US + (noise >> 57)));
    }
}

/// Turns a write of zeros into a request that takes no memory.
fn sparse(request: Request) -> Request {
    let Op::Write { data, .. } = &request.op else { return request };
    if data.iter().any(|page| page.iter().any(|byte| *byte != 0)) {
        return request;
    }
    let bytes: usize = data.iter().map(|page| page.len()).sum();
    Request { op: Op::WriteZeroes { sectors: (bytes / SECTOR) as u64 }, ..request }
}

impl Disk for SlowDisk {
    moafs_disk::forward_to!(store: limits, epoch, durable);

    fn submit(&self, batch: Vec<Request>) -> Ticket {
        self.store.submit(batch.into_iter().map(sparse).collect())
    }

    fn wait(&self, ticket: Ticket) -> Vec<Done> {
        self.pass_time();
        self.store.wait(ticket)
    }

    fn make_durable(&self, upto: Epoch) -> Result<(), DiskError> {
        self.pass_time();
        self.store.make_durable(upto)
    }
}

#[cfg(test)]
mod tests {
    use moafs_disk::{Buf, DiskExt, Kind, Lba, Tag};
    use moafs_runtime::Live;

    use super::*;

    #[test]
    fn zeros_take_no_memory_and_replace_what_was_there() {
        let store = Arc::new(MemDisk::new(1 << 12));
        let disk = SlowDisk::new(Arc::clone(&store), Live::new(), 1);
        let tag = Tag::volume(Kind::Data);
        disk.write(Lba(0), Buf::copy_of(&[7; 32 << 10]).freeze(), tag).unwrap();
        disk.write(Lba(0), Buf::copy_of(&[0; 32 << 10]).freeze(), tag).unwrap();
        assert_eq!((disk.read(Lba(8), 512, tag).unwrap()[0], store.resident_bytes()), (0, 0));
    }
}
