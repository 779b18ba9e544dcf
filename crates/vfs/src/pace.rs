//! The pace of writers: they are slowed down before the limit of dirty data, not stopped at it.
//!
//! A writer is faster than the device. Stopped at the limit, some of its calls wait for the request that the device is
//! serving just then: a whole batch, a flush. Slowed down to the measured rate of the device, the dirty data settle
//! between the point where write-back begins and the limit, and the rest up to the limit takes up the writes that come
//! while the device is busy with another request.
//!
//! A pause is the time that as many bytes took to leave lately, times a share that grows with the dirty data: none
//! where write-back begins, so that the device never idles for a pause; once that time an eighth of the way on; more
//! beyond. So most of the way to the limit is left for the longest wait there is, a flush of the drive's cache.

use std::time::Duration;

use moafs_runtime::Time;
use moafs_runtime::leaf::Mutex;

/// The shortest time over which the bytes that left are averaged.
const SAMPLE: Duration = Duration::from_millis(250);
/// A longer time without a write means that there was nothing to write, which says nothing about the device.
const LULL: Duration = Duration::from_secs(1);
/// Seconds that a byte takes, before any measurement: 10 MB/s. A guess that is too slow is soon corrected, one that is
/// too fast lets writers hit the limit.
const FIRST_GUESS: f64 = 1e-7;
/// The number of samples that the average is taken over: a new sample's weight is one in so many.
const SAMPLES: f64 = 4.0;
/// The pause at the limit, as a multiple of the time that the writer's bytes take.
const AT_LIMIT: f64 = 8.0;
/// The shortest pause: smaller ones are saved up until they are worth a timer.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest pause: the limit itself stops a writer that is too fast for this.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// The measured rate of the device, and the pauses of writers that follow from it.
#[derive(Default)]
pub(crate) struct Pace(Mutex<State>);

struct State {
    sample_bytes: u64,
    sample_from: Time,
    last: Time,
    /// Seconds that one byte takes, on average.
    byte_s: f64,
    owed: Duration,
}

impl Default for State {
    fn default() -> State {
        State {
            sample_bytes: 0,
            sample_from: Time::default(),
            last: Time::default(),
            byte_s: FIRST_GUESS,
            owed: Duration::ZERO,
        }
    }
}

impl Pace {
    /// Notes that `bytes` bytes were written by `now`.
    pub(crate) fn completed(&self, bytes: u64, now: Time) {
        let mut state = self.0.lock();
        let lull = now - std::mem::replace(&mut state.last, now) > LULL;
        if lull {
            (state.sample_bytes, state.sample_from) = (0, now);
            return;
        }
        state.sample_bytes += bytes;
        let took = now - state.sample_from;
        if took < SAMPLE || state.sample_bytes == 0 {
            return;
        }
        let seen = took.as_secs_f64() / state.sample_bytes as f64;
        state.byte_s += (seen - state.byte_s) / SAMPLES;
        (state.sample_bytes, state.sample_from) = (0, now);
    }

    /// Returns the pause of the writer of `bytes` bytes with `dirty` bytes dirty, if write-back begins at `begin` and
    /// writers stop at `limit`.
    pub(crate) fn pause(&self, bytes: usize, dirty: usize, begin: usize, limit: usize) -> Duration {
        let mut state = self.0.lock();
        let share = dirty.saturating_sub(begin) as f64 / limit.saturating_sub(begin).max(1) as f64;
        let pause_s = bytes as f64 * state.byte_s * share * AT_LIMIT;
        state.owed += Duration::from_secs_f64(pause_s.min(PAUSE_MAX.as_secs_f64()));
        if state.owed < PAUSE_MIN {
            return Duration::ZERO;
        }
        std::mem::take(&mut state.owed).min(PAUSE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the pace after a device of 10 MB/s has been writing for ten seconds.
    fn seen() -> Pace {
        let pace = Pace::default();
        (0..100).for_each(|tenth| pace.completed(1_000_000, Time(10_000_000_000 + tenth * 100_000_000)));
        pace
    }

    /// Returns the mean pause of a write of 100,000 bytes, in seconds.
    fn mean_s(pace: &Pace, dirty: usize) -> f64 {
        let all: Duration = (0..1000).map(|_| pace.pause(100_000, dirty, 1 << 20, 9 << 20)).sum();
        all.as_secs_f64() / 1000.0
    }

    #[test]
    fn writers_keep_the_devices_pace_an_eighth_of_the_way_to_the_limit() {
        let pace = seen();
        assert_eq!(mean_s(&pace, 1 << 20), 0.0);
        assert!((mean_s(&pace, 2 << 20) - 0.01).abs() < 0.0005);
        assert!((mean_s(&pace, 9 << 20) - 0.08).abs() < 0.004);
        assert_eq!(mean_s(&pace, 400 << 20), PAUSE_MAX.as_secs_f64());
    }

    #[test]
    fn small_pauses_are_saved_up() {
        let pace = seen();
        let pauses: Vec<Duration> = (0..10).map(|_| pace.pause(25_000, 2 << 20, 1 << 20, 9 << 20)).collect();
        assert!(pauses.iter().any(Duration::is_zero) && pauses.iter().all(|p| p.is_zero() || *p >= PAUSE_MIN));
    }

    #[test]
    fn a_lull_is_no_slowness() {
        let pace = seen();
        let before = mean_s(&pace, 2 << 20);
        pace.completed(4096, Time(500_000_000_000));
        assert!((mean_s(&pace, 2 << 20) - before).abs() < 1e-4);
    }
}
