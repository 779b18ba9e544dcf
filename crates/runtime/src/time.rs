//! Points in time: the monotonic clock of deadlines, and the time of day of inodes.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A point on the runtime's monotonic clock, in nanoseconds since the runtime was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// The latest representable time: "no deadline".
    pub const MAX: Time = Time(u64::MAX);
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, by: Duration) -> Time {
        Time(self.0.saturating_add(by.as_nanos().min(u128::from(u64::MAX)) as u64))
    }
}

impl Sub for Time {
    type Output = Duration;
    /// Returns the time from `earlier` to `self`; zero if `earlier` is not before `self`.
    fn sub(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A time of day: seconds since 1970-01-01 UTC (may be negative) and nanoseconds (0..10^9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Whole seconds since the epoch, rounded down.
    pub secs: i64,
    /// Nanoseconds within the second.
    pub nanos: u32,
}

impl Timestamp {
    /// Returns a time of day; `nanos` beyond a second are clamped to the last nanosecond.
    pub fn new(secs: i64, nanos: u32) -> Self {
        Timestamp { secs, nanos: nanos.min(999_999_999) }
    }
}
