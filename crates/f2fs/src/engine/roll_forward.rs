//! Roll-forward: what the chains of nodes that recovery follows cannot describe.

use std::collections::BTreeSet;

use crate::format::Nid;

/// Limits of roll-forward: changes since the last snapshot that a chain cannot describe.
#[derive(Debug, Default)]
pub(super) struct RollForwardLimits {
    /// Inodes that the last checkpoint does not have.
    pub(super) new_inodes: BTreeSet<Nid>,
    /// Inodes that need a checkpoint: a name, an attribute or a whole node of them has gone or
    /// changed.
    pub(super) needs_checkpoint: BTreeSet<Nid>,
    /// Directories in which a name was given to another inode, or was removed by a rename, together with its directory,
    /// or from a file that has other names. On recovery, a new file under such a name would take it from the inode that
    /// the last checkpoint has there, and that may be the only name that the checkpoint knows.
    pub(super) dirs_with_removed_names: BTreeSet<Nid>,
}
