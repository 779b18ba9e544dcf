//! A POSIX tree as plain as possible, which volumes are compared with.
//!
//! It knows names, bytes, modes, owners, links, extended attributes and files that are held though their last name is
//! gone. It knows nothing of blocks, caches or order. [`Model::apply`] answers each operation with the error number
//! that Linux would give.
//!
//! Nodes are shared between clones until changed, so a copy of the model after every operation is cheap: crash tests
//! keep them all.

mod node;

use std::collections::BTreeMap;
use std::sync::Arc;

use moafs_vfs::api::{Allocate, RenameMode};
use moafs_vfs::types::{FileKind, SetMode};

pub use self::node::{Node, NodeId};
use crate::content::Content;
use crate::ops::Op;
use crate::stamp;
use crate::tree::Tree;

/// An error number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}

/// The result of an operation that succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// No further result.
    Done,
    /// A new node.
    Made(NodeId),
    /// Bytes read or copied.
    Count(u64),
    /// The bytes read.
    Bytes(Vec<u8>),
}

/// The tree.
#[derive(Debug, Clone)]
pub struct Model {
    nodes: Vec<Arc<Node>>,
    /// True if blocks may lie beyond the end of a file.
    pub beyond_eof: bool,
    generation: u64,
    /// The label of the root; see [`Model::label`].
    labels_from: u64,
}

type Answer = Result<Outcome, Errno>;

fn fail<T>(errno: i32) -> Result<T, Errno> {
    Err(Errno(errno))
}

impl Model {
    /// Creates an empty volume whose root has these attributes.
    pub fn new(root_perm: u32, beyond_eof: bool) -> Model {
        let root = Node::new(FileKind::Directory, root_perm);
        Model { nodes: vec![Arc::new(root)], beyond_eof, generation: 0, labels_from: 0 }
    }

    /// Returns a node, which must have been made.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }

    /// Sets the label of the root; see [`Model::label`].
    pub fn with_labels(self, labels_from: u64) -> Model {
        Model { labels_from, ..self }
    }

    /// Creates the model of the tree below one directory. Its bytes get labels from `labels_from` on.
    pub fn of_tree(tree: &Tree, root: u64, beyond_eof: bool, labels_from: u64) -> (Model, BTreeMap<NodeId, u64>) {
        let mut model = Model { nodes: Vec::new(), beyond_eof, generation: 0, labels_from };
        let mut ids: BTreeMap<u64, NodeId> = BTreeMap::new();
        let mut todo = vec![(root, NodeId::ROOT)];
        while let Some((ino, parent)) = todo.pop() {
            let Some(seen) = tree.nodes.get(&ino) else { continue };
            if let Some(id) = ids.get(&ino) {
                model.node_mut(*id).nlink += 1;
                continue;
            }
            let id = NodeId(model.nodes.len());
            ids.insert(ino, id);
            let mut node = Node::new(seen.kind, seen.perm);
            (node.uid, node.gid, node.rdev, node.parent) = (seen.uid, seen.gid, seen.rdev, parent);
            (node.content, node.target, node.xattrs) = (seen.content.clone(), seen.target.clone(), seen.xattrs.clone());
            model.nodes.push(Arc::new(node));
            todo.extend(seen.entries.values().map(|child| (*child, id)));
        }
        for (ino, id) in &ids {
            let seen = &tree.nodes[ino];
            let entries: BTreeMap<Vec<u8>, NodeId> =
                seen.entries.iter().filter_map(|(name, ino)| Some((name.clone(), *ids.get(ino)?))).collect();
            let subdirectories = entries.values().filter(|child| model.node(**child).is_dir()).count();
            let node = model.node_mut(*id);
            if node.is_dir() {
                node.nlink = 2 + subdirectories as u32;
            }
            node.entries = entries;
        }
        (model, ids.into_iter().map(|(ino, id)| (id, ino)).collect())
    }

    /// Returns the label that stamps a node's bytes.
    pub fn label(&self, id: NodeId) -> u64 {
        self.labels_from + id.0 as u64
    }

    /// Returns a node, if it has been made.
    pub fn get(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id.0).map(|node| &**node)
    }

    /// Returns a node, to change it.
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        Arc::make_mut(&mut self.nodes[id.0])
    }

    /// Returns all nodes that were ever made.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.nodes.len()).map(NodeId)
    }

    /// Returns the nodes with a name or a handle.
    pub fn living(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.ids().map(|id| (id, self.node(id))).filter(|(_, node)| node.alive())
    }

    /// Returns the names of a node, each with its directory.
    pub fn names_of(&self, id: NodeId) -> Vec<(NodeId, Vec<u8>)> {
        let mut names = Vec::new();
        for (dir, node) in self.living() {
            let here = node.entries.iter().filter(|(_, to)| **to == id);
            names.extend(here.map(|(name, _)| (dir, name.clone())));
        }
        names
    }

    /// Returns one path from the root to a node, as names; `None` if no name leads there.
    pub fn path_of(&self, id: NodeId) -> Option<Vec<Vec<u8>>> {
        let mut path = Vec::new();
        let mut at = id;
        while at != NodeId::ROOT {
            let (dir, name) = self.name_of(at)?;
            path.push(name);
            at = dir;
        }
        path.reverse();
        Some(path)
    }

    fn name_of(&self, id: NodeId) -> Option<(NodeId, Vec<u8>)> {
        if self.node(id).is_dir() {
            let parent = self.node(id).parent;
            let name = self.node(parent).entries.iter().find(|(_, to)| **to == id)?.0;
            return Some((parent, name.clone()));
        }
        self.names_of(id).into_iter().next()
    }

    /// Returns the number that stamps the next write. Each applied write uses one up.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Applies an operation, or returns the error with which POSIX refuses it; refused operations change nothing.
    pub fn apply(&mut self, op: &Op) -> Answer {
        match op {
            Op::Create { dir, name, kind, perm, rdev } => {
                let mut node = Node::new(*kind, *perm);
                node.rdev = *rdev;
                self.add_new(*dir, name, node)
            }
            Op::Symlink { dir, name, target } => {
                let mut node = Node::new(FileKind::Symlink, 0o777);
                node.target.clone_from(target);
                self.add_new(*dir, name, node)
            }
            Op::Tmpfile { dir, perm } => self.tmpfile(*dir, *perm),
            Op::Link { node, dir, name } => self.link(*node, *dir, name),
            Op::Unlink { dir, name } => self.unlink(*dir, name),
            Op::Rmdir { dir, name } => self.rmdir(*dir, name),
            Op::Rename { from, to, mode } => self.rename((from.0, &from.1), (to.0, &to.1), *mode),
            Op::Write { node, offset, len, append } => self.write(*node, *offset, *len, *append),
            Op::Truncate { node, size } => {
                self.touch(*node).content.resize(*size);
                Ok(Outcome::Done)
            }
            Op::Allocate { node, offset, len, how } => self.allocate(*node, *offset, *len, *how),
            Op::Copy { from, from_offset, to, to_offset, len } => {
                self.copy((*from, *from_offset), (*to, *to_offset), *len)
            }
            Op::SetPerm { node, perm } => {
                self.node_mut(*node).perm = *perm;
                Ok(Outcome::Done)
            }
            Op::SetOwner { node, uid, gid } => {
                let node = self.node_mut(*node);
                (node.uid, node.gid) = (*uid, *gid);
                Ok(Outcome::Done)
            }
            Op::SetMtime { node, mtime } => {
                self.node_mut(*node).mtime = Some(*mtime);
                Ok(Outcome::Done)
            }
            Op::SetXattr { node, name, len, mode } => self.set_xattr(*node, name, *len, *mode),
            Op::RemoveXattr { node, name } => match self.node_mut(*node).xattrs.remove(name) {
                Some(_) => Ok(Outcome::Done),
                None => fail(libc::ENODATA),
            },
            Op::Hold { node } => {
                self.node_mut(*node).held = true;
                Ok(Outcome::Done)
            }
            Op::Release { node } => {
                self.node_mut(*node).held = false;
                self.bury(*node);
                Ok(Outcome::Done)
            }
            Op::Read { node, offset, len } => Ok(Outcome::Bytes(self.node(*node).content.bytes(*offset, *len))),
            Op::Fsync { .. } | Op::Sync | Op::BackgroundStep | Op::Defragment | Op::Trim | Op::Shrink => {
                Ok(Outcome::Done)
            }
            Op::Page(_) | Op::Remount => Ok(Outcome::Done),
        }
    }

    /// Returns the value that `SetXattr` sets: recognisable, and different for every length.
    pub fn xattr_value(name: &[u8], len: usize) -> Vec<u8> {
        name.iter().chain(b"=").copied().cycle().take(len).collect()
    }

    fn directory(&self, dir: NodeId) -> Result<&Node, Errno> {
        let node = self.node(dir);
        match (node.is_dir(), node.nlink) {
            (false, _) => fail(libc::ENOTDIR),
            (true, 0) => fail(libc::ENOENT),
            _ => Ok(node),
        }
    }

    fn entry(&self, dir: NodeId, name: &[u8]) -> Result<NodeId, Errno> {
        self.directory(dir)?.entries.get(name).copied().ok_or(Errno(libc::ENOENT))
    }

    /// Returns a node whose contents change: its modification time is no longer known.
    fn touch(&mut self, id: NodeId) -> &mut Node {
        let node = self.node_mut(id);
        node.mtime = None;
        node
    }

    fn bind(&mut self, dir: NodeId, name: &[u8], to: NodeId) {
        self.touch(dir).entries.insert(name.to_vec(), to);
        if self.node(to).is_dir() {
            self.node_mut(to).parent = dir;
        }
    }

    fn add_new(&mut self, dir: NodeId, name: &[u8], mut node: Node) -> Answer {
        if self.directory(dir)?.entries.contains_key(name) {
            return fail(libc::EEXIST);
        }
        self.inherit(dir, &mut node);
        let id = NodeId(self.nodes.len());
        if node.is_dir() {
            self.node_mut(dir).nlink += 1;
        }
        self.nodes.push(Arc::new(node));
        self.bind(dir, name, id);
        Ok(Outcome::Made(id))
    }

    fn inherit(&self, dir: NodeId, node: &mut Node) {
        let dir = self.node(dir);
        if dir.perm & libc::S_ISGID != 0 {
            node.gid = dir.gid;
            if node.is_dir() {
                node.perm |= libc::S_ISGID;
            }
        }
    }

    fn tmpfile(&mut self, dir: NodeId, perm: u32) -> Answer {
        self.directory(dir)?;
        let mut node = Node::new(FileKind::Regular, perm);
        self.inherit(dir, &mut node);
        (node.nlink, node.held, node.tmpfile) = (0, true, true);
        self.nodes.push(Arc::new(node));
        Ok(Outcome::Made(NodeId(self.nodes.len() - 1)))
    }

    fn link(&mut self, id: NodeId, dir: NodeId, name: &[u8]) -> Answer {
        // POSIX leaves open which error comes first.
        if self.node(id).is_dir() {
            return fail(libc::EPERM);
        }
        if self.directory(dir)?.entries.contains_key(name) {
            return fail(libc::EEXIST);
        }
        let node = self.node_mut(id);
        node.nlink += 1;
        node.tmpfile = false;
        self.bind(dir, name, id);
        Ok(Outcome::Done)
    }

    fn unlink(&mut self, dir: NodeId, name: &[u8]) -> Answer {
        let id = self.entry(dir, name)?;
        if self.node(id).is_dir() {
            return fail(libc::EISDIR);
        }
        self.unbind(dir, name);
        Ok(Outcome::Done)
    }

    fn rmdir(&mut self, dir: NodeId, name: &[u8]) -> Answer {
        let id = self.entry(dir, name)?;
        if !self.node(id).is_dir() {
            return fail(libc::ENOTDIR);
        }
        if !self.node(id).entries.is_empty() {
            return fail(libc::ENOTEMPTY);
        }
        self.unbind(dir, name);
        Ok(Outcome::Done)
    }

    /// Removes a name, and the node with it if it was the last.
    fn unbind(&mut self, dir: NodeId, name: &[u8]) {
        let Some(id) = self.touch(dir).entries.remove(name) else { return };
        if self.node(id).is_dir() {
            self.node_mut(dir).nlink -= 1;
            self.node_mut(id).nlink = 0;
        } else {
            self.node_mut(id).nlink -= 1;
        }
        self.bury(id);
    }

    /// Drops the contents of a node that cannot be reached any more.
    fn bury(&mut self, id: NodeId) {
        if !self.node(id).alive() {
            let node = self.node_mut(id);
            node.content = Content::default();
            node.xattrs.clear();
        }
    }

    /// Returns true if `dir` is `above` or lies under it.
    pub fn lies_under(&self, dir: NodeId, above: NodeId) -> bool {
        let mut at = dir;
        while at != NodeId::ROOT {
            if at == above {
                return true;
            }
            at = self.node(at).parent;
        }
        above == NodeId::ROOT
    }

    fn rename(&mut self, from: (NodeId, &[u8]), to: (NodeId, &[u8]), mode: RenameMode) -> Answer {
        self.directory(to.0)?;
        let source = self.entry(from.0, from.1)?;
        let target = self.node(to.0).entries.get(to.1).copied();
        self.check_rename(from.0, source, to.0, target, mode)?;
        match (target, mode) {
            (Some(target), _) if target == source => {}
            (Some(target), RenameMode::Exchange) => self.exchange(from, source, to, target),
            (target, _) => {
                if target.is_some() {
                    self.unbind(to.0, to.1);
                }
                self.shift(from, source, to);
            }
        }
        Ok(Outcome::Done)
    }

    /// Checks a rename, in the order of Linux.
    fn check_rename(
        &self,
        from_dir: NodeId,
        source: NodeId,
        to_dir: NodeId,
        target: Option<NodeId>,
        mode: RenameMode,
    ) -> Result<(), Errno> {
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return fail(libc::EEXIST),
            (RenameMode::Exchange, None) => return fail(libc::ENOENT),
            _ => {}
        }
        if self.node(source).is_dir() && self.lies_under(to_dir, source) {
            return fail(libc::EINVAL);
        }
        let Some(target) = target.filter(|target| *target != source) else { return Ok(()) };
        let exchange = mode == RenameMode::Exchange;
        if self.node(target).is_dir() && self.lies_under(from_dir, target) {
            return fail(if exchange { libc::EINVAL } else { libc::ENOTEMPTY });
        }
        match (exchange, self.node(source).is_dir(), self.node(target).is_dir()) {
            (false, true, false) => fail(libc::ENOTDIR),
            (false, false, true) => fail(libc::EISDIR),
            (false, true, true) if !self.node(target).entries.is_empty() => fail(libc::ENOTEMPTY),
            _ => Ok(()),
        }
    }

    fn shift(&mut self, from: (NodeId, &[u8]), source: NodeId, to: (NodeId, &[u8])) {
        self.touch(from.0).entries.remove(from.1);
        self.bind(to.0, to.1, source);
        if self.node(source).is_dir() {
            self.node_mut(from.0).nlink -= 1;
            self.node_mut(to.0).nlink += 1;
        }
    }

    fn exchange(&mut self, from: (NodeId, &[u8]), source: NodeId, to: (NodeId, &[u8]), target: NodeId) {
        for (gone_from, come_to, node) in [(from.0, to.0, source), (to.0, from.0, target)] {
            if self.node(node).is_dir() {
                self.node_mut(gone_from).nlink -= 1;
                self.node_mut(come_to).nlink += 1;
            }
        }
        self.bind(to.0, to.1, source);
        self.bind(from.0, from.1, target);
    }

    fn write(&mut self, id: NodeId, offset: u64, len: usize, append: bool) -> Answer {
        let offset = if append { self.node(id).content.size() } else { offset };
        let data = stamp::bytes(self.label(id), offset, len, self.generation);
        self.generation += 1;
        self.touch(id).content.write(offset, &data);
        Ok(Outcome::Count(offset))
    }

    fn allocate(&mut self, id: NodeId, offset: u64, len: u64, how: Allocate) -> Answer {
        let size = self.node(id).content.size();
        let end = offset + len;
        if how == Allocate::KeepSize {
            let refused = end > size && !self.beyond_eof;
            if refused {
                return fail(libc::EOPNOTSUPP);
            }
            // POSIX leaves open whether allocating alone is a modification.
            self.touch(id);
            return Ok(Outcome::Done);
        }
        let content = &mut self.touch(id).content;
        if !matches!(how, Allocate::Extend) {
            content.zero(offset, len);
        }
        let extends = matches!(how, Allocate::Extend | Allocate::Zero { keep_size: false });
        if extends && end > size {
            content.resize(end);
        }
        Ok(Outcome::Done)
    }

    fn copy(&mut self, from: (NodeId, u64), to: (NodeId, u64), len: u64) -> Answer {
        let data = self.node(from.0).content.bytes(from.1, len as usize);
        if !data.is_empty() {
            self.touch(to.0).content.write(to.1, &data);
        }
        Ok(Outcome::Count(data.len() as u64))
    }

    fn set_xattr(&mut self, id: NodeId, name: &[u8], len: usize, mode: SetMode) -> Answer {
        let exists = self.node(id).xattrs.contains_key(name);
        match (mode, exists) {
            (SetMode::Create, true) => return fail(libc::EEXIST),
            (SetMode::Replace, false) => return fail(libc::ENODATA),
            _ => {}
        }
        let value = Model::xattr_value(name, len);
        self.node_mut(id).xattrs.insert(name.to_vec(), value);
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(answer: Answer) -> NodeId {
        match answer.unwrap() {
            Outcome::Made(id) => id,
            other => panic!("{other:?} is not a new node"),
        }
    }

    fn mkdir(model: &mut Model, dir: NodeId, name: &str) -> NodeId {
        made(model.apply(&Op::mkdir(dir, name)))
    }

    fn file(model: &mut Model, dir: NodeId, name: &str) -> NodeId {
        made(model.apply(&Op::create(dir, name)))
    }

    fn rename(from: (NodeId, &str), to: (NodeId, &str), mode: RenameMode) -> Op {
        Op::Rename { from: (from.0, from.1.into()), to: (to.0, to.1.into()), mode }
    }

    #[test]
    fn a_directory_cannot_move_into_itself() {
        let mut model = Model::new(0o755, false);
        let a = mkdir(&mut model, NodeId::ROOT, "a");
        let b = mkdir(&mut model, a, "b");
        let into_itself = rename((NodeId::ROOT, "a"), (b, "c"), RenameMode::Replace);
        assert_eq!(model.apply(&into_itself), Err(Errno(libc::EINVAL)));
        let over_its_parent = rename((a, "b"), (NodeId::ROOT, "a"), RenameMode::Replace);
        assert_eq!(model.apply(&over_its_parent), Err(Errno(libc::ENOTEMPTY)));
    }

    #[test]
    fn moving_and_exchanging_directories_keeps_link_counts() {
        let mut model = Model::new(0o755, false);
        let a = mkdir(&mut model, NodeId::ROOT, "a");
        let b = mkdir(&mut model, a, "b");
        file(&mut model, NodeId::ROOT, "f");
        assert_eq!(model.node(a).nlink, 3);
        model.apply(&rename((a, "b"), (NodeId::ROOT, "f"), RenameMode::Exchange)).unwrap();
        assert_eq!((model.node(a).nlink, model.node(NodeId::ROOT).nlink), (2, 4));
        assert_eq!(model.node(b).parent, NodeId::ROOT);
        assert_eq!(model.path_of(b), Some(vec![b"f".to_vec()]));
    }

    #[test]
    fn a_held_file_outlives_its_name() {
        let mut model = Model::new(0o755, false);
        let f = file(&mut model, NodeId::ROOT, "f");
        model.apply(&Op::Write { node: f, offset: 0, len: 10, append: false }).unwrap();
        model.apply(&Op::Hold { node: f }).unwrap();
        model.apply(&Op::Unlink { dir: NodeId::ROOT, name: "f".into() }).unwrap();
        assert_eq!(model.node(f).content.size(), 10);
        model.apply(&Op::Release { node: f }).unwrap();
        assert!(!model.node(f).alive());
    }
}
