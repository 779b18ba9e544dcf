//! The choice among many files, or blocks of a file: uniform, or mostly a hot tenth.

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
}

impl Pattern {
    /// Returns its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Uniform => "uniform",
            Pattern::HotCold => "hot-cold",
        }
    }

    /// Makes a drawing among `files` files. Every tenth file in the order of their making is hot,
    /// so that hot files do not lie together.
    pub fn drawing(self, files: usize, seed: u64) -> Drawing {
        Drawing { pattern: self, files, rng: Pcg64Mcg::seed_from_u64(seed) }
    }
}

/// A stream of indexes of files.
pub struct Drawing {
    pattern: Pattern,
    files: usize,
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
}
