//! In-core inodes: the format's part of what vfs calls an inode.

use std::sync::Arc;

use moafs_runtime::Rt;
use moafs_runtime::lock::Mutex;
use moafs_vfs::types::{Attr, FileKind};

use super::node_cache::Node;
use crate::format::Nid;
use crate::format::inode::{Advise, Inode, InodeFlags};

/// Flags that programs may set and clear; the others describe the layout, or belong to features. Their
/// numbers are those of `FS_IOC_GETFLAGS`: sync, immutable, append-only, nodump, noatime, dirsync.
pub(super) const USER_FLAGS: u32 = 0x0001_00F8;

/// An inode in memory. There is one per number; all its users share it.
pub struct Incore {
    /// The number of the inode.
    pub ino: Nid,
    /// The file's kind; it never changes.
    pub kind: FileKind,
    /// The word for a file whose contents only unsupported features can tell; it never changes.
    pub(super) unusable: Option<&'static str>,
    pub(super) node: Arc<Node>,
    /// Held while the way to blocks changes: two write-backs of one file must not make the same
    /// node twice.
    pub(super) map: Mutex<()>,
}

impl Incore {
    pub(super) fn new(rt: &Rt, ino: Nid, inode: &Inode, node: Arc<Node>) -> Incore {
        Incore { ino, kind: inode.kind, unusable: unusable(inode), node, map: Mutex::new(Arc::clone(rt), ()) }
    }

    pub(super) fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

/// Returns what an inode is whose contents only features can tell that are not supported.
pub(super) fn unusable(inode: &Inode) -> Option<&'static str> {
    if inode.advise.contains(Advise::ENCRYPT) {
        Some("encrypted")
    } else if inode.flags.contains(InodeFlags::COMPRESSED) {
        Some("compressed")
    } else if inode.flags.contains(InodeFlags::CASEFOLD) {
        Some("a directory that ignores case")
    } else {
        None
    }
}

/// Stores the attributes that vfs keeps into an inode; sizes only of regular files.
pub(super) fn put_attr(inode: &mut Inode, attr: &Attr, disk_size: u64) {
    inode.mode = (attr.kind.mode_bits() | attr.perm & 0o7777) as u16;
    inode.uid = attr.uid;
    inode.gid = attr.gid;
    inode.links = attr.nlink;
    inode.atime = attr.atime;
    inode.mtime = attr.mtime;
    inode.ctime = attr.ctime;
    inode.flags = InodeFlags::from_bits_retain(inode.flags.bits() & !USER_FLAGS | attr.flags & USER_FLAGS);
    if attr.kind == FileKind::Regular {
        inode.size = disk_size;
    }
}
