//! Telling the kernel that what it caches is out of date.

use std::io;

use crate::types::NodeId;

/// Invalidates kernel caches after changes that did not come through the kernel.
///
/// Never call it from a handler that works on the same inode or directory: the kernel may hold its lock, and both
/// would wait for each other. Use a thread of its own.
#[derive(Clone, Debug)]
pub struct Notifier {}

impl Notifier {
    /// Drops cached attributes of `node`, and its cached data from `offset` on: `len` bytes, or all if `len` is 0. A
    /// negative offset leaves the data. It is no error if nothing was cached.
    pub fn inval_inode(&self, node: NodeId, offset: i64, len: i64) -> io::Result<()> {
        let _ = (node, offset, len);
        Ok(())
    }

    /// Drops the cached name, positive or negative, in the directory `parent`.
    pub fn inval_entry(&self, parent: NodeId, name: &[u8]) -> io::Result<()> {
        let _ = (parent, name);
        Ok(())
    }
}
