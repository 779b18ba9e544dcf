//! IO-TEST: overwriting whole files of 32 KiB, drawn uniformly or mostly from a hot tenth.

use moafs_vfs::Format;
use moafs_vfs::types::Ino;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::Client;
use crate::error::Result;

/// Bytes of a file, and of a write.
pub const FILE_BYTES: u64 = 32 << 10;
/// Of ten files, one is hot.
const HOT_FILES: usize = 10;
/// Of a hundred writes, so many go to hot files.
const HOT_PERCENT: u32 = 90;

/// Which files are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pattern {
    /// Every file equally likely.
    Uniform,
    /// 10 % of the files get 90 % of the writes.
    HotCold,
}

impl Pattern {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Uniform => "uniform",
            Pattern::HotCold => "hot-cold",
        }
    }

    /// Draws among `files` files. Hot are every tenth in the order of their making, so that they do not lie together.
    pub fn drawing(self, files: usize, seed: u64) -> Drawing {
        Drawing { pattern: self, files, rng: Pcg64Mcg::seed_from_u64(seed) }
    }
}

/// Draws files.
pub struct Drawing {
    pattern: Pattern,
    files: usize,
    rng: Pcg64Mcg,
}

impl Drawing {
    /// The next file's index.
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

/// Overwrites `writes` files and waits until everything is on the device. Returns what each write call took, in
/// nanoseconds.
///
/// # Errors
/// If the volume fails.
pub fn overwrite(
    client: &Client<impl Format>,
    files: &[Ino],
    pattern: Pattern,
    seed: u64,
    writes: u64,
) -> Result<Vec<u64>> {
    let mut draw = pattern.drawing(files.len(), seed);
    let mut took = Vec::with_capacity(writes as usize);
    for _ in 0..writes {
        let start = client.now();
        client.write(files[draw.next()], 0, FILE_BYTES)?;
        took.push((client.now() - start).as_nanos() as u64);
    }
    client.sync()?;
    Ok(took)
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
