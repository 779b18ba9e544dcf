//! File sizes as they are found on a real disk, and bytes to fill files with.

use rand::{Rng, RngExt};
use rand_pcg::Pcg64Mcg;

/// Cumulative share of files, in parts of 10,000, up to a size in bytes: R-FSL (Tanenbaum, Herder,
/// Bos 2006, web server). Between the points the logarithm of the size is uniform; the largest is
/// the last point.
const R_FSL: [(u64, u32); 13] = [
    (1, 0),
    (512, 3994),
    (1 << 10, 4782),
    (2 << 10, 5944),
    (4 << 10, 7064),
    (8 << 10, 7969),
    (16 << 10, 8679),
    (32 << 10, 9165),
    (64 << 10, 9480),
    (128 << 10, 9693),
    (256 << 10, 9848),
    (512 << 10, 9899),
    (1 << 20, 9962),
];

/// Largest size of small files in bytes: 87 % of all files are at most this large.
pub(crate) const SMALL_BYTES_MAX: u64 = 16 << 10;
/// Largest size of a file in bytes.
pub(crate) const BYTES_MAX: u64 = 1 << 20;

/// Draws a size of at most `max` bytes.
pub(crate) fn size(rng: &mut Pcg64Mcg, max: u64) -> u64 {
    loop {
        let size = any_size(rng);
        if size <= max {
            return size;
        }
    }
}

fn any_size(rng: &mut Pcg64Mcg) -> u64 {
    let share = rng.random_range(0..10_000);
    let above = R_FSL.partition_point(|&(_, cumulative)| cumulative <= share);
    let Some(&(to, high)) = R_FSL.get(above) else { return BYTES_MAX };
    let (from, low) = R_FSL[above - 1];
    let part = f64::from(share - low) / f64::from(high - low);
    let size = from as f64 * (to as f64 / from as f64).powf(part);
    (size as u64).max(1)
}

/// Bytes that neither compress nor repeat from file to file.
#[derive(Debug)]
pub(crate) struct Contents(Vec<u8>);

impl Contents {
    /// Draws the bytes from `rng`.
    pub(crate) fn new(rng: &mut Pcg64Mcg) -> Contents {
        let mut bytes = vec![0; 2 * BYTES_MAX as usize];
        rng.fill_bytes(&mut bytes);
        Contents(bytes)
    }

    /// Returns `len` bytes (at most [`BYTES_MAX`]) for the file or version with this number.
    pub(crate) fn of(&self, number: u64, len: u64) -> &[u8] {
        let start = (number.wrapping_mul(4099) % BYTES_MAX) as usize;
        &self.0[start..start + len.min(BYTES_MAX) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn sizes_follow_the_distribution() {
        let mut rng = Pcg64Mcg::seed_from_u64(1);
        let sizes: Vec<u64> = (0..20_000).map(|_| size(&mut rng, BYTES_MAX)).collect();
        for (to, cumulative) in R_FSL.into_iter().skip(1) {
            let share = sizes.iter().filter(|&&size| size <= to).count() as f64 / 2.0;
            assert!((share - f64::from(cumulative)).abs() < 150.0, "{share} of 10,000 up to {to}, not {cumulative}");
        }
        assert!(sizes.iter().all(|&size| (1..=BYTES_MAX).contains(&size)));
    }

    #[test]
    fn small_files_are_small() {
        let mut rng = Pcg64Mcg::seed_from_u64(2);
        assert!((0..5000).all(|_| size(&mut rng, SMALL_BYTES_MAX) <= SMALL_BYTES_MAX));
    }
}
