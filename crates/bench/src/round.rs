//! A suite in one round of a run: what it is given, and how it keeps what it measures.

use std::rc::Rc;
use std::time::Duration;

use clap::ValueEnum;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64Mcg;

use crate::backing::Backing;
use crate::record::Record;
use crate::system::{Setup, System};

/// A group of measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Suite {
    /// postmark: moafs, ext4, the null file system, fuse2fs.
    Postmark,
    /// Single operations on small files, 1 and 2 clients.
    Operations,
    /// Large sequential reads and writes.
    Sequential,
    /// Memory, mount time of a huge volume, large directories.
    Limits,
}

impl Suite {
    /// Returns the name used in results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Suite::Postmark => "postmark",
            Suite::Operations => "operations",
            Suite::Sequential => "sequential",
            Suite::Limits => "limits",
        }
    }
}

/// The size of everything: 1 for results, less for trying out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale(pub(crate) f64);

impl Scale {
    /// Returns `full` at this scale, at least 1.
    pub(crate) fn of(self, full: u64) -> u64 {
        ((full as f64 * self.0).round() as u64).max(1)
    }
}

/// A suite in a round: its volumes' setup, and the list for its records.
pub(crate) struct Round<'a> {
    /// Settings that all volumes share.
    pub(crate) setup: &'a Rc<Setup>,
    /// Place of image files.
    pub(crate) backing: &'a Backing,
    /// Scale of counts and sizes.
    pub(crate) scale: Scale,
    /// Number of the round, from 1.
    pub(crate) number: u32,
    /// Random numbers of this round and suite.
    pub(crate) rng: Pcg64Mcg,
    /// The suite that runs.
    pub(crate) suite: Suite,
    /// The list that takes the records.
    pub(crate) records: &'a mut Vec<Record>,
}

/// The names of a measurement, without the round, the backing and the suite.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured {
    pub(crate) metric: &'static str,
    pub(crate) clients: u32,
    pub(crate) system: System,
}

impl Round<'_> {
    /// Returns the systems in a random order.
    pub(crate) fn shuffled<T>(&mut self, mut items: Vec<T>) -> Vec<T> {
        items.shuffle(&mut self.rng);
        items
    }

    /// Records a rate: `count` (operations, or bytes) in `elapsed`.
    pub(crate) fn keep_rate(&mut self, what: Measured, count: u64, unit: &str, elapsed: Duration) {
        // A clock that did not move would make the rate infinite.
        let elapsed_s = elapsed.as_secs_f64().max(1e-9);
        self.keep(what, count as f64 / elapsed_s, unit, count, elapsed_s);
    }

    /// Records a value that is not a rate.
    pub(crate) fn keep_value(&mut self, what: Measured, value: f64, unit: &str, count: u64) {
        self.keep(what, value, unit, count, 0.0);
    }

    fn keep(&mut self, what: Measured, value: f64, unit: &str, count: u64, elapsed_s: f64) {
        let Measured { metric, clients, system } = what;
        eprintln!("    {:<28} {clients} {:<8} {value:>14.1} {unit}", metric, system.name());
        self.records.push(Record {
            round: self.number,
            backing: self.backing.kind.name().to_owned(),
            suite: self.suite.name().to_owned(),
            metric: metric.to_owned(),
            clients,
            system: system.name().to_owned(),
            value,
            unit: unit.to_owned(),
            count,
            elapsed_s,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_never_comes_to_nothing() {
        assert_eq!(Scale(0.001).of(100), 1);
        assert_eq!(Scale(0.5).of(101), 51);
        assert_eq!(Scale(1.0).of(20_000), 20_000);
    }
}
