//! Shortage of space: everything that can be written, reaped or committed is, before a caller is told ENOSPC.
//!
//! One caller at a time does this for all. It goes on as long as a round gave space back, to any caller, or as other
//! calls hold reservations larger than what they will use, or as data in flight do.

use std::time::Duration;

use moafs_runtime::Rt;
use moafs_runtime::leaf::atomic::{AtomicU64, Ordering};
use moafs_runtime::lock::Mutex;

use crate::admission::Admitted;
use crate::error::{Error, Result};
use crate::format::{CommitReason, Format, SpaceClass, SpaceRequest};
use crate::full_host::wait_for_host;
use crate::layer::layer;
use crate::plan::WritebackReason;
use crate::write_back::WriteBack;

/// The most rounds: callers that keep freeing and taking space must not keep another one here for ever.
const ROUNDS_MAX: u32 = 64;

/// The most waits for other calls to end, or for the kernel to forget files that were removed.
const WAITS_MAX: u32 = 8;

/// The longest time of one such wait.
const WAIT: Duration = Duration::from_millis(20);

/// The shortage of space: the rounds in which everything is written, reaped and committed.
pub(crate) struct Pressure<F: Format> {
    write_back: WriteBack<F>,
    /// The last round. Held by the caller that frees space.
    last: Mutex<Round>,
    /// Number of rounds begun.
    rounds: AtomicU64,
}

layer!(Pressure over write_back: WriteBack);

/// One turn of writing, reaping and committing everything.
#[derive(Debug, Clone, Copy, Default)]
struct Round {
    /// The round's number, from 1.
    number: u64,
    /// The value of [`crate::relief::Relief::freed`] when it began.
    freed: u64,
}

impl<F: Format> Pressure<F> {
    pub(crate) fn new(write_back: WriteBack<F>) -> Pressure<F> {
        let last = Mutex::new(Rt::clone(&write_back.rt), Round::default());
        Pressure { write_back, last, rounds: AtomicU64::new(0) }
    }

    /// Reserves space. Level 0 only, and the caller holds no other reservation.
    ///
    /// # Errors
    /// ENOSPC if there is none after everything that could be written or freed has been.
    pub(crate) fn admit(&self, need: SpaceRequest, class: SpaceClass) -> Result<Admitted<'_, F>> {
        self.admit_or(need, class, || Ok(None))
    }

    /// Reserves space for names as [`Self::admit`] does. If all that can be freed is too little, inodes without blocks
    /// for their names will do.
    pub(crate) fn admit_or_in_place(&self, need: SpaceRequest, class: SpaceClass) -> Result<Admitted<'_, F>> {
        self.admit_or(need, class, || if need.inodes > 0 { self.admit_in_place(need.inodes, class) } else { Ok(None) })
    }

    /// Reserves space; `less` makes a smaller reservation, and is called when nothing is left that could be freed.
    fn admit_or<'a>(
        &'a self,
        need: SpaceRequest,
        class: SpaceClass,
        less: impl Fn() -> Result<Option<Admitted<'a, F>>>,
    ) -> Result<Admitted<'a, F>> {
        if let Some(admitted) = self.admit_at_once(need, class)? {
            return Ok(admitted);
        }
        self.tally.pressure_commits.fetch_add(1, Ordering::Relaxed);
        // Not under the lock: each caller waits for its own time.
        wait_for_host(&self.rt, || self.free_until_admitted(need, class, &less))
    }

    fn free_until_admitted<'a>(
        &'a self,
        need: SpaceRequest,
        class: SpaceClass,
        less: &impl Fn() -> Result<Option<Admitted<'a, F>>>,
    ) -> Result<Admitted<'a, F>> {
        let seen = self.rounds.load(Ordering::SeqCst);
        let mut last = self.last.lock();
        let mut waits = 0;
        for _ in 0..ROUNDS_MAX {
            self.check_caller()?;
            let calm = self.calm();
            if let Some(admitted) = self.admit_at_once(need, class)? {
                return Ok(admitted);
            }
            // A round that began after this call first failed serves as well as one of its own.
            let in_vain = last.number > seen && last.freed == self.relief.freed.load(Ordering::SeqCst);
            if !in_vain || self.has_ripe() {
                *last = self.free_everything()?;
                continue;
            }
            // A flight while this call looked may have hidden the space that its blocks were promised.
            if calm.is_none() || calm != self.calm() {
                self.wait_for_flights();
                continue;
            }
            if let Some(admitted) = less()? {
                return Ok(admitted);
            }
            // A caller that has just removed a file may have taken what another one's removal gave back.
            if self.has_ripe() {
                continue;
            }
            // Others may give back what they will not use, or what their blocks took that have a place now; other tasks
            // may be reaping, and the kernel may be about to forget removed files.
            let others =
                || self.relief.calls.load(Ordering::SeqCst) > 0 || self.is_reaping() || self.has_held_orphans();
            if waits == WAITS_MAX || !self.wait_for_relief(self.rt.now() + WAIT, others) {
                break;
            }
            waits += 1;
        }
        // The last of the others may have ended while this call looked for them.
        match self.admit_at_once(need, class)? {
            Some(admitted) => Ok(admitted),
            None => less()?.ok_or(Error::Posix(libc::ENOSPC)),
        }
    }

    /// Reaps, writes back and commits everything that can be.
    fn free_everything(&self) -> Result<Round> {
        let number = self.rounds.fetch_add(1, Ordering::SeqCst) + 1;
        let freed = self.relief.freed.load(Ordering::SeqCst);
        let _ = self.reap_all();
        self.wait_for_reapers();
        self.write_back_unplaced();
        self.commit(CommitReason::Pressure)?;
        Ok(Round { number, freed })
    }

    /// Writes back every file that was promised more than it may need: promises become allocated blocks. Errors are
    /// latched in the inodes.
    fn write_back_unplaced(&self) {
        let mut files = self.dirty.lock().least_recent(usize::MAX);
        files.retain(|inode| inode.pages.lock().unplaced.blocks() > 0);
        self.write_back(files.iter().map(|inode| WritebackReason::Drain(inode.ino)));
        for inode in files {
            // Its blocks were in flight already, or too many for one plan.
            let _ = self.write_back_file(&inode, WritebackReason::Drain(inode.ino));
        }
    }
}
