//! Telling the kernel that what it caches is out of date.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Weak;

use rustix::io::Errno;

use crate::abi::{self, NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE, NotifyInvalEntryOut, NotifyInvalInodeOut, OutHeader};
use crate::types::NodeId;

/// Invalidates kernel caches after changes that did not come through the kernel.
///
/// Never call it from a handler that works on the same inode or directory: the kernel may hold its lock, and both would
/// wait for each other. Use a thread of its own. The exception is [`Notifier::inval_attr`], which takes no such lock.
///
/// It is no error if nothing was cached: the calls return whether the kernel knew what they name.
#[derive(Clone, Debug)]
pub struct Notifier {
    /// Weak, so that a notifier does not keep the mount alive after its session has ended.
    dev: Weak<OwnedFd>,
}

impl Notifier {
    pub(crate) fn new(dev: Weak<OwnedFd>) -> Self {
        Self { dev }
    }

    /// Drops cached attributes of `node`, and its cached data from `offset` on: `len` bytes, or all if `len` is 0. A
    /// negative offset leaves the data.
    pub fn inval_inode(&self, node: NodeId, offset: i64, len: i64) -> io::Result<bool> {
        let out = NotifyInvalInodeOut { ino: node.0, off: offset, len };
        self.notify(NOTIFY_INVAL_INODE, &[abi::bytes_of(&out)])
    }

    /// Drops cached attributes of `node`, not its data. A handler may call it for the node it works on: the kernel asks
    /// anew before it uses an attribute again. For other nodes use a thread of its own: the kernel waits for a node
    /// that it is just dropping.
    pub fn inval_attr(&self, node: NodeId) -> io::Result<bool> {
        self.inval_inode(node, -1, 0)
    }

    /// Drops the cached name, positive or negative, in the directory `parent`.
    pub fn inval_entry(&self, parent: NodeId, name: &[u8]) -> io::Result<bool> {
        let out = NotifyInvalEntryOut { parent: parent.0, namelen: name.len() as u32, flags: 0 };
        self.notify(NOTIFY_INVAL_ENTRY, &[abi::bytes_of(&out), name, b"\0"])
    }

    fn notify(&self, code: i32, parts: &[&[u8]]) -> io::Result<bool> {
        let dev = self.dev.upgrade().ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        let head = OutHeader { len: (size_of::<OutHeader>() + len) as u32, error: code, unique: 0 };
        let mut message = vec![IoSlice::new(abi::bytes_of(&head))];
        message.extend(parts.iter().map(|part| IoSlice::new(part)));
        match rustix::io::writev(&*dev, &message) {
            Err(Errno::NOENT) => Ok(false),
            written => Ok(written.map(|_| true)?),
        }
    }
}
