//! The lowest layer of a volume: its format, its device, its options, and the gate that every call passes.

use std::sync::{Arc, OnceLock};

use moafs_disk::{Buf, Lba, Page, SECTOR, SharedDisk};
use moafs_runtime::leaf::atomic::{AtomicBool, AtomicU64, Ordering};
use moafs_runtime::lock::{ReadGuard, RwLock};
use moafs_runtime::{Event, Rt, Timestamp};

use crate::calls::{SetAttr, SetTime, Unseen};
use crate::counters::Tally;
use crate::error::{Error, Result};
use crate::format::{Format, Shape};
use crate::health::{Calm, panicked_in};
use crate::options::{AtimeRule, Options, SynchronousRule};
use crate::swap_space::LastAccess;
use crate::types::{Attr, BlockRun, Lbn, LbnRange};

/// The parts of a volume that every layer uses.
pub(crate) struct Volume<F: Format> {
    pub(crate) format: F,
    pub(crate) shape: Shape,
    pub(crate) disk: SharedDisk,
    pub(crate) rt: Rt,
    pub(crate) options: Options,
    pub(crate) atime: AtimeRule,
    /// The changes that are durable before their call returns.
    pub(crate) synchronous: SynchronousRule,
    /// The lock of level 0. True while the volume is open.
    pub(crate) gate: RwLock<bool>,
    pub(crate) tally: Tally,
    /// The file block that the device was last asked for.
    pub(crate) last_access: Arc<LastAccess>,
    /// Time of the last call, in nanoseconds of the runtime's clock.
    pub(crate) last_call: AtomicU64,
    /// Called with each change that the front does not learn of by the answers to its calls.
    pub(crate) watcher: OnceLock<Watcher>,
    /// Wakes the syncer early.
    pub(crate) syncer_wake: Arc<SyncerWake>,
    /// The page that holes read as.
    pub(crate) zero_page: Page,
}

/// The channel to the syncer. It outlives the volume, so that the syncer need not keep the volume alive.
pub(crate) struct SyncerWake {
    pub(crate) event: Event,
    pub(crate) stop: AtomicBool,
}

/// See [`crate::Vfs::watch_unseen`].
pub(crate) type Watcher = Box<dyn Fn(Unseen<'_>) + Send + Sync>;

/// A running call: the volume does not close meanwhile. A panic in it turns the volume read-only.
pub(crate) struct Entered<'a, F: Format> {
    volume: &'a Volume<F>,
    calm: Calm,
    _gate: ReadGuard<'a, bool>,
}

impl<F: Format> Drop for Entered<'_, F> {
    fn drop(&mut self) {
        if self.calm.has_ended() {
            self.volume.format.fail(&panicked_in("a call"));
        }
    }
}

impl<F: Format> Volume<F> {
    pub(crate) fn new(format: F, disk: SharedDisk, rt: Rt, options: Options) -> Volume<F> {
        let shape = format.shape().clone();
        Volume {
            gate: RwLock::new(Arc::clone(&rt), true),
            tally: Tally::default(),
            last_access: Arc::default(),
            last_call: AtomicU64::new(0),
            watcher: OnceLock::new(),
            syncer_wake: Arc::new(SyncerWake { event: Event::new(), stop: AtomicBool::new(false) }),
            zero_page: Buf::zeroed(shape.block_size as usize).freeze(),
            format,
            shape,
            disk,
            rt,
            atime: AtimeRule::new(options.atime),
            synchronous: SynchronousRule::new(options.synchronous),
            options,
        }
    }

    /// Begins a call (level 0); fails if the volume is closed.
    pub(crate) fn enter(&self) -> Result<Entered<'_, F>> {
        self.last_call.store(self.rt.now().0, Ordering::Relaxed);
        self.enter_quietly()
    }

    /// Begins background work: the volume stays idle.
    pub(crate) fn enter_quietly(&self) -> Result<Entered<'_, F>> {
        let gate = self.gate.read();
        if !*gate {
            return Err(Error::Refused("the volume has been closed".into()));
        }
        Ok(Entered { volume: self, calm: Calm::new(), _gate: gate })
    }

    /// Begins a call that changes something.
    pub(crate) fn enter_changing(&self) -> Result<Entered<'_, F>> {
        let gate = self.enter()?;
        self.check_writable()?;
        self.format.settle_names()?;
        Ok(gate)
    }

    /// Returns an error if the volume does not accept changes, with the first reason.
    pub(crate) fn check_writable(&self) -> Result<()> {
        let reason = match self.format.failed() {
            Some(reason) => reason,
            None if self.options.read_only => "it was mounted read-only".to_owned(),
            None => match &self.shape.read_only {
                Some(reason) => reason.clone(),
                None => return Ok(()),
            },
        };
        Err(Error::ReadOnly { reason })
    }

    /// Returns an error if the program that this call works for has been killed.
    pub(crate) fn check_caller(&self) -> Result<()> {
        if self.rt.caller_is_gone() { Err(Error::Posix(libc::EINTR)) } else { Ok(()) }
    }

    pub(crate) fn block_bytes(&self) -> u64 {
        u64::from(self.shape.block_size)
    }

    /// Returns the largest data request in blocks.
    pub(crate) fn transfer_blocks(&self) -> u32 {
        let bytes = self.options.transfer_bytes_max as u64;
        u32::try_from(bytes / self.block_bytes()).unwrap_or(u32::MAX).max(1)
    }

    /// Returns the device address of a run of file contents, for a request that is about to be made: the head will be
    /// there.
    pub(crate) fn lba(&self, run: BlockRun) -> Lba {
        self.last_access.note(run.end());
        Lba(run.start.0.saturating_mul(self.block_bytes() / SECTOR as u64))
    }

    /// Returns the blocks that hold `len` > 0 bytes from `offset` on.
    pub(crate) fn blocks_of(&self, offset: u64, len: u64) -> LbnRange {
        let first = offset / self.block_bytes();
        let last = (offset + len - 1) / self.block_bytes();
        LbnRange { start: Lbn(first), len: u32::try_from(last + 1 - first).unwrap_or(u32::MAX) }
    }

    /// Returns the time of day as inodes of this volume can hold it.
    pub(crate) fn timestamp(&self) -> Timestamp {
        self.clamp_time(self.rt.timestamp())
    }

    /// Returns the time that inodes of this volume hold for `time`. As in the kernel's file systems, the first and the
    /// last second of the range have no parts.
    pub(crate) fn clamp_time(&self, time: Timestamp) -> Timestamp {
        let (first, last) = self.shape.time_range;
        let secs = time.secs.clamp(first, last);
        let has_nanos = self.shape.time_nanos && first < secs && secs < last;
        Timestamp::new(secs, if has_nanos { time.nanos } else { 0 })
    }

    pub(crate) fn set_times(&self, attr: &mut Attr, set: &SetAttr, now: moafs_runtime::Timestamp) {
        let resolve = |time: SetTime| match time {
            SetTime::Now => now,
            SetTime::To(time) => self.clamp_time(time),
        };
        attr.atime = set.atime.map_or(attr.atime, resolve);
        attr.mtime = set.mtime.map_or(attr.mtime, resolve);
        attr.ctime = set.ctime.map_or(now, |time| self.clamp_time(time));
    }
}
