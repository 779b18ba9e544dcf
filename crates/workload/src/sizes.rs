//! Sizes of files, drawn from a distribution.

use rand::RngExt;
use rand_pcg::Pcg64Mcg;

/// Points of the "real" distribution (R-FSL): size in bytes, and the share of files up to it in
/// hundredths of a percent. Tanenbaum, Herder, Bos: File size distribution on UNIX systems: then
/// and now (2006), the web server's column: the only one that has the 79 % at 8 KB which the paper
/// names. Log-linear between points, which gives 82 % at 10 KB.
const REAL: [(u64, u64); 12] = [
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

/// The whole of the distribution, in the unit in which a point of it is drawn.
const MILLIONTHS: u64 = 1_000_000;

/// Size at which the smallest files of [`REAL`] begin: one byte.
const REAL_BYTES_MIN: f64 = 1.0;

/// A distribution of file sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sizes {
    /// Every size of the range (both ends included) equally likely: Postmark's distribution.
    Uniform {
        /// Smallest size in bytes.
        from: u64,
        /// Largest size in bytes.
        to: u64,
    },
    /// R-FSL's, cut off at `bytes_max` (larger ones become that large).
    Real {
        /// The largest size in bytes.
        bytes_max: u64,
    },
    /// R-FSL's files of at most `bytes_max` bytes: larger ones are drawn again.
    RealUpTo {
        /// The largest size in bytes, at least 512.
        bytes_max: u64,
    },
}

impl Sizes {
    /// The R-FSL distribution over all sizes that its source gives: up to 1 MB.
    pub const R_FSL: Sizes = Sizes::Real { bytes_max: 1 << 20 };
    /// FSL's: 512 bytes to 10 KB.
    pub const FSL: Sizes = Sizes::Uniform { from: 512, to: 10 << 10 };

    /// Draws one size with one random number ([`Sizes::RealUpTo`]: until one is small enough).
    pub fn draw(self, rng: &mut Pcg64Mcg) -> u64 {
        match self {
            Sizes::Uniform { from, to } => rng.random_range(from..=to),
            Sizes::Real { bytes_max } => real(rng.random_range(0..MILLIONTHS)).min(bytes_max),
            Sizes::RealUpTo { bytes_max } => loop {
                let bytes = real(rng.random_range(0..MILLIONTHS));
                // Two in five are no larger than 512 bytes, so this ends soon.
                if bytes <= bytes_max.max(REAL[0].0) {
                    break bytes;
                }
            },
        }
    }

    /// Returns the largest size it gives, in bytes.
    pub fn bytes_max(self) -> u64 {
        match self {
            Sizes::Uniform { to, .. } => to,
            Sizes::Real { bytes_max } | Sizes::RealUpTo { bytes_max } => bytes_max,
        }
    }
}

/// Returns the size at a point of the cumulative distribution, in millionths.
fn real(millionths: u64) -> u64 {
    let share = millionths as f64 / 100.0;
    let above = REAL.iter().position(|(_, upto)| share < *upto as f64);
    let Some(above) = above else { return u64::MAX };
    let (low, from) = match above {
        0 => (REAL_BYTES_MIN, 0.0),
        _ => (REAL[above - 1].0 as f64, REAL[above - 1].1 as f64),
    };
    let (high, to) = (REAL[above].0 as f64, REAL[above].1 as f64);
    let within = (share - from) / (to - from);
    (low.log2() + within * (high.log2() - low.log2())).exp2().ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn the_real_distribution_meets_its_points() {
        let mut rng = Pcg64Mcg::seed_from_u64(1);
        let drawn: Vec<u64> = (0..200_000).map(|_| Sizes::R_FSL.draw(&mut rng)).collect();
        let share = |bytes: u64| drawn.iter().filter(|size| **size <= bytes).count() as f64 / drawn.len() as f64;
        for (bytes, upto) in &REAL[..11] {
            assert!((share(*bytes) - *upto as f64 / 1e4).abs() < 0.005, "{bytes}: {}", share(*bytes));
        }
        assert!((share(10 << 10) - 0.82).abs() < 0.005, "log-linear between 8 and 16 KB");
        assert_eq!(drawn.iter().max(), Some(&(1 << 20)), "cut off at 1 MB");
        assert!(drawn.iter().all(|size| *size > 0));
    }

    #[test]
    fn files_up_to_a_size_are_drawn_again_and_not_cut() {
        let mut rng = Pcg64Mcg::seed_from_u64(2);
        let sizes = Sizes::RealUpTo { bytes_max: 16 << 10 };
        let drawn: Vec<u64> = (0..20_000).map(|_| sizes.draw(&mut rng)).collect();
        assert!(drawn.iter().all(|size| (1..=16 << 10).contains(size)));
        assert!(drawn.iter().filter(|size| **size == 16 << 10).count() < 10);
        let small = drawn.iter().filter(|size| **size <= 512).count() as f64 / drawn.len() as f64;
        assert!((small - 0.3994 / 0.8679).abs() < 0.01, "{small}");
    }

    #[test]
    fn fsl_is_uniform() {
        let mut rng = Pcg64Mcg::seed_from_u64(1);
        let drawn: Vec<u64> = (0..50_000).map(|_| Sizes::FSL.draw(&mut rng)).collect();
        let mean = drawn.iter().sum::<u64>() / drawn.len() as u64;
        assert!((5300..5460).contains(&mean), "{mean}");
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&512), Some(&10240)));
    }
}
