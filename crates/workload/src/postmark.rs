//! Postmark (Katcher 1997), with the paper's parameters.
//!
//! The original's parameters are fields; its random choices, all drawn from one generator in this order:
//!
//! * phase 1, for each file: its size. Files are made directory by directory (the paper's words;
//!   the original also draws the directory);
//! * phase 2, for each transaction: a number below ten: read if it is below the read bias, else
//!   append; a file among all that exist, equally likely; for an append with drawn length, that
//!   length; again a number below ten: create if it is below the create bias, else delete; for a
//!   create: the directory, then the size; for a delete: a file among all that exist.
//!
//! Differences to the original: the two halves of a transaction are always both done, as its
//! default biases do. If no file is left, the transactions end, as the original's do.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::{Pool, Sizes, Step};

/// Value of a bias that stands for all transactions.
const BIAS_WHOLE: u32 = 10;

/// The length of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Append {
    /// A block of this many bytes (the paper: "append adds a block").
    Block(u64),
    /// A drawn length as in the original, so that the file stays within the largest size; nothing
    /// if it is that large.
    UpToMax,
}

/// Parameters, by the original's names where it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Postmark {
    /// `set number`: files made in phase 1.
    pub files: u64,
    /// `set subdirectories`: directories that files are made in.
    pub directories: u64,
    /// `set size`: the distribution of files' sizes.
    pub sizes: Sizes,
    /// `set transactions`: number of transactions in phase 2.
    pub transactions: u64,
    /// `set bias read`: tenths of the transactions that read; the others append.
    pub bias_read: u32,
    /// `set bias create`: tenths of the transactions that create; the others delete.
    pub bias_create: u32,
    /// Length of an append.
    pub append: Append,
    /// `set seed`: seed of all random choices.
    pub seed: u64,
}

impl Postmark {
    /// Begins a run: [`Run::fill`], then [`Run::transactions`].
    pub fn start(&self) -> Run {
        let pool = Pool::new(self.directories as usize, self.sizes);
        Run { spec: *self, pool, rng: Pcg64Mcg::seed_from_u64(self.seed) }
    }
}

/// A run of Postmark.
#[derive(Debug, Clone)]
pub struct Run {
    spec: Postmark,
    pool: Pool,
    rng: Pcg64Mcg,
}

impl Run {
    /// Returns the steps of phase 1.
    pub fn fill(&mut self) -> impl Iterator<Item = Step> + '_ {
        let Run { spec, pool, rng } = self;
        (0..spec.files).map(|number| pool.fill(number, spec.files, rng))
    }

    /// Returns the transactions of phase 2, each of two steps.
    pub fn transactions(&mut self) -> impl Iterator<Item = [Step; 2]> + '_ {
        (0..self.spec.transactions).map_while(|_| {
            let is_left = !self.pool.files().is_empty();
            is_left.then(|| [self.read_or_append(), self.create_or_delete()])
        })
    }

    /// Returns the files that exist after the steps returned so far.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    fn read_or_append(&mut self) -> Step {
        let reads = self.draw(self.spec.bias_read);
        let at = self.pool.any(&mut self.rng);
        let file = self.pool.files()[at];
        if reads {
            return Step::Read(file);
        }
        let bytes = match self.spec.append {
            Append::Block(bytes) => bytes,
            Append::UpToMax => match self.spec.sizes.bytes_max().saturating_sub(file.bytes) {
                0 => 0,
                room => self.rng.random_range(1..=room),
            },
        };
        self.pool.append(at, bytes)
    }

    fn create_or_delete(&mut self) -> Step {
        match self.draw(self.spec.bias_create) {
            true => self.pool.create(&mut self.rng),
            false => self.pool.delete(&mut self.rng),
        }
    }

    fn draw(&mut self, bias: u32) -> bool {
        self.rng.random_range(0..BIAS_WHOLE) < bias
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Postmark = Postmark {
        files: 50,
        directories: 5,
        sizes: Sizes::FSL,
        transactions: 1000,
        bias_read: 5,
        bias_create: 5,
        append: Append::UpToMax,
        seed: 3,
    };

    #[test]
    fn biases_decide_and_no_file_grows_above_the_largest_size() {
        let mut run = SMALL.start();
        assert_eq!(run.fill().count(), 50);
        let (mut reads, mut creates) = (0, 0);
        for [first, second] in run.transactions() {
            reads += u32::from(matches!(first, Step::Read(_)));
            creates += u32::from(matches!(second, Step::Create(_)));
        }
        assert!((450..550).contains(&reads) && (450..550).contains(&creates), "{reads} {creates}");
        assert!(run.pool().files().iter().all(|file| file.bytes <= Sizes::FSL.bytes_max()));
    }

    #[test]
    fn transactions_end_with_the_last_file() {
        let mut run = Postmark { bias_create: 0, ..SMALL }.start();
        assert_eq!(run.transactions().count(), 0);
        assert_eq!((run.fill().count(), run.transactions().count()), (50, 50));
        assert!(run.pool().files().is_empty());
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        let steps = |spec: Postmark| {
            let mut run = spec.start();
            let mut steps: Vec<Step> = run.fill().collect();
            steps.extend(run.transactions().flatten());
            steps
        };
        assert_eq!(steps(SMALL), steps(SMALL));
        assert_ne!(steps(SMALL), steps(Postmark { seed: 4, ..SMALL }));
    }
}
