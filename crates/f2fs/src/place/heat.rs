//! The heat of data, and the trait of the policies that tell it.

use moafs_vfs::types::LbnRange;
use serde::Serialize;

use crate::format::Nid;

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

/// The state of a policy for one volume.
pub trait Separator: Send {
    /// Returns the heat of blocks that are about to be written, `None` if nothing is known of them. `now_ns`: the
    /// volume's clock.
    fn heat(&mut self, blocks: &FileBlocks, now_ns: u64) -> Option<Heat>;

    /// Notes that there was no request for a while.
    fn idle(&mut self) {}
}
