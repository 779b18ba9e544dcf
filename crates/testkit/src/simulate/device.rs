//! The disk of a simulation: requests take time, errors happen by plan, and the power fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use moafs_disk::completions::Completions;
use moafs_disk::probe::crash::CrashRecorder;
use moafs_disk::{Disk, DiskError, Done, Epoch, Request, SharedDisk, Ticket};
use moafs_runtime::{Rt, sleep_until};
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// A disk whose power can fail.
pub struct Device {
    /// Executes requests: the recorder, or a plan of faults above it.
    inner: SharedDisk,
    recorder: Arc<CrashRecorder>,
    rt: Rt,
    rng: Mutex<Pcg64Mcg>,
    latency_ns: u64,
    /// Number of entries of the recorder at which the power fails.
    cut_at: AtomicUsize,
    off: AtomicBool,
    /// Requests handed down: the ticket, and the number of requests.
    batches: Completions<(Option<Ticket>, usize)>,
}

fn no_power() -> DiskError {
    DiskError::flush(libc::EIO)
}

impl Device {
    /// Creates a disk with power. A request takes up to `latency_ns`.
    pub fn new(inner: SharedDisk, recorder: Arc<CrashRecorder>, rt: Rt, seed: u64, latency_ns: u64) -> Device {
        Device {
            inner,
            recorder,
            rt,
            rng: Mutex::new(Pcg64Mcg::seed_from_u64(seed)),
            latency_ns,
            cut_at: AtomicUsize::new(usize::MAX),
            off: AtomicBool::new(false),
            batches: Completions::default(),
        }
    }

    /// Lets the power fail once the recorder has so many entries.
    pub fn cut_at(&self, entries: usize) {
        self.cut_at.store(entries, Ordering::Relaxed);
    }

    /// Lets the power fail now.
    pub fn cut(&self) {
        self.off.store(true, Ordering::Relaxed);
    }

    /// Returns true once the power has failed: later events do not count.
    pub fn is_off(&self) -> bool {
        if self.recorder.cut_points() > self.cut_at.load(Ordering::Relaxed) {
            self.cut();
        }
        self.off.load(Ordering::Relaxed)
    }

    fn take_time(&self) {
        if self.latency_ns > 0 {
            let ns = self.rng.lock().random_range(0..=self.latency_ns);
            sleep_until(&*self.rt, self.rt.now() + std::time::Duration::from_nanos(ns));
        }
    }
}

impl Disk for Device {
    moafs_disk::forward_to!(inner: limits, epoch, durable);

    fn submit(&self, batch: Vec<Request>) -> Ticket {
        let len = batch.len();
        let below = (!self.is_off()).then(|| self.inner.submit(batch));
        self.batches.put((below, len))
    }

    fn wait(&self, ticket: Ticket) -> Vec<Done> {
        self.take_time();
        let (below, len) = self.batches.take(ticket);
        match below {
            Some(below) if !self.is_off() => self.inner.wait(below),
            _ => (0..len).map(|_| Done { result: Err(no_power()), epoch: self.inner.epoch() }).collect(),
        }
    }

    fn make_durable(&self, upto: Epoch) -> Result<(), DiskError> {
        if self.inner.durable() < Some(upto.min(self.inner.epoch())) {
            self.take_time();
        }
        if self.is_off() { Err(no_power()) } else { self.inner.make_durable(upto) }
    }
}
