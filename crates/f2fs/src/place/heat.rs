//! The heat of data, and the trait of the policies that tell it.

use moafs_vfs::types::LbnRange;
use serde::Serialize;

use crate::clean::order::Owner;
use crate::format::{Log, Nid, Segno};

/// The heat of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Heat {
    /// Written often: it will soon be written again.
    Hot,
    /// Written seldom: it will probably stay valid for long.
    Cold,
}

/// File blocks that are about to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileBlocks {
    /// The file's inode.
    pub ino: Nid,
    /// The blocks.
    pub range: LbnRange,
    /// The file's mark, if it has one.
    pub mark: Option<Heat>,
}

/// The limits to the memory of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Blocks of the volume that can hold data.
    pub blocks: u64,
    /// The most memory that the policy may take, in bytes.
    pub bytes_max: usize,
}

/// The state of a policy for one volume.
pub trait Separator: Send {
    /// Returns the heat of blocks that are about to be written, `None` if nothing is known of them. `now_ns`: the
    /// volume's clock.
    fn heat(&mut self, blocks: &FileBlocks, now_ns: u64) -> Option<Heat>;

    /// Returns the heat of a block that cleaning moves. What is still valid then will probably stay so: cold.
    fn moved(&mut self, _block: Owner) -> Option<Heat> {
        Some(Heat::Cold)
    }

    /// Notes that blocks written by users got places in a segment that this log fills.
    fn placed(&mut self, _segno: Segno, _log: Log) {}

    /// Notes that these segments hold nothing any more.
    fn freed(&mut self, _segments: &[Segno]) {}

    /// Notes that there was no request for a while.
    fn idle(&mut self) {}

    /// Returns the memory that it takes, in bytes.
    fn memory(&self) -> usize {
        0
    }
}
