//! A used drive at time 0: filled, then overwritten at random, without time passing.

use super::spec::PreconditionSpec;

/// Returns how many pages, from the first on, hold data.
pub(in crate::model) fn filled(spec: &PreconditionSpec, pages: u32) -> u32 {
    share(spec.fill_percent, pages).min(u64::from(pages)) as u32
}

/// Returns the filled pages that were then overwritten, in order of time.
pub(in crate::model) fn overwritten(spec: &PreconditionSpec, filled: u32) -> impl Iterator<Item = u32> + use<> {
    let pages = if filled == 0 { 0 } else { share(spec.overwrite_percent, filled) };
    let mut random = SplitMix64(spec.seed);
    (0..pages).map(move |_| (random.next() % u64::from(filled)) as u32)
}

fn share(percent: f64, pages: u32) -> u64 {
    (f64::from(pages) * percent / 100.0).round() as u64
}

/// A random number generator: Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
/// 2014.
#[derive(Debug, Clone)]
pub(in crate::model) struct SplitMix64(pub(in crate::model) u64);

impl SplitMix64 {
    pub(in crate::model) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}
