//! A volume's use over months: files are deleted, made and appended to until what was there has been turned over.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::{Pool, Sizes, Step};

/// Parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aging {
    /// Files that there are, about as many all the time.
    pub files: u64,
    /// Directories that they lie in.
    pub directories: u64,
    /// The distribution of their sizes when they are made.
    pub sizes: Sizes,
    /// Bytes of an append.
    pub append_bytes: u64,
    /// Multiple of the first files' bytes that is written after them.
    pub turnover: u64,
    /// Number of syncs on the way, after equal shares of the bytes.
    pub syncs: u64,
    /// Seed of all random choices.
    pub seed: u64,
}

/// A part of aging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgingStep {
    /// A file comes, grows or goes.
    Step(Step),
    /// Everything reaches the device.
    Sync,
}

impl Aging {
    /// Returns what is done: the first files directory by directory, then appends (a quarter of the steps), and files
    /// made and deleted in turn.
    pub fn start(self) -> impl Iterator<Item = AgingStep> {
        let pool = Pool::new(self.directories as usize, self.sizes);
        let rng = Pcg64Mcg::seed_from_u64(self.seed);
        Steps { spec: self, pool, rng, filled: 0, first_bytes: 0, written: 0, synced: 0 }
    }
}

struct Steps {
    spec: Aging,
    pool: Pool,
    rng: Pcg64Mcg,
    filled: u64,
    /// Bytes of the first files.
    first_bytes: u64,
    written: u64,
    synced: u64,
}

impl Steps {
    fn step(&mut self) -> Step {
        if self.rng.random_range(0..4) == 0 {
            let at = self.pool.any(&mut self.rng);
            return self.pool.append(at, self.spec.append_bytes);
        }
        match self.pool.files().len() as u64 > self.spec.files {
            true => self.pool.delete(&mut self.rng),
            false => self.pool.create(&mut self.rng),
        }
    }

    fn write(&mut self, step: Step) -> AgingStep {
        self.written += match step {
            Step::Create(file) => file.bytes,
            Step::Append { bytes, .. } => bytes,
            Step::Read(_) | Step::Delete(_) => 0,
        };
        AgingStep::Step(step)
    }
}

impl Iterator for Steps {
    type Item = AgingStep;

    fn next(&mut self) -> Option<AgingStep> {
        if self.filled < self.spec.files {
            let step = self.pool.fill(self.filled, self.spec.files, &mut self.rng);
            self.filled += 1;
            let step = self.write(step);
            self.first_bytes = self.written;
            return Some(step);
        }
        let turned_over = self.written - self.first_bytes;
        let whole = self.first_bytes * self.spec.turnover;
        if self.pool.files().is_empty() || turned_over >= whole {
            return None;
        }
        if self.synced < self.spec.syncs && turned_over >= whole / self.spec.syncs * self.synced {
            self.synced += 1;
            return Some(AgingStep::Sync);
        }
        let step = self.step();
        Some(self.write(step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Aging =
        Aging { files: 40, directories: 4, sizes: Sizes::FSL, append_bytes: 4096, turnover: 4, syncs: 10, seed: 1 };

    #[test]
    fn the_bytes_are_turned_over_with_syncs_on_the_way() {
        let (mut first, mut written, mut syncs) = (0, 0, 0);
        for (number, step) in SMALL.start().enumerate() {
            match step {
                AgingStep::Step(Step::Create(file)) if number < 40 => first += file.bytes,
                AgingStep::Step(Step::Create(file)) => written += file.bytes,
                AgingStep::Step(Step::Append { bytes, .. }) => written += bytes,
                AgingStep::Step(_) => (),
                AgingStep::Sync => syncs += 1,
            }
        }
        assert_eq!(syncs, 10);
        assert!((4 * first..4 * first + (64 << 10)).contains(&written), "{first} {written}");
    }

    #[test]
    fn as_many_files_as_at_the_start_are_left() {
        let mut files = 0_u64;
        for step in SMALL.start() {
            match step {
                AgingStep::Step(Step::Create(_)) => files += 1,
                AgingStep::Step(Step::Delete(_)) => files -= 1,
                _ => (),
            }
            assert!(files <= 41);
        }
        assert!((40..=41).contains(&files));
    }

    #[test]
    fn without_files_there_is_nothing_to_do() {
        assert_eq!(Aging { files: 0, ..SMALL }.start().count(), 0);
    }
}
