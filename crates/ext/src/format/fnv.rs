//! The FNV-1a hash of names: deterministic, and good enough for the names of one directory. On the disk it stands for a
//! name in notes that recovery reads.

/// Returns the hash of a name.
pub(crate) fn hash_of(name: &[u8]) -> u32 {
    hash_on(0x811C_9DC5, name)
}

/// Returns the hash of a name that continues from another hash.
pub(crate) fn hash_on(seed: u32, name: &[u8]) -> u32 {
    name.iter().fold(seed, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}
