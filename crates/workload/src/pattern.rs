//! The choice among many files, or blocks of a file: uniform, mostly a hot tenth, or by Zipf's law.

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Number of files of which one is hot.
const HOT_FILES: usize = 10;
/// Share of the writes that go to hot files, in percent.
const HOT_PERCENT: u32 = 90;

/// The choice of the next file, or of the next block of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pattern {
    /// Every file equally likely.
    Uniform,
    /// 10 % of the files get 90 % of the writes.
    HotCold,
    /// The file of rank r gets a share of the writes in proportion to 1/r.
    Zipf,
}

impl Pattern {
    /// Returns its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Uniform => "uniform",
            Pattern::HotCold => "hot-cold",
            Pattern::Zipf => "zipf",
        }
    }

    /// Makes a drawing among `files` files. Every tenth file in the order of their making is hot, and ranks are given
    /// at random, whatever the seed, so that hot files do not lie together.
    pub fn drawing(self, files: usize, seed: u64) -> Drawing {
        let ranks = if self == Pattern::Zipf { Ranks::new(files) } else { Ranks::default() };
        Drawing { pattern: self, files, ranks, rng: Pcg64Mcg::seed_from_u64(seed) }
    }
}

/// The seed of ranks: those of a set of files are the same in all drawings.
const RANKS_SEED: u64 = 7;

/// Files by rank.
#[derive(Default)]
struct Ranks {
    /// Sums of 1/r over the ranks from 1 to each.
    sums: Vec<f64>,
    /// The file of each rank.
    files: Vec<usize>,
}

impl Ranks {
    fn new(files: usize) -> Ranks {
        let sums = (1..=files).scan(0.0, |sum, rank| {
            *sum += 1.0 / rank as f64;
            Some(*sum)
        });
        let sums = sums.collect();
        let mut files: Vec<usize> = (0..files).collect();
        files.shuffle(&mut Pcg64Mcg::seed_from_u64(RANKS_SEED));
        Ranks { sums, files }
    }

    fn draw(&self, rng: &mut Pcg64Mcg) -> usize {
        let all = self.sums.last().copied().expect("a drawing is among some files");
        let at = rng.random_range(0.0..all);
        self.files[self.sums.partition_point(|sum| *sum <= at)]
    }
}

/// A stream of indexes of files.
pub struct Drawing {
    pattern: Pattern,
    files: usize,
    ranks: Ranks,
    rng: Pcg64Mcg,
}

impl Drawing {
    /// Returns the next file's index.
    // No iterator: it never ends, and cannot be cloned by accident.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> usize {
        let hot = self.files.div_ceil(HOT_FILES);
        let cold = self.files - hot;
        match self.pattern {
            Pattern::Uniform => self.rng.random_range(0..self.files),
            Pattern::Zipf => self.ranks.draw(&mut self.rng),
            Pattern::HotCold if cold == 0 || self.rng.random_range(0..100) < HOT_PERCENT => {
                self.rng.random_range(0..hot) * HOT_FILES
            }
            Pattern::HotCold => {
                let at = self.rng.random_range(0..cold);
                at / (HOT_FILES - 1) * HOT_FILES + at % (HOT_FILES - 1) + 1
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_of_the_files_gets_nine_tenths_of_the_writes() {
        let mut counts = vec![0_u32; 995];
        let mut draw = Pattern::HotCold.drawing(counts.len(), 3);
        (0..100_000).for_each(|_| counts[draw.next()] += 1);
        let hot: u32 = counts.iter().step_by(HOT_FILES).sum();
        assert!((89_000..91_000).contains(&hot), "{hot}");
        assert!(counts.iter().all(|count| *count > 0));
        let mut draw = Pattern::Uniform.drawing(counts.len(), 3);
        counts.fill(0);
        (0..100_000).for_each(|_| counts[draw.next()] += 1);
        assert!(counts.iter().all(|count| (50..180).contains(count)));
    }

    #[test]
    fn the_shares_of_ranks_follow_zipfs_law_and_keep_their_files_whatever_the_seed() {
        let counts = |seed| {
            let mut counts = vec![0_u32; 1000];
            let mut draw = Pattern::Zipf.drawing(counts.len(), seed);
            (0..100_000).for_each(|_| counts[draw.next()] += 1);
            counts
        };
        let (one, other) = (counts(3), counts(4));
        let first = |counts: &[u32]| counts.iter().enumerate().max_by_key(|(_, count)| **count).map(|(at, _)| at);
        assert_eq!(first(&one), first(&other));
        let mut sorted = one.clone();
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        let harmonic: f64 = (1..=1000).map(|rank| 1.0 / f64::from(rank)).sum();
        for rank in [1_usize, 2, 10] {
            let expected = 100_000.0 / rank as f64 / harmonic;
            assert!((f64::from(sorted[rank - 1]) / expected - 1.0).abs() < 0.1, "rank {rank}: {}", sorted[rank - 1]);
        }
    }
}
