//! The reasons for which no volume is made.

use moafs_disk::DiskError;

/// The reason for which no volume was made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MkfsError {
    /// An option has a value that no volume can have.
    #[error("{what} {value} is not possible: {rule}")]
    Option {
        /// The name of the option.
        what: &'static str,
        /// The value of the option.
        value: u64,
        /// The values that are possible.
        rule: String,
    },
    /// Features do not go together, or are not made.
    #[error("{problem}")]
    Features {
        /// The rule that is broken.
        problem: String,
    },
    /// The device, or the size asked for, is too small for a volume of this shape.
    #[error("{blocks} blocks of {block_size} bytes are too few for a volume: {why}")]
    TooSmall {
        /// Number of blocks that there are.
        blocks: u64,
        /// The size of a block in bytes.
        block_size: u32,
        /// The part that does not fit.
        why: String,
    },
    /// The device, or the size asked for, is too large for block numbers of 32 bits.
    #[error(
        "{blocks} blocks of {block_size} bytes are too many for a volume without the feature 64bit, which ends at \
         {max} blocks: give a smaller size, larger blocks (-b), or make ext4",
        max = u32::MAX
    )]
    TooLarge {
        /// Number of blocks that there are.
        blocks: u64,
        /// The size of a block in bytes.
        block_size: u32,
    },
    /// A request to the device failed.
    #[error("cannot {doing}: {source}")]
    Disk {
        /// The work that the request was part of.
        doing: &'static str,
        /// The error that the device reported.
        source: DiskError,
    },
}

/// Returns the error for an option's illegal value.
pub(super) fn impossible<T>(
    what: &'static str,
    value: impl Into<u64>,
    rule: impl Into<String>,
) -> Result<T, MkfsError> {
    Err(MkfsError::Option { what, value: value.into(), rule: rule.into() })
}
