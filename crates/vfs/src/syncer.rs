//! Background work: old data are written back, unlinked inodes are reaped, the format runs its steps.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use moafs_runtime::Time;

use crate::dirty::STREAM_BYTES;
use crate::format::{CommitReason, Format, Idle};
use crate::inner::Inner;
use crate::plan::WritebackReason;

/// The longest time between two rounds of the syncer.
const ROUND: Duration = Duration::from_secs(1);

/// The longest time between two rounds while unlinked inodes wait to be reaped.
const REAP_ROUND: Duration = Duration::from_millis(100);

/// The volume is idle if no call has come for this long.
const IDLE_AFTER: Duration = Duration::from_millis(200);

impl<F: Format> Inner<F> {
    /// Starts the syncer on the runtime. It keeps the volume alive only while it works.
    pub(crate) fn start_syncer(self: &Arc<Self>) {
        let volume = Arc::downgrade(self);
        let wake = Arc::clone(&self.syncer_wake);
        let rt = Arc::clone(&self.rt);
        let body = move || {
            let mut next = rt.now() + ROUND;
            loop {
                let ticket = wake.event.ticket();
                if wake.stop.load(Ordering::SeqCst) {
                    return;
                }
                rt.wait(&wake.event, ticket, Some(next));
                if wake.stop.load(Ordering::SeqCst) {
                    return;
                }
                match Weak::upgrade(&volume) {
                    Some(volume) => next = volume.round(),
                    None => return,
                }
            }
        };
        *self.syncer_task.lock() = Some(self.rt.spawn("moafs-syncer", Box::new(body)));
    }

    pub(crate) fn stop_syncer(&self) {
        self.syncer_wake.stop.store(true, Ordering::SeqCst);
        self.rt.signal(&self.syncer_wake.event);
        let task = self.syncer_task.lock().take();
        if let Some(task) = task {
            task.join(&*self.rt);
        }
    }

    /// Runs one round as a call of its own; returns the time of the next.
    pub(crate) fn round(&self) -> Time {
        let Ok(_gate) = self.enter_quietly() else { return Time::MAX };
        self.run_background_step()
    }

    /// Runs one round of background work; returns the time of the next.
    pub(crate) fn run_background_step(&self) -> Time {
        self.finish_loose_fills();
        if self.check_writable().is_err() {
            return self.rt.now() + ROUND;
        }
        let mut next = self.tend_once();
        // Writers may keep this loop busy for as long as they like, so every pass gives all other work its turn.
        while self.write_back_surplus() && !self.syncer_wake.stop.load(Ordering::SeqCst) {
            next = self.tend_once();
        }
        self.trim_queue();
        let own = if self.has_ripe() { REAP_ROUND } else { ROUND };
        let oldest = self.dirty.lock().oldest().map_or(Time::MAX, |since| since + self.options.dirty_age);
        let now = self.rt.now();
        // At least 10 ms: a format or a file that wants a round at once must not make this spin.
        (now + own).min(next).min(oldest).max(now + Duration::from_millis(10))
    }

    /// Runs the steps whose time has come; returns the time at which the format wants its next step.
    fn tend_once(&self) -> Time {
        let now = self.rt.now();
        self.finish_truncations();
        let _ = self.reap_all();
        self.write_behind();
        self.write_back_old(now);
        self.commit_if_due(now);
        self.format.run_background_step(self.idle(now)).unwrap_or(Time::MAX)
    }

    fn idle(&self, now: Time) -> Idle {
        let quiet = now - Time(self.last_call.load(Ordering::Relaxed));
        if quiet >= IDLE_AFTER { Idle::For(quiet) } else { Idle::Busy }
    }

    /// Writes back data that reached the age limit. Errors are latched in the inodes.
    fn write_back_old(&self, now: Time) {
        let age = self.options.dirty_age;
        let Some(limit) = now.0.checked_sub(age.as_nanos() as u64) else { return };
        let old = self.dirty.lock().older_than(Time(limit));
        self.write_back(old.iter().map(|inode| WritebackReason::Age(inode.ino)));
    }

    /// Writes back some data above the background limit before writers have to wait; more than the surplus, since
    /// blocks that leave together are written together. True if there may be more.
    fn write_back_surplus(&self) -> bool {
        let limit = self.cache.dirty_bytes_background();
        let over = self.cache.dirty_bytes().saturating_sub(limit);
        over > 0 && self.evict_dirty(over + limit / 8).blocks > 0
    }

    /// Writes back large files while they are still being written: the device works meanwhile, and an fsync finds less
    /// to do.
    fn write_behind(&self) {
        // A file that is listed again meanwhile waits for the next pass: its writer may go on for ever.
        let files = self.dirty.lock().take_streams();
        for inode in files {
            let mut dues = Vec::new();
            self.dues_of(&inode, STREAM_BYTES as u64 / self.block_bytes(), &mut dues);
            self.write_back(dues);
        }
    }

    /// Commits metadata at the commit interval.
    fn commit_if_due(&self, now: Time) {
        let last = Time(self.last_commit.load(Ordering::Relaxed));
        if now - last < self.options.commit_interval {
            return;
        }
        self.last_commit.store(now.0, Ordering::Relaxed);
        // An inode that could not be told is told later.
        let _ = self.put_all();
        if self.uncommitted.load(Ordering::Relaxed) {
            // A failure turns the volume read-only, and is kept there; without room on the host it is tried again.
            let _ = self.commit(CommitReason::Age);
        }
    }
}
