//! The pace of writers: they are slowed down before the limit of dirty data, not stopped at it.
//!
//! A writer is faster than the device. Stopped at the limit, some of its calls wait for the request that the device is
//! serving just then: a whole batch, a flush. Slowed down to the measured rate of the device, the dirty data settle
//! between the point where write-back begins and the limit, and the rest up to the limit takes up the writes that come
//! while the device is busy with another request.
//!
//! A pause is the time that as many bytes took to leave lately, times a share that grows with the dirty data: none
//! where write-back begins; once that time an eighth of the way on; more beyond. So most of the way to the limit is
//! left for the longest wait there is, a flush of the drive's cache. A pause ends early when the dirty data fall to
//! where write-back begins: the device would have nothing to write.
//!
//! The rate is that of write requests while the device has some. Time without any says nothing about the device: the
//! writers pause, or the format makes room before it plans. Counted, it would make pauses longer, and these more such
//! time.

use std::time::Duration;

use moafs_runtime::Time;
use moafs_runtime::leaf::Mutex;

/// The shortest time with requests over which the bytes that left are averaged.
const SAMPLE: Duration = Duration::from_millis(250);
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
    /// Requests that were submitted and have not completed.
    underway: u32,
    /// The time up to which `sample` counts, if there are any.
    since: Time,
    /// Time with requests in the present sample, and the bytes that left in it.
    sample: Duration,
    sample_bytes: u64,
    /// Seconds that one byte takes, on average.
    byte_s: f64,
    owed: Duration,
}

impl Default for State {
    fn default() -> State {
        State {
            underway: 0,
            since: Time::default(),
            sample: Duration::ZERO,
            sample_bytes: 0,
            byte_s: FIRST_GUESS,
            owed: Duration::ZERO,
        }
    }
}

impl State {
    /// Adds the time with requests up to `now` to the sample.
    fn advance(&mut self, now: Time) {
        if self.underway > 0 {
            self.sample += now - self.since;
        }
        self.since = now;
    }
}

impl Pace {
    /// Notes that a part of a batch goes to the device.
    pub(crate) fn submitted(&self, now: Time) {
        let mut state = self.0.lock();
        state.advance(now);
        state.underway += 1;
    }

    /// Notes that a part of a batch has completed, of which `bytes` bytes were written.
    pub(crate) fn completed(&self, bytes: u64, now: Time) {
        let mut state = self.0.lock();
        state.advance(now);
        state.underway -= 1;
        state.sample_bytes += bytes;
        if state.sample < SAMPLE || state.sample_bytes == 0 {
            return;
        }
        let seen = state.sample.as_secs_f64() / state.sample_bytes as f64;
        state.byte_s += (seen - state.byte_s) / SAMPLES;
        (state.sample_bytes, state.sample) = (0, Duration::ZERO);
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
        (0..100).for_each(|tenth| {
            pace.submitted(Time(10_000_000_000 + tenth * 100_000_000));
            pace.completed(1_000_000, Time(10_100_000_000 + tenth * 100_000_000));
        });
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
    fn time_without_requests_is_no_slowness() {
        let pace = seen();
        let before = mean_s(&pace, 2 << 20);
        for second in 100..200 {
            pace.submitted(Time(second * 1_000_000_000));
            pace.completed(1_000_000, Time(second * 1_000_000_000 + 100_000_000));
        }
        assert!((mean_s(&pace, 2 << 20) - before).abs() < 1e-4);
    }

    #[test]
    fn requests_that_overlap_count_their_time_once() {
        let pace = Pace::default();
        for tenth in 0..100 {
            let at = 10_000_000_000 + tenth * 100_000_000;
            pace.submitted(Time(at));
            pace.submitted(Time(at));
            pace.completed(500_000, Time(at + 50_000_000));
            pace.completed(500_000, Time(at + 100_000_000));
        }
        assert!((mean_s(&pace, 2 << 20) - 0.01).abs() < 0.0005);
    }
}
