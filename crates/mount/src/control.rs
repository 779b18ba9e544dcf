//! The control directory `.moafs/` at a mount's root: answers look-ups, hidden from listings,
//! read-only.
//!
//! Opens are not seen (the kernel is told to skip them), and the kernel caches what it has read.
//! So each *look-up* of a control file makes a fresh node with a snapshot of its text, which lives
//! until the kernel forgets the node: every open sees one consistent text, never a mix of two.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use moafs_fuse::{Entry, Errno, FOREVER, FileAttr, NodeId, Timestamp};
use parking_lot::Mutex;

use crate::nodes::CONTROL_FIRST;

/// The control directory's name.
pub const CONTROL_NAME: &[u8] = b".moafs";

/// The control directory's node.
pub(crate) const CONTROL_NODE: NodeId = NodeId(CONTROL_FIRST);

/// Snapshots the kernel may hold at once. It forgets a node when nobody has it open any more; a
/// program that opens without end gets ENFILE instead of our memory.
const SNAPSHOTS_MAX: usize = 1024;

/// Makes the text of a control file.
pub type Text = Box<dyn Fn() -> Vec<u8> + Send + Sync>;

/// The control directory.
pub(crate) struct Control {
    files: Vec<(&'static str, Text)>,
    snapshots: Mutex<BTreeMap<u64, Arc<Vec<u8>>>>,
    next_node: AtomicU64,
    mounted: Timestamp,
}

impl Control {
    /// A directory of `files`, whose times are `mounted`.
    pub(crate) fn new(files: Vec<(&'static str, Text)>, mounted: Timestamp) -> Control {
        // Nodes right after the directory's stand for the names in listings only.
        let first = CONTROL_FIRST + 1 + files.len() as u64;
        Control { files, snapshots: Mutex::default(), next_node: AtomicU64::new(first), mounted }
    }

    /// True for nodes of the control directory.
    pub(crate) fn owns(node: NodeId) -> bool {
        node.0 >= CONTROL_FIRST
    }

    /// The directory as a look-up of its name answers.
    pub(crate) fn entry(&self) -> Entry {
        Entry { node: CONTROL_NODE, generation: 0, attr: self.directory(), entry_ttl: FOREVER, attr_ttl: FOREVER }
    }

    /// Looks a control file up: a fresh node with a snapshot of its text.
    pub(crate) fn lookup(&self, name: &[u8]) -> Result<Entry, Errno> {
        let (_, text) = self.files.iter().find(|(known, _)| known.as_bytes() == name).ok_or(Errno::ENOENT)?;
        let text = Arc::new(text());
        let node = self.next_node.fetch_add(1, Ordering::Relaxed);
        let attr = self.file(node, text.len());
        let mut snapshots = self.snapshots.lock();
        if snapshots.len() >= SNAPSHOTS_MAX {
            return Err(Errno::ENFILE);
        }
        snapshots.insert(node, text);
        let ttl = std::time::Duration::ZERO;
        Ok(Entry { node: NodeId(node), generation: 0, attr, entry_ttl: ttl, attr_ttl: FOREVER })
    }

    /// Attributes of the directory or of a snapshot.
    pub(crate) fn attr(&self, node: NodeId) -> Result<FileAttr, Errno> {
        if node == CONTROL_NODE {
            return Ok(self.directory());
        }
        Ok(self.file(node.0, self.snapshot(node)?.len()))
    }

    /// Reads from a snapshot.
    pub(crate) fn read(&self, node: NodeId, offset: u64, out: &mut [u8]) -> Result<usize, Errno> {
        if node == CONTROL_NODE {
            return Err(Errno::EISDIR);
        }
        let text = self.snapshot(node)?;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
        let len = out.len().min(text.len() - from);
        out[..len].copy_from_slice(&text[from..from + len]);
        Ok(len)
    }

    /// Names in the directory, each with an inode number and a mode, in listing order.
    pub(crate) fn names(&self) -> impl Iterator<Item = (u64, u32, &[u8])> {
        let dots = [&b"."[..], b".."].into_iter().map(|dot| (CONTROL_FIRST, libc::S_IFDIR, dot));
        let files = self.files.iter().enumerate();
        dots.chain(files.map(|(index, (name, _))| (CONTROL_FIRST + 1 + index as u64, libc::S_IFREG, name.as_bytes())))
    }

    /// The kernel does not need a node any more. (Every look-up made its own.)
    pub(crate) fn forget(&self, node: NodeId) {
        self.snapshots.lock().remove(&node.0);
    }

    fn snapshot(&self, node: NodeId) -> Result<Arc<Vec<u8>>, Errno> {
        self.snapshots.lock().get(&node.0).cloned().ok_or(Errno::ESTALE)
    }

    fn directory(&self) -> FileAttr {
        FileAttr { nlink: 2, mode: libc::S_IFDIR | 0o555, ..self.file(CONTROL_FIRST, 0) }
    }

    fn file(&self, node: u64, len: usize) -> FileAttr {
        FileAttr {
            ino: node,
            size: len as u64,
            blocks: 0,
            atime: self.mounted,
            mtime: self.mounted,
            ctime: self.mounted,
            mode: libc::S_IFREG | 0o444,
            nlink: 1,
            blksize: 4096,
            ..FileAttr::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting() -> Control {
        let calls = AtomicU64::new(0);
        let text = move || format!("call {}", calls.fetch_add(1, Ordering::Relaxed)).into_bytes();
        Control::new(vec![("stats", Box::new(text))], Timestamp::default())
    }

    #[test]
    fn every_look_up_is_a_snapshot_of_its_own() {
        let control = counting();
        let (first, second) = (control.lookup(b"stats").unwrap(), control.lookup(b"stats").unwrap());
        assert_ne!(first.node, second.node);
        let mut out = [0; 16];
        assert_eq!(control.read(first.node, 0, &mut out), Ok(6));
        assert_eq!(&out[..6], b"call 0");
        assert_eq!(control.read(second.node, 5, &mut out), Ok(1));
        assert_eq!(out[0], b'1');
        assert_eq!(control.read(first.node, u64::MAX, &mut out), Ok(0));
    }

    #[test]
    fn forgotten_snapshots_are_gone_and_their_number_is_bounded() {
        let control = counting();
        let entries: Vec<_> = (0..SNAPSHOTS_MAX).map(|_| control.lookup(b"stats").unwrap()).collect();
        assert_eq!(control.lookup(b"stats"), Err(Errno::ENFILE));
        control.forget(entries[0].node);
        assert_eq!(control.read(entries[0].node, 0, &mut [0; 4]), Err(Errno::ESTALE));
        assert!(control.lookup(b"stats").is_ok());
    }

    #[test]
    fn unknown_names_are_not_there() {
        assert_eq!(counting().lookup(b"nothing"), Err(Errno::ENOENT));
    }
}
