//! Group commit: one commit for callers that come at about the same time.
//!
//! Two clients that fsync one small file after the other would take turns otherwise: while one waits for a commit, the
//! other has just begun its next file, and each commit serves one of them. So a commit waits for the callers that the
//! last one served, as long as they are likely to be back soon. A caller that is alone never waits.

use std::time::Duration;

use moafs_runtime::leaf::Mutex;
use moafs_runtime::{Event, Rt, Time};

/// The longest wait for others.
const WAIT_MAX: Duration = Duration::from_millis(4);
/// The share of a commit's mean time, one part in so many, that the wait takes at most.
const WAIT_SHARE: u32 = 2;
/// The weight of the time of the last commit in the mean, one part in so many.
const MEAN_WEIGHT: u32 = 8;

/// The callers of commits, and how long commits take.
#[derive(Debug, Default)]
pub(super) struct GroupCommit {
    arrival: Event,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of commits that have begun.
    begun: u64,
    /// Callers that have come since.
    waiting: u32,
    /// Callers that the next commit is likely to serve.
    expected: u32,
    /// The end of the last commit.
    ended: Time,
    /// The mean time of a commit.
    mean: Duration,
}

/// A caller that waits for a commit.
pub(super) struct Caller<'a> {
    group: &'a GroupCommit,
    /// The number of commits that had begun when it came.
    begun: u64,
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        let mut state = self.group.state.lock();
        if state.begun == self.begun {
            state.waiting -= 1;
        }
    }
}

/// A commit under way: when it began, and the callers that it serves.
pub(super) struct Begun {
    at: Time,
    served: u32,
}

impl GroupCommit {
    /// Registers a caller.
    pub(super) fn enter(&self, rt: &Rt) -> Caller<'_> {
        let begun = {
            let mut state = self.state.lock();
            state.waiting += 1;
            state.begun
        };
        rt.signal(&self.arrival);
        Caller { group: self, begun }
    }

    /// Waits for the other callers that are expected, for a short time.
    pub(super) fn wait_for_others(&self, rt: &Rt) {
        loop {
            let ticket = self.arrival.ticket();
            let until = {
                let state = self.state.lock();
                if state.waiting >= state.expected {
                    return;
                }
                state.ended + (state.mean / WAIT_SHARE).min(WAIT_MAX)
            };
            if rt.now() >= until {
                return;
            }
            rt.wait(&self.arrival, ticket, Some(until));
        }
    }

    /// Notes that a commit begins, which serves all that wait now.
    pub(super) fn begin(&self, rt: &Rt) -> Begun {
        let mut state = self.state.lock();
        state.begun += 1;
        Begun { at: rt.now(), served: std::mem::take(&mut state.waiting) }
    }

    /// Notes that a commit has ended. Those that it served are likely to come again, beside those that came meanwhile.
    pub(super) fn end(&self, commit: &Begun, rt: &Rt) {
        let mut state = self.state.lock();
        state.ended = rt.now();
        state.expected = commit.served + state.waiting;
        let took = state.ended - commit.at;
        state.mean = state.mean - state.mean / MEAN_WEIGHT + took / MEAN_WEIGHT;
    }
}
