//! The differences between a tree and the model.

use std::collections::{BTreeMap, BTreeSet};

use super::{LOST_AND_FOUND, Seen, Tree, first_difference};
use crate::model::{Model, Node, NodeId};

/// Returns all differences between the model and the tree, in words; at most a handful per file. Names that reach one
/// inode in the model must reach one inode in the tree.
pub fn differences(model: &Model, tree: &Tree) -> Vec<String> {
    let mut compare = Compare { said: Vec::new(), pairs: BTreeMap::new() };
    let mut todo = vec![(NodeId::ROOT, tree.root, String::from("/"))];
    let mut visited = BTreeSet::new();
    while let Some((id, ino, path)) = todo.pop() {
        compare.pair(id, ino, &path);
        if !visited.insert(id) {
            continue;
        }
        let Some(seen) = tree.nodes.get(&ino) else { continue };
        compare.node(model.node(id), seen, &path);
        todo.extend(compare.entries(model.node(id), seen, &path));
    }
    compare.said
}

struct Compare {
    said: Vec<String>,
    pairs: BTreeMap<u64, NodeId>,
}

impl Compare {
    fn pair(&mut self, id: NodeId, ino: u64, path: &str) {
        let paired = *self.pairs.entry(ino).or_insert(id);
        if paired != id {
            self.said.push(format!("{path}: inode {ino} is file #{} here and #{} elsewhere", id.0, paired.0));
        }
    }

    fn entries(&mut self, node: &Node, seen: &Seen, path: &str) -> Vec<(NodeId, u64, String)> {
        let is_root = path == "/";
        let mut below = Vec::new();
        for (name, id) in &node.entries {
            let path = format!("{path}{}/", name.escape_ascii());
            match seen.entries.get(name) {
                Some(ino) => below.push((*id, *ino, path)),
                None => self.said.push(format!("{path} is missing (file #{})", id.0)),
            }
        }
        for name in seen.entries.keys().filter(|name| !node.entries.contains_key(*name)) {
            if !(is_root && name == LOST_AND_FOUND) {
                self.said.push(format!("{path}{} should not be there", name.escape_ascii()));
            }
        }
        below
    }

    fn node(&mut self, node: &Node, seen: &Seen, path: &str) {
        let mut differ = |what: &str, should: &dyn std::fmt::Debug, is: &dyn std::fmt::Debug| {
            self.said.push(format!("{path}: {what} is {is:?}, should be {should:?}"));
        };
        if node.kind != seen.kind {
            differ("kind", &node.kind, &seen.kind);
            return;
        }
        // The root's lost+found is a subdirectory that the model does not know.
        let extra = u32::from(path == "/" && seen.entries.contains_key(LOST_AND_FOUND));
        for (what, should, is) in [
            ("mode", u64::from(node.perm), u64::from(seen.perm)),
            ("owner", u64::from(node.uid), u64::from(seen.uid)),
            ("group", u64::from(node.gid), u64::from(seen.gid)),
            ("link count", u64::from(node.nlink + extra), u64::from(seen.nlink)),
            ("device", node.rdev, seen.rdev),
            ("size", node.content.size(), seen.content.size()),
        ] {
            if should != is {
                differ(what, &should, &is);
            }
        }
        if node.target != seen.target {
            differ("target", &node.target.escape_ascii().to_string(), &seen.target.escape_ascii().to_string());
        }
        if node.xattrs != seen.xattrs {
            let words = |xattrs: &BTreeMap<Vec<u8>, Vec<u8>>| -> Vec<String> {
                xattrs.iter().map(|(name, value)| format!("{} ({} bytes)", name.escape_ascii(), value.len())).collect()
            };
            differ("xattrs", &words(&node.xattrs), &words(&seen.xattrs));
        }
        if node.mtime.is_some_and(|mtime| mtime != seen.mtime) {
            differ("mtime", &node.mtime, &seen.mtime);
        }
        if let Some(difference) = first_difference(&node.content, &seen.content) {
            self.said.push(format!("{path}: {difference}"));
        }
    }
}
