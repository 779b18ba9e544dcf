//! The manner in which a walker's small files are read: each alone, or together with its neighbours; learnt from the
//! device's answers.
//!
//! Co-reading saves the seeks between files. A drive that reads ahead has saved them already: it has the next file in
//! its buffer when the walker asks, and a request for all neighbours makes the walker wait for what the drive would
//! have read while the walker was at work. Which of the two a device is cannot be asked, but it shows in how long
//! walkers wait for a block:
//!
//! 1. Each manner is tried for a *sample*. Files are read together if walkers wait for that clearly less long.
//! 2. A wait counts at most as much as the blocks and [`DELAY_BLOCKS`] more take at the *quickest* pace seen lately: a
//!    walk has some long seeks in either manner, and a few more of them in one sample would decide by chance.
//! 3. After an *interval* of blocks the other manner is tried again. What was seen before counts as well, the latest
//!    most. A trial ends early when it has cost as much as the better manner needs for a whole sample, and each trial
//!    that changes nothing doubles the interval: trials cost little, however much worse the other manner is.
//! 4. A device that makes no walker wait (one in memory) is read together: that takes fewer requests.

use std::time::Duration;

/// The least blocks and requests of a sample.
const SAMPLE_BLOCKS: u64 = 64;
const SAMPLE_REQUESTS: u64 = 8;

/// The blocks that count of what was seen in one manner.
const SEEN_BLOCKS_MAX: u64 = 8 * SAMPLE_BLOCKS;

/// The blocks between two trials, at first and at most.
const INTERVAL_BLOCKS_MIN: u64 = 4 * SAMPLE_BLOCKS;
const INTERVAL_BLOCKS_MAX: u64 = 256 * SAMPLE_BLOCKS;

/// The longest delay before a request's blocks come that counts in full, as a number of blocks at the quickest pace.
const DELAY_BLOCKS: u64 = 5;

/// The quickest pace is forgotten by one part in so many at each request.
const QUICKEST_SHARE: u64 = 64;

/// Reading together pays if a block takes at most so many parts of 100 of the time that it takes alone.
const WORTH_PERCENT: u64 = 80;

/// A way of reading the small files that a walker goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Manner {
    /// A file with its neighbours, in one request.
    #[default]
    Together,
    /// Each file with a request of its own.
    Alone,
}

/// The waits seen in one manner.
#[derive(Debug, Clone, Copy, Default)]
struct Waits {
    requests: u64,
    blocks: u64,
    /// The time that walkers waited, and what counts of it.
    ns: u64,
    counted_ns: u64,
}

impl Waits {
    fn add(&mut self, more: Waits) {
        self.requests += more.requests;
        self.blocks += more.blocks;
        self.ns = self.ns.saturating_add(more.ns);
        self.counted_ns = self.counted_ns.saturating_add(more.counted_ns);
        if self.blocks > SEEN_BLOCKS_MAX {
            self.halve();
        }
    }

    /// Makes what was seen so far count half as much.
    fn halve(&mut self) {
        for sum in [&mut self.requests, &mut self.blocks, &mut self.ns, &mut self.counted_ns] {
            *sum /= 2;
        }
    }

    fn is_sample(&self) -> bool {
        self.blocks >= SAMPLE_BLOCKS && self.requests >= SAMPLE_REQUESTS
    }

    /// Returns true if this took as long as a sample takes at the pace of `other`.
    fn reaches_a_sample_of(&self, other: &Waits) -> bool {
        u128::from(self.ns) * u128::from(other.blocks) >= u128::from(other.ns) * u128::from(SAMPLE_BLOCKS)
    }

    /// Returns true if a block took at most so many parts of 100 of what it took in the other waits, as far as that
    /// counts.
    fn is_within(&self, percent: u64, other: &Waits) -> bool {
        let (ours, theirs) = (u128::from(self.counted_ns), u128::from(other.counted_ns));
        ours * u128::from(other.blocks) * 100 <= theirs * u128::from(self.blocks) * u128::from(percent)
    }
}

/// The manner in use, and what is known of both.
#[derive(Debug, Default)]
pub(crate) struct Manners {
    /// The manner that is better as far as it is known.
    better: Manner,
    together: Waits,
    alone: Waits,
    /// The quickest pace seen lately, in nanoseconds for a block; `None` before the first wait.
    quickest_ns: Option<u64>,
    /// The waits of a trial of the other manner under way.
    trial: Option<Waits>,
    /// Blocks read since the last trial.
    since_trial: u64,
    /// Blocks between two trials; 0 before the first.
    interval: u64,
}

impl Manners {
    /// Returns the manner in which the next file is to be read.
    pub(crate) fn now(&self) -> Manner {
        match (self.better, self.trial.is_some()) {
            (Manner::Together, false) | (Manner::Alone, true) => Manner::Together,
            (Manner::Together, true) | (Manner::Alone, false) => Manner::Alone,
        }
    }

    /// Notes that a walker waited so long for so many blocks, read in this manner.
    pub(crate) fn waited(&mut self, manner: Manner, blocks: u64, wait: Duration) {
        let ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        let more = Waits { requests: 1, blocks, ns, counted_ns: self.counted(blocks, ns) };
        self.seen(manner).add(more);
        let better = *self.seen(self.better);
        if manner == self.better {
            self.since_trial += blocks;
            if self.trial.is_none() && better.is_sample() && self.since_trial >= self.interval {
                self.trial = Some(Waits::default());
                self.seen(self.now()).halve();
            }
        } else if let Some(trial) = &mut self.trial {
            trial.add(more);
            if trial.is_sample() || trial.reaches_a_sample_of(&better) {
                self.decide();
            }
        }
    }

    /// Returns how much of a wait counts.
    fn counted(&mut self, blocks: u64, ns: u64) -> u64 {
        let pace = ns / blocks.max(1);
        let quickest = self.quickest_ns.map_or(pace, |quickest| pace.min(quickest + quickest / QUICKEST_SHARE));
        self.quickest_ns = Some(quickest);
        ns.min(quickest.saturating_mul(blocks + DELAY_BLOCKS))
    }

    fn seen(&mut self, manner: Manner) -> &mut Waits {
        match manner {
            Manner::Together => &mut self.together,
            Manner::Alone => &mut self.alone,
        }
    }

    /// Ends the trial.
    fn decide(&mut self) {
        let pays = self.together.is_within(WORTH_PERCENT, &self.alone);
        let better = if pays { Manner::Together } else { Manner::Alone };
        let interval = if better == self.better { 2 * self.interval } else { 0 };
        self.interval = interval.clamp(INTERVAL_BLOCKS_MIN, INTERVAL_BLOCKS_MAX);
        (self.better, self.trial, self.since_trial) = (better, None, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device: microseconds for a file alone, and for one request of `BROUGHT` blocks.
    #[derive(Clone, Copy)]
    struct Device {
        alone: u64,
        together: u64,
    }

    const BROUGHT: u64 = 8;
    /// Reads ahead: a file comes out of its buffer, together they come at the rate of the media.
    const READS_AHEAD: Device = Device { alone: 300, together: 8 * 700 };
    /// No moving parts: a request costs as much as the transfer of several blocks.
    const FLASH: Device = Device { alone: 150, together: 400 };
    /// A seek and half a rotation before each request.
    const SEEKS: Device = Device { alone: 10_000, together: 15_000 };

    /// Reads `blocks` blocks and returns the microseconds that it took.
    fn read(manners: &mut Manners, device: Device, blocks: u64) -> u64 {
        let (mut done, mut us) = (0, 0);
        while done < blocks {
            let manner = manners.now();
            let (brought, wait) = match manner {
                Manner::Alone => (1, device.alone),
                Manner::Together => (BROUGHT, device.together),
            };
            manners.waited(manner, brought, Duration::from_micros(wait));
            (done, us) = (done + brought, us + wait);
        }
        us
    }

    #[test]
    fn the_manner_that_waits_less_goes_on() {
        for (device, better) in [(READS_AHEAD, Manner::Alone), (FLASH, Manner::Together), (SEEKS, Manner::Together)] {
            let mut manners = Manners::default();
            read(&mut manners, device, 500);
            assert_eq!(manners.now(), better);
        }
    }

    #[test]
    fn learning_and_trying_again_cost_little() {
        for device in [READS_AHEAD, FLASH, SEEKS] {
            let best = device.alone.min(device.together / BROUGHT) as f64;
            let (mut manners, blocks) = (Manners::default(), 200_000);
            let first = read(&mut manners, device, 5_000) as f64 / 5_000.0;
            let later = read(&mut manners, device, blocks) as f64 / blocks as f64;
            assert!(first < 1.08 * best, "{first} microseconds for a block, at best {best}");
            assert!(later < 1.01 * best, "{later} microseconds for a block, at best {best}");
        }
    }

    #[test]
    fn a_device_that_changes_is_found_out() {
        let mut manners = Manners::default();
        read(&mut manners, READS_AHEAD, 100_000);
        read(&mut manners, SEEKS, 3 * INTERVAL_BLOCKS_MAX);
        assert_eq!(manners.now(), Manner::Together);
        read(&mut manners, READS_AHEAD, 3 * INTERVAL_BLOCKS_MAX);
        assert_eq!(manners.now(), Manner::Alone);
    }

    #[test]
    fn a_device_in_memory_is_read_together() {
        let mut manners = Manners::default();
        read(&mut manners, Device { alone: 0, together: 0 }, 10_000);
        assert_eq!((manners.better, manners.trial.is_none()), (Manner::Together, true));
    }

    #[test]
    fn a_trial_that_is_far_worse_ends_at_once() {
        let mut manners = Manners::default();
        read(&mut manners, Device { alone: 1_000_000, together: 100 }, SAMPLE_BLOCKS);
        assert_eq!(manners.now(), Manner::Alone, "on trial");
        manners.waited(Manner::Alone, 1, Duration::from_secs(1));
        assert_eq!(manners.now(), Manner::Together);
    }
}
