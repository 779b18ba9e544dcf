//! Background work: what is old goes out, what is unlinked is reaped, the format gets its steps.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use moafs_runtime::Time;

use crate::dirty::STREAM_BYTES;
use crate::format::{Format, Idle, Why};
use crate::inner::Inner;
use crate::plan::Due;

/// The syncer looks at least this often.
const ROUND: Duration = Duration::from_secs(1);

/// And, while unlinked inodes wait to be reaped, this often.
const REAP_ROUND: Duration = Duration::from_millis(100);

/// Nobody asked for anything for this long: the volume is idle.
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

    /// One round as a call of its own; returns when the next is due.
    pub(crate) fn round(&self) -> Time {
        let Ok(_gate) = self.enter_quietly() else { return Time::MAX };
        self.tend()
    }

    /// One round of background work.
    pub(crate) fn tend(&self) -> Time {
        self.finish_loose_fills();
        if self.check_writable().is_err() {
            return self.rt.now() + ROUND;
        }
        let mut next = self.tend_once();
        // Writers may keep it up for as long as they like: everything else has its turn all the same.
        while self.write_back_surplus() && !self.syncer_wake.stop.load(Ordering::SeqCst) {
            next = self.tend_once();
        }
        self.trim_queue();
        let own = if self.has_ripe() { REAP_ROUND } else { ROUND };
        let oldest = self.dirty.lock().oldest().map_or(Time::MAX, |since| since + self.options.dirty_age);
        let now = self.rt.now();
        // A moment at least: a format or a file that is due at once must not make this spin.
        (now + own).min(next).min(oldest).max(now + Duration::from_millis(10))
    }

    /// What is due by the clock or by the format's own account; returns when the format wants its next turn.
    fn tend_once(&self) -> Time {
        let now = self.rt.now();
        self.reap_all();
        self.write_behind();
        self.write_back_old(now);
        self.commit_if_due(now);
        self.format.tend(self.idle(now)).unwrap_or(Time::MAX)
    }

    fn idle(&self, now: Time) -> Idle {
        let quiet = now - Time(self.last_call.load(Ordering::Relaxed));
        if quiet >= IDLE_AFTER { Idle::For(quiet) } else { Idle::Busy }
    }

    /// Data that reached the age limit. Errors are latched in the inodes.
    fn write_back_old(&self, now: Time) {
        let age = self.options.dirty_age;
        let Some(limit) = now.0.checked_sub(age.as_nanos() as u64) else { return };
        let old = self.dirty.lock().older_than(Time(limit));
        self.write_back(old.iter().map(|inode| Due::Age(inode.ino)));
    }

    /// Above the background limit, some leaves before writers have to wait; more than is over, since what leaves
    /// together travels together. True if there may be more.
    fn write_back_surplus(&self) -> bool {
        let limit = self.cache.dirty_bytes_background();
        let over = self.cache.dirty_bytes().saturating_sub(limit);
        over > 0 && self.evict_dirty(over + limit / 8).blocks > 0
    }

    /// Large files leave while they are still being written: the device works meanwhile, and an fsync finds less to do.
    fn write_behind(&self) {
        loop {
            let Some(inode) = self.dirty.lock().pop_stream() else { return };
            let mut dues = Vec::new();
            self.dues_of(&inode, STREAM_BYTES as u64 / self.block_bytes(), &mut dues);
            self.write_back(dues);
        }
    }

    /// Metadata, at the commit interval.
    fn commit_if_due(&self, now: Time) {
        let last = Time(self.last_commit.load(Ordering::Relaxed));
        if now - last < self.options.commit_interval {
            return;
        }
        self.last_commit.store(now.0, Ordering::Relaxed);
        let put = self.put_all();
        if put.is_ok() && self.uncommitted.load(Ordering::Relaxed) {
            // A failure turns the volume read-only, and is kept there.
            let _ = self.commit(Why::Age);
        }
    }
}
