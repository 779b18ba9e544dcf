//! One run: for each backing and round every suite, every system of a suite in each round, in random order.
//!
//! A seed decides all orders. Records are appended as they come, so that an interrupted run keeps what it has.

use std::rc::Rc;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64Mcg;

use crate::backing::Backing;
use crate::error::Result;
use crate::record::Record;
use crate::round::{Round, Scale, Suite};
use crate::system::Setup;
use crate::{limits, operations, postmark, sequential};

/// The backings, suites and rounds of a run.
pub(crate) struct Plan<'a> {
    /// Settings that all volumes share.
    pub(crate) setup: &'a Rc<Setup>,
    /// Backings to run on.
    pub(crate) backings: &'a [Backing],
    /// Suites to run on each backing.
    pub(crate) suites: &'a [Suite],
    /// Number of rounds.
    pub(crate) rounds: u32,
    /// Seed of all orders.
    pub(crate) seed: u64,
    /// Scale of counts and sizes.
    pub(crate) scale: Scale,
}

impl Plan<'_> {
    /// Runs the plan. Records go to `records`, also those before an error.
    pub(crate) fn run(&self, records: &mut Vec<Record>) -> Result<()> {
        for number in 1..=self.rounds {
            let mut rng = Pcg64Mcg::seed_from_u64(self.seed ^ (u64::from(number) << 32));
            let each = |backing| self.suites.iter().map(move |suite| (backing, *suite));
            let mut parts: Vec<(&Backing, Suite)> = self.backings.iter().flat_map(each).collect();
            parts.shuffle(&mut rng);
            for (backing, suite) in parts {
                eprintln!("round {number} of {}: {} on {}", self.rounds, suite.name(), backing.kind.name());
                let rng = Pcg64Mcg::from_rng(&mut rng);
                let (setup, scale) = (self.setup, self.scale);
                measure(suite, &mut Round { setup, backing, scale, number, rng, suite, records })?;
            }
        }
        Ok(())
    }
}

fn measure(suite: Suite, round: &mut Round<'_>) -> Result<()> {
    match suite {
        Suite::Postmark => postmark::measure(round),
        Suite::Operations => operations::measure(round),
        Suite::Sequential => sequential::measure(round),
        Suite::Limits => limits::measure(round),
    }
}
