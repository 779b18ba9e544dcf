//! The control directory `.moafs/` at a mount's root: answers look-ups, hidden from listings; its files are read, and
//! some take commands.
//!
//! Opens are not seen (the kernel is told to skip them), and the kernel caches what it has read. So each *look-up* of a
//! control file makes a fresh node with a snapshot of its text, which lives until the kernel forgets the node: every
//! open sees one consistent text, never a mix of two.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use moafs_fuse::{Entry, Errno, FOREVER, FileAttr, NodeId, SeekTarget, Timestamp};
use parking_lot::Mutex;

use crate::nodes::CONTROL_FIRST;

/// Name of the control directory.
pub const CONTROL_NAME: &[u8] = b".moafs";

/// Name of the control file that shows what a mount has done.
pub const STATS_NAME: &str = "stats";

/// The control directory's node.
pub(crate) const CONTROL_NODE: NodeId = NodeId(CONTROL_FIRST);

/// Snapshots that the kernel may hold at once for all users but root and the mount's owner. It forgets a node when no
/// program has it open any more; a user whose programs keep too many open gets ENFILE, so that the daemon's memory
/// stays bounded.
const SNAPSHOTS_MAX: usize = 1024;

/// Snapshots that the kernel may hold at once for one of these users.
const SNAPSHOTS_PER_USER_MAX: usize = 64;

/// The user that a text is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// Root, or the user who mounted.
    Owner,
    /// Any other user, who may not see paths and options of the host.
    Others,
}

/// Makes the text of a control file.
pub type Text = Box<dyn Fn(Audience) -> Vec<u8> + Send + Sync>;

/// Carries out a command that was written to a control file.
pub(crate) type Obey = Box<dyn Fn(&[u8]) -> Result<(), Errno> + Send + Sync>;

/// A control file.
pub(crate) struct ControlFile {
    pub(crate) name: &'static str,
    pub(crate) text: Text,
    /// Carries out commands; `None` if the file can only be read. Root and the control directory's owner may command.
    pub(crate) obey: Option<Obey>,
}

/// The text of a control file at a look-up.
#[derive(Clone)]
struct Snapshot {
    text: Arc<Vec<u8>>,
    /// Index of the file in [`Control::files`].
    index: usize,
    /// User who looked it up.
    uid: u32,
}

/// An empty file that another mount covers: a name to mount on, whose node stays the same.
pub(crate) struct Cover {
    pub(crate) name: &'static str,
    /// True while the name exists.
    pub(crate) there: Arc<AtomicBool>,
}

/// The control directory.
pub(crate) struct Control {
    files: Vec<ControlFile>,
    cover: Option<Cover>,
    snapshots: Mutex<BTreeMap<u64, Snapshot>>,
    next_node: AtomicU64,
    mounted: Timestamp,
    /// User who mounted the volume.
    owner: u32,
}

impl Control {
    /// Creates a directory of `files` that belongs to the user `owner`, whose times are `mounted`.
    pub(crate) fn new(files: Vec<ControlFile>, mounted: Timestamp, owner: u32) -> Control {
        // Nodes right after the directory's stand for the names in listings, and for the cover.
        let first = CONTROL_FIRST + 2 + files.len() as u64;
        Control { files, cover: None, snapshots: Mutex::default(), next_node: AtomicU64::new(first), mounted, owner }
    }

    /// Adds a name for another mount to cover.
    pub(crate) fn with_cover(self, cover: Cover) -> Control {
        Control { cover: Some(cover), ..self }
    }

    /// Adds a file.
    pub(crate) fn with_file(mut self, file: ControlFile) -> Control {
        self.files.push(file);
        Control { cover: self.cover, ..Control::new(self.files, self.mounted, self.owner) }
    }

    fn cover_node(&self) -> NodeId {
        NodeId(CONTROL_FIRST + 1 + self.files.len() as u64)
    }

    fn covered(&self) -> Option<&Cover> {
        self.cover.as_ref().filter(|cover| cover.there.load(Ordering::Acquire))
    }

    /// Returns true for nodes of the control directory.
    pub(crate) fn owns(node: NodeId) -> bool {
        node.0 >= CONTROL_FIRST
    }

    /// Returns the answer to a look-up of the directory's name.
    pub(crate) fn entry(&self) -> Entry {
        Entry { node: CONTROL_NODE, generation: 0, attr: self.directory(), entry_ttl: FOREVER, attr_ttl: FOREVER }
    }

    /// Looks up a control file: makes a fresh node with a snapshot of its text.
    pub(crate) fn lookup(&self, name: &[u8], uid: u32) -> Result<Entry, Errno> {
        // Asked for a file handle, whose snapshot the kernel has already forgotten.
        if name == b"." {
            return Err(Errno::ESTALE);
        }
        if self.covered().is_some_and(|cover| cover.name.as_bytes() == name) {
            let (node, ttl) = (self.cover_node(), std::time::Duration::ZERO);
            return Ok(Entry { node, generation: 0, attr: self.cover_attr(), entry_ttl: ttl, attr_ttl: FOREVER });
        }
        let found = self.files.iter().enumerate().find(|(_, file)| file.name.as_bytes() == name);
        let (index, file) = found.ok_or(Errno::ENOENT)?;
        let audience = self.audience(uid);
        self.check_quota(uid, audience)?;
        let snapshot = Snapshot { text: Arc::new((file.text)(audience)), index, uid };
        let node = self.next_node.fetch_add(1, Ordering::Relaxed);
        let attr = self.attr_of(&snapshot);
        self.snapshots.lock().insert(node, snapshot);
        let ttl = std::time::Duration::ZERO;
        Ok(Entry { node: NodeId(node), generation: 0, attr, entry_ttl: ttl, attr_ttl: FOREVER })
    }

    fn audience(&self, uid: u32) -> Audience {
        if uid == 0 || uid == self.owner { Audience::Owner } else { Audience::Others }
    }

    /// Fails with ENFILE if the user, or all users but root and the owner together, have too many snapshots. Root and
    /// the owner are not limited.
    fn check_quota(&self, uid: u32, audience: Audience) -> Result<(), Errno> {
        if audience == Audience::Owner {
            return Ok(());
        }
        let snapshots = self.snapshots.lock();
        let others = || snapshots.values().filter(|snapshot| self.audience(snapshot.uid) == Audience::Others);
        let own = others().filter(|snapshot| snapshot.uid == uid).count();
        if own >= SNAPSHOTS_PER_USER_MAX || others().count() >= SNAPSHOTS_MAX { Err(Errno::ENFILE) } else { Ok(()) }
    }

    /// Returns the attributes of the directory or of a snapshot.
    pub(crate) fn attr(&self, node: NodeId) -> Result<FileAttr, Errno> {
        if node == CONTROL_NODE {
            return Ok(self.directory());
        }
        if node == self.cover_node() {
            return Ok(self.cover_attr());
        }
        Ok(self.attr_of(&self.snapshot(node)?))
    }

    /// Reads from a snapshot.
    pub(crate) fn read(&self, node: NodeId, offset: u64, out: &mut [u8]) -> Result<usize, Errno> {
        if node == CONTROL_NODE {
            return Err(Errno::EISDIR);
        }
        let text = self.snapshot(node)?.text;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
        let len = out.len().min(text.len() - from);
        out[..len].copy_from_slice(&text[from..from + len]);
        Ok(len)
    }

    /// Returns the next data or hole: a text has no hole but the one at its end.
    pub(crate) fn seek(&self, node: NodeId, offset: u64, target: SeekTarget) -> Result<u64, Errno> {
        let size = self.attr(node)?.size;
        match target {
            _ if offset >= size => Err(Errno::ENXIO),
            SeekTarget::Data => Ok(offset),
            SeekTarget::Hole => Ok(size),
        }
    }

    /// Passes a command to a file that takes commands.
    pub(crate) fn write(&self, node: NodeId, uid: u32, offset: u64, command: &[u8]) -> Result<usize, Errno> {
        let obey = self.commanded(node)?;
        if self.audience(uid) == Audience::Others {
            return Err(Errno::EPERM);
        }
        if offset != 0 {
            return Err(Errno::EINVAL);
        }
        obey(command).map(|()| command.len())
    }

    /// Returns the unchanged attributes: programs that open a file for writing may truncate it first, which has no
    /// effect here.
    pub(crate) fn truncate(&self, node: NodeId) -> Result<FileAttr, Errno> {
        self.commanded(node)?;
        self.attr(node)
    }

    fn commanded(&self, node: NodeId) -> Result<&Obey, Errno> {
        if node == CONTROL_NODE {
            return Err(Errno::EPERM);
        }
        let index = self.snapshot(node)?.index;
        self.files.get(index).and_then(|file| file.obey.as_ref()).ok_or(Errno::EPERM)
    }

    /// Returns the names in the directory, each with an inode number and a mode, in listing order.
    pub(crate) fn names(&self) -> impl Iterator<Item = (u64, u32, &[u8])> {
        let dots = [&b"."[..], b".."].into_iter().map(|dot| (CONTROL_FIRST, libc::S_IFDIR, dot));
        let files = self.files.iter().enumerate();
        let files = files.map(|(index, file)| (CONTROL_FIRST + 1 + index as u64, libc::S_IFREG, file.name.as_bytes()));
        let cover = self.covered().map(|cover| (self.cover_node().0, libc::S_IFREG, cover.name.as_bytes()));
        dots.chain(files).chain(cover)
    }

    /// Drops a node that the kernel has forgotten. Every look-up made its own, so counts do not matter.
    pub(crate) fn forget(&self, node: NodeId) {
        self.snapshots.lock().remove(&node.0);
    }

    fn snapshot(&self, node: NodeId) -> Result<Snapshot, Errno> {
        self.snapshots.lock().get(&node.0).cloned().ok_or(Errno::ESTALE)
    }

    fn directory(&self) -> FileAttr {
        FileAttr { nlink: 2, mode: libc::S_IFDIR | 0o555, ..self.file(CONTROL_FIRST, 0) }
    }

    /// Returns a snapshot's attributes. All snapshots of a file have the inode number of its directory entry: programs
    /// compare the two numbers to see that they opened the file they looked at.
    fn attr_of(&self, snapshot: &Snapshot) -> FileAttr {
        let takes_commands = self.files.get(snapshot.index).is_some_and(|file| file.obey.is_some());
        let write = if takes_commands { 0o200 } else { 0 };
        let attr = self.file(CONTROL_FIRST + 1 + snapshot.index as u64, snapshot.text.len());
        FileAttr { uid: self.owner, mode: attr.mode | write, ..attr }
    }

    fn cover_attr(&self) -> FileAttr {
        FileAttr { mode: libc::S_IFREG | 0o400, ..self.file(self.cover_node().0, 0) }
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
        let text = move |_| format!("call {}", calls.fetch_add(1, Ordering::Relaxed)).into_bytes();
        let stats = ControlFile { name: "stats", text: Box::new(text), obey: None };
        let obey: Obey = Box::new(|command| if command == b"go" { Ok(()) } else { Err(Errno::EINVAL) });
        let orders = ControlFile { name: "orders", text: Box::new(|_| Vec::new()), obey: Some(obey) };
        Control::new(vec![stats, orders], Timestamp::default(), 1000)
    }

    #[test]
    fn every_look_up_is_a_snapshot_of_its_own() {
        let control = counting();
        let (first, second) = (control.lookup(b"stats", 0).unwrap(), control.lookup(b"stats", 0).unwrap());
        assert_ne!(first.node, second.node);
        assert_eq!(first.attr.ino, second.attr.ino, "it is one file");
        let mut out = [0; 16];
        assert_eq!(control.read(first.node, 0, &mut out), Ok(6));
        assert_eq!(&out[..6], b"call 0");
        assert_eq!(control.read(second.node, 5, &mut out), Ok(1));
        assert_eq!(out[0], b'1');
        assert_eq!(control.read(first.node, u64::MAX, &mut out), Ok(0));
    }

    #[test]
    fn a_file_has_one_inode_number_in_listings_look_ups_and_attributes() {
        let cover = Cover { name: "cover", there: Arc::new(AtomicBool::new(true)) };
        let control = counting().with_cover(cover);
        let listed: Vec<_> =
            control.names().map(|(ino, _, name)| (ino, name)).filter(|(_, name)| *name != b"..").collect();
        for (ino, name) in &listed {
            let entries = match *name {
                b"." => vec![control.entry()],
                name => vec![control.lookup(name, 0).unwrap(), control.lookup(name, 0).unwrap()],
            };
            for entry in entries {
                assert_eq!((entry.attr.ino, control.attr(entry.node).unwrap().ino), (*ino, *ino), "{name:?}");
            }
        }
        let numbers: std::collections::BTreeSet<u64> = listed.iter().map(|(ino, _)| *ino).collect();
        assert_eq!((numbers.len(), listed.len()), (4, 4), "each has its own");
    }

    #[test]
    fn a_text_is_data_up_to_its_end() {
        let control = counting();
        let node = control.lookup(b"stats", 0).unwrap().node;
        assert_eq!(control.seek(node, 2, SeekTarget::Data), Ok(2));
        assert_eq!(control.seek(node, 2, SeekTarget::Hole), Ok(6));
        assert_eq!(control.seek(node, 6, SeekTarget::Data), Err(Errno::ENXIO));
    }

    #[test]
    fn forgotten_snapshots_are_gone_and_their_number_is_bounded() {
        let control = counting();
        let full =
            |uid: u32| (0..SNAPSHOTS_PER_USER_MAX).map(|_| control.lookup(b"stats", uid)).last().unwrap().unwrap();
        let last = full(2000);
        assert_eq!(control.lookup(b"stats", 2000), Err(Errno::ENFILE));
        control.forget(last.node);
        assert_eq!(control.read(last.node, 0, &mut [0; 4]), Err(Errno::ESTALE));
        assert!(control.lookup(b"stats", 2000).is_ok());
        (2001..2000 + (SNAPSHOTS_MAX / SNAPSHOTS_PER_USER_MAX) as u32)
            .for_each(|uid| assert_eq!(full(uid).generation, 0));
        assert_eq!(control.lookup(b"stats", 3000), Err(Errno::ENFILE), "of all other users together");
        assert!(
            control.lookup(b"stats", 0).is_ok() && control.lookup(b"stats", 1000).is_ok(),
            "root and the owner go on"
        );
    }

    #[test]
    fn commands_come_from_the_owner_or_root_and_go_where_they_are_understood() {
        let control = counting();
        let (stats, orders) = (control.lookup(b"stats", 0).unwrap(), control.lookup(b"orders", 0).unwrap());
        assert_eq!((stats.attr.mode & 0o777, orders.attr.mode & 0o777, orders.attr.uid), (0o444, 0o644, 1000));
        assert_eq!(control.write(orders.node, 1000, 0, b"go"), Ok(2));
        assert_eq!(control.write(orders.node, 0, 0, b"go"), Ok(2));
        assert_eq!(control.write(orders.node, 1001, 0, b"go"), Err(Errno::EPERM));
        assert_eq!(control.write(orders.node, 0, 0, b"stop"), Err(Errno::EINVAL));
        assert_eq!(control.write(orders.node, 0, 1, b"go"), Err(Errno::EINVAL));
        assert_eq!(control.write(stats.node, 0, 0, b"go"), Err(Errno::EPERM));
        assert_eq!(control.write(CONTROL_NODE, 0, 0, b"go"), Err(Errno::EPERM));
        assert!(control.truncate(orders.node).is_ok() && control.truncate(stats.node).is_err());
    }

    #[test]
    fn a_cover_is_a_name_with_one_node_while_it_is_wanted() {
        let there = Arc::new(AtomicBool::new(false));
        let control = counting().with_cover(Cover { name: "swapfile", there: Arc::clone(&there) });
        assert_eq!(control.lookup(b"swapfile", 0), Err(Errno::ENOENT));
        let names = |control: &Control| control.names().map(|(.., name)| name.to_vec()).collect::<Vec<_>>();
        assert!(!names(&control).contains(&b"swapfile".to_vec()));
        there.store(true, Ordering::Release);
        let found = control.lookup(b"swapfile", 0).unwrap();
        assert!(names(&control).contains(&b"swapfile".to_vec()));
        control.forget(found.node);
        assert_eq!(control.lookup(b"swapfile", 0), Ok(found));
        assert_eq!(control.attr(found.node), Ok(found.attr));
        assert!(control.write(found.node, 0, 0, b"x").is_err() && control.truncate(found.node).is_err());
        assert_ne!(control.lookup(b"stats", 0).unwrap().node, found.node);
    }

    #[test]
    fn unknown_names_are_not_there() {
        assert_eq!(counting().lookup(b"nothing", 0), Err(Errno::ENOENT));
    }
}
