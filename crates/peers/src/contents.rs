//! Bytes to fill files with.

use rand::Rng;
use rand_pcg::Pcg64Mcg;

/// Most bytes that a file is given at once.
pub(crate) const BYTES_MAX: u64 = 1 << 20;

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
