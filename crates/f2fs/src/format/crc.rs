//! The checksum of superblocks, checkpoints and inodes (section 1.2): the CRC-32 of Ethernet, but starting from a
//! seed of its own and never inverted.

/// The superblock's magic number, which also seeds the checksums of superblock and checkpoint.
pub const MAGIC: u32 = 0xF2F5_2010;

/// Returns the checksum of `bytes`, continuing from `seed`: `crc32(crc32(s, a), b)` is that of `a`
/// followed by `b`.
pub fn crc32(seed: u32, bytes: &[u8]) -> u32 {
    // The usual function inverts its state before and after; inverting twice more leaves the plain remainder.
    let mut hasher = crc32fast::Hasher::new_with_initial(!seed);
    hasher.update(bytes);
    !hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values_come_out() {
        assert_eq!(crc32(MAGIC, b"123456789"), 0x1657_A0C3);
        assert_eq!(crc32(0xFFFF_FFFF, b"123456789"), 0x340B_C6D9);
    }

    #[test]
    fn parts_continue_each_other() {
        assert_eq!(crc32(crc32(MAGIC, b"1234"), b"56789"), crc32(MAGIC, b"123456789"));
        assert_eq!(crc32(MAGIC, b""), MAGIC);
    }
}
