//! The states that a volume may show after a power cut, given all operations before it.
//!
//! The whole model is kept after every operation. At a cut, a completed `sync` or `fsync` is a promise about its part
//! of the tree; later operations may or may not be on the disk. So each promised thing has a set of acceptable states:
//! the one promised and all later ones.
//!
//! * **bytes**: each 512-byte sector of a file shows what one of the acceptable versions has there
//!   (zeros beyond a version's end); the size lies between the smallest and the largest. An
//!   unpromised file starts as an empty one, so it may also show zeros, but never bytes that it
//!   never had: another file's bytes are always a failure.
//! * **names**: each name is bound to something that it was bound to since its promise.
//! * **reachability**: a promised file that had a name all the time since is found under one of
//!   them. A rename loses neither.
//! * **attributes**: mode, owner, group, and each extended attribute are an acceptable version's.
//! * **one moment** ([`Expectation::of_one_moment`]): a format that commits everything at once keeps more than that.
//!   All names together are those of one state, the last one committed; only regular files that were fsynced later may
//!   have come to their names already.

use std::collections::{BTreeMap, BTreeSet};

use moafs_vfs::types::FileKind;

use crate::model::{Model, Node, NodeId};
use crate::ops::Op;
use crate::stamp;
use crate::tree::{LOST_AND_FOUND, Seen, Tree};

/// One finished operation.
#[derive(Debug, Clone)]
pub struct Step {
    /// The operation.
    pub op: Op,
    /// Length of the device's log when it started.
    pub start: usize,
    /// Length of the device's log when it returned.
    pub end: usize,
    /// The model after it.
    pub after: Model,
    /// The promise that its success makes.
    pub promise: Option<Promise>,
}

/// The promise of a successful call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// Everything (sync).
    All,
    /// This file, or this directory with its names, and the names that lead to it (fsync).
    Node(NodeId),
    /// This file's bytes, and the names that lead to it (fdatasync).
    Data(NodeId),
}

/// Prefix of root names that belong to the use of the volume after the crash.
pub const USE_PREFIX: &[u8] = b"use.";

/// All operations on a volume, from a durable start on.
#[derive(Debug, Clone)]
pub struct History {
    /// The tree at the start, which is durable.
    pub start: Model,
    /// The operations in order.
    pub steps: Vec<Step>,
    /// Inode numbers of nodes.
    pub inos: BTreeMap<NodeId, u64>,
}

/// The acceptable states at one cut.
pub struct Expectation<'a> {
    /// The models from the start up to the operation that the cut interrupted.
    states: Vec<&'a Model>,
    inos: &'a BTreeMap<NodeId, u64>,
    /// State from which on the contents and attributes of a node are promised; absent if they are not.
    content_since: BTreeMap<NodeId, usize>,
    attr_since: BTreeMap<NodeId, usize>,
    /// State from which on a node must be reachable.
    exists_since: BTreeMap<NodeId, usize>,
    /// State from which on a name's binding is promised.
    name_since: BTreeMap<(NodeId, Vec<u8>), usize>,
    /// State from which on all names of a directory, absent ones included, are promised.
    names_since: BTreeMap<NodeId, usize>,
    /// State from which on everything is promised.
    all_since: usize,
    /// Nodes that were fsynced, each with the state; the last of these calls may not have returned.
    fsynced: Vec<(NodeId, usize)>,
    /// True if all names must be of one moment.
    one_moment: bool,
    /// True if a file that was only renamed has no name more than before.
    renames_are_whole: bool,
    /// Slack of sizes, in bytes: after a repair a file may end at a block's end.
    size_slack: u64,
}

impl History {
    /// Creates a history that starts with a durable tree.
    pub fn new(start: Model) -> History {
        History { start, steps: Vec::new(), inos: BTreeMap::new() }
    }

    /// Returns the acceptable states if power is lost when the device's log has `cut` events.
    pub fn at(&self, cut: usize) -> Expectation<'_> {
        let mut states = vec![&self.start];
        states.extend(self.steps.iter().take_while(|step| step.start < cut || step.end <= cut).map(|step| &step.after));
        let mut expectation = Expectation {
            states,
            inos: &self.inos,
            content_since: BTreeMap::new(),
            attr_since: BTreeMap::new(),
            exists_since: BTreeMap::new(),
            name_since: BTreeMap::new(),
            names_since: BTreeMap::new(),
            all_since: 0,
            fsynced: Vec::new(),
            one_moment: false,
            renames_are_whole: false,
            size_slack: 0,
        };
        expectation.promise(Promise::All, 0);
        let begun = expectation.states.len() - 1;
        for (index, step) in self.steps[..begun].iter().enumerate() {
            if let (true, Some(promise)) = (step.end <= cut, step.promise) {
                expectation.promise(promise, index + 1);
            }
            // A call that the power cut interrupted, or that failed, promises nothing, but its file may be durable
            // already.
            if let Op::Fsync { node, .. } = step.op {
                expectation.fsynced.push((node, index + 1));
            }
        }
        expectation
    }
}

impl<'a> Expectation<'a> {
    /// Allows sizes up to the end of their last block: `e2fsck -y` leaves these after an interrupted append. It takes
    /// both names of an interrupted rename for links.
    pub fn after_repair(mut self, block_size: u64) -> Self {
        self.size_slack = block_size;
        self.renames_are_whole = false;
        self
    }

    /// Demands that all names together are those of one moment, as a format keeps them that commits everything at once.
    pub fn of_one_moment(mut self) -> Self {
        self.one_moment = true;
        self
    }

    /// Demands that a rename that the cut interrupted has happened or has not: a file whose link count has not changed
    /// since everything was promised has no names more than that.
    pub fn with_whole_renames(mut self) -> Self {
        self.renames_are_whole = true;
        self
    }

    fn promise(&mut self, promise: Promise, state: usize) {
        let model = self.states[state];
        match promise {
            Promise::All => {
                self.all_since = state;
                for (id, node) in model.living() {
                    self.promise_node(id, state);
                    if node.nlink > 0 {
                        self.exists_since.insert(id, state);
                    }
                }
            }
            Promise::Node(id) => {
                self.promise_node(id, state);
                self.promise_names(model, id, state, true);
            }
            Promise::Data(id) => {
                self.content_since.insert(id, state);
                self.promise_names(model, id, state, false);
            }
        }
    }

    fn promise_node(&mut self, id: NodeId, state: usize) {
        self.content_since.insert(id, state);
        self.attr_since.insert(id, state);
        let model = self.states[state];
        if model.node(id).is_dir() {
            self.names_since.insert(id, state);
            for (name, child) in &model.node(id).entries {
                self.name_since.insert((id, name.clone()), state);
                self.exists_since.insert(*child, state);
            }
        }
    }

    /// Promises the names of a node, and with `above` those of everything above it. (fdatasync promises that the bytes
    /// can be reached: a directory above may still be found where it was before it moved.)
    fn promise_names(&mut self, model: &Model, id: NodeId, state: usize, above: bool) {
        let file = id;
        let mut todo = vec![id];
        let mut seen = BTreeSet::new();
        while let Some(id) = todo.pop() {
            let names = model.names_of(id);
            if !seen.insert(id) || (names.is_empty() && id != NodeId::ROOT) {
                continue;
            }
            self.exists_since.insert(id, state);
            for (dir, name) in names {
                if above || id == file {
                    self.name_since.insert((dir, name), state);
                }
                todo.push(dir);
            }
        }
    }

    fn binding_since(&self, dir: NodeId, name: &[u8]) -> usize {
        let own = self.name_since.get(&(dir, name.to_vec())).copied().unwrap_or(0);
        own.max(self.names_since.get(&dir).copied().unwrap_or(0))
    }

    /// Returns every fault of the tree that a volume shows.
    pub fn violations(&self, tree: &Tree) -> Vec<String> {
        let mut judge = Judge::new(self, tree);
        judge.walk();
        if self.renames_are_whole {
            judge.whole_renames();
        }
        judge.missing_names();
        judge.unreachable();
        if self.one_moment {
            judge.one_moment();
        }
        judge.said
    }
}

struct Judge<'a> {
    expect: &'a Expectation<'a>,
    tree: &'a Tree,
    said: Vec<String>,
    /// Paths at which nodes were found.
    found: BTreeMap<NodeId, String>,
    /// The names outside of lost+found that led to each node, by its inode number as seen.
    names: BTreeMap<(NodeId, u64), Vec<String>>,
}

impl<'a> Judge<'a> {
    fn new(expect: &'a Expectation<'a>, tree: &'a Tree) -> Judge<'a> {
        Judge { expect, tree, said: Vec::new(), found: BTreeMap::new(), names: BTreeMap::new() }
    }
    /// Returns the newest state of a node.
    fn newest(&self, id: NodeId) -> Option<&Node> {
        self.expect.states.iter().rev().find_map(|model| model.get(id))
    }

    fn path_in_words(&self, id: NodeId) -> String {
        let mut paths = self.expect.states.iter().rev().filter(|model| model.get(id).is_some());
        let path = paths.find_map(|model| model.path_of(id));
        path.map(|path| crate::drive::path_in_words(&path)).unwrap_or_default()
    }

    /// Follows the names of the tree. A name must lead to a node it was bound to since its promise.
    fn walk(&mut self) {
        let mut todo = vec![(NodeId::ROOT, self.tree.root, String::from("/"))];
        while let Some((id, ino, path)) = todo.pop() {
            let Some(seen) = self.tree.nodes.get(&ino) else { continue };
            let first = self.found.insert(id, path.clone()).is_none();
            if !first {
                continue;
            }
            self.node(id, seen, &path);
            for (name, ino) in &seen.entries {
                if id == NodeId::ROOT && name == LOST_AND_FOUND {
                    todo.extend(self.lost_and_found(*ino));
                    continue;
                }
                if id == NodeId::ROOT && name.starts_with(USE_PREFIX) {
                    continue;
                }
                let path = format!("{path}{}/", name.escape_ascii());
                match self.bound_to(id, name, *ino) {
                    Some(child) => {
                        self.names.entry((child, *ino)).or_default().push(path.clone());
                        todo.push((child, *ino, path));
                    }
                    None => self.said.push(format!("{path} leads to inode {ino}, which it was never bound to")),
                }
            }
        }
    }

    /// Returns the newest node with this inode number that the name was bound to since its promise. The number of a
    /// node whose creation returned an error is unknown: it may be any. A number that was freed may have been given to
    /// another node of the same name: then it is the newest one of which an acceptable version is seen.
    fn bound_to(&self, dir: NodeId, name: &[u8], ino: u64) -> Option<NodeId> {
        let mut known: Vec<NodeId> =
            self.bindings(dir, name).filter(|id| self.expect.inos.get(id) == Some(&ino)).collect();
        known.dedup();
        let unnumbered = || self.bindings(dir, name).find(|id| !self.expect.inos.contains_key(id));
        self.newest_shown_by(&known, ino).or_else(unnumbered)
    }

    /// Returns the nodes that a name was bound to since its promise, the newest first.
    fn bindings<'n>(&'n self, dir: NodeId, name: &'n [u8]) -> impl Iterator<Item = NodeId> + 'n {
        let states = self.expect.states[self.expect.binding_since(dir, name)..].iter().rev();
        states.filter_map(move |model| model.get(dir)?.entries.get(name).copied())
    }

    /// Returns the newest of nodes that had an inode number one after the other, newest first, of which an acceptable
    /// version is seen, or else the newest.
    fn newest_shown_by(&self, nodes: &[NodeId], ino: u64) -> Option<NodeId> {
        match nodes {
            [] => None,
            [only] => Some(*only),
            [newest, ..] => Some(nodes.iter().find(|id| self.is_shown_by(**id, ino)).copied().unwrap_or(*newest)),
        }
    }

    /// Returns true if the inode shows an acceptable version of a node, and of a directory only names that it had.
    fn is_shown_by(&self, id: NodeId, ino: u64) -> bool {
        let Some(seen) = self.tree.nodes.get(&ino) else { return false };
        let mut trial = Judge::new(self.expect, self.tree);
        trial.node(id, seen, "");
        let is_own = |child: NodeId, ino: u64| self.expect.inos.get(&child).is_none_or(|number| *number == ino);
        let had = |name: &[u8], ino: u64| self.bindings(id, name).any(|child| is_own(child, ino));
        trial.said.is_empty() && seen.entries.iter().all(|(name, ino)| had(name, *ino))
    }

    /// Takes entries of lost+found, put there by a repair or an interrupted exchange, as found, and directories with
    /// all below them. The owner of a file's contents there is not certain: its inode number may have been another
    /// file's before.
    fn lost_and_found(&mut self, ino: u64) -> Vec<(NodeId, u64, String)> {
        let Some(dir) = self.tree.nodes.get(&ino) else { return Vec::new() };
        let mut certain = Vec::new();
        for (name, ino) in &dir.entries {
            let path = format!("/lost+found/{}/", name.escape_ascii());
            let owns = |(id, number): &(&NodeId, &u64)| *number == ino && self.newest(**id).is_some();
            let owners: Vec<NodeId> = self.expect.inos.iter().rev().filter(owns).map(|(id, _)| *id).collect();
            let Some(owner) = self.newest_shown_by(&owners, *ino) else { continue };
            // The number may have been another client's, or that of a directory whose creation the cut interrupted.
            if self.newest(owner).is_some_and(Node::is_dir) && self.is_shown_by(owner, *ino) {
                certain.push((owner, *ino, path));
            } else {
                self.found.entry(owner).or_insert(path);
            }
        }
        certain
    }

    /// Reports files that were only renamed and have a name too many.
    fn whole_renames(&mut self) {
        for ((id, _), names) in &self.names {
            let states = self.expect.states[self.expect.all_since..].iter();
            let mut versions = states.filter_map(|model| model.get(*id));
            let Some(first) = versions.next().filter(|node| !node.is_dir()) else { continue };
            let always = versions.all(|node| node.nlink == first.nlink);
            if always && names.len() > first.nlink as usize {
                self.said.push(format!("file #{} was renamed and has both names: {}", id.0, names.join(" and ")));
            }
        }
    }

    /// Reports missing names whose every acceptable binding is some node.
    fn missing_names(&mut self) {
        for (dir, name) in self.expect.name_since.keys() {
            let since = self.expect.binding_since(*dir, name);
            let states = &self.expect.states[since..];
            let optional = states.iter().any(|model| model.get(*dir).is_none_or(|d| !d.entries.contains_key(name)));
            if optional {
                continue;
            }
            let dir_ino = self.expect.inos.get(dir).copied().unwrap_or(self.tree.root);
            let here = self.tree.nodes.get(&dir_ino).is_some_and(|seen| seen.entries.contains_key(name));
            if !here && !self.moved_by_repair(*dir, name, since) {
                let words = format!("name {:?} in directory #{}", name.escape_ascii().to_string(), dir.0);
                self.said.push(format!("{words} is gone, though it was promised and never removed"));
            }
        }
    }

    /// Returns true if a repair may have moved a name. In the middle of an exchange of directories one of them has two
    /// names. `e2fsck -y` keeps the one it meets first: the temporary one, since lost+found is the lowest inode.
    fn moved_by_repair(&self, dir: NodeId, name: &[u8], since: usize) -> bool {
        let bindings = self.expect.states[since..].iter().filter_map(|model| model.get(dir)?.entries.get(name));
        let nodes: BTreeSet<NodeId> = bindings.copied().collect();
        let in_lost_and_found = |id: &NodeId| self.found.get(id).is_some_and(|path| path.starts_with("/lost+found/"));
        let directories = nodes.iter().any(|id| self.newest(*id).is_some_and(Node::is_dir));
        self.expect.size_slack > 0 && nodes.len() > 1 && directories && nodes.iter().any(in_lost_and_found)
    }

    /// Reports promised nodes that had a name all the time and are not found.
    fn unreachable(&mut self) {
        for (id, since) in &self.expect.exists_since {
            let states = &self.expect.states[*since..];
            let always_named = states.iter().all(|model| model.get(*id).is_none_or(|node| node.nlink > 0));
            if always_named && !self.found.contains_key(id) {
                self.said.push(format!("file #{} ({}) is lost with all its names", id.0, self.path_in_words(*id)));
            }
        }
    }

    /// Checks that some state since everything was promised explains every name. If none does, reports the names that
    /// the best one leaves open.
    fn one_moment(&mut self) {
        let mut fewest: Option<Vec<String>> = None;
        for moment in self.expect.all_since..self.expect.states.len() {
            let unexplained = self.unexplained_names(moment);
            if unexplained.is_empty() {
                return;
            }
            if fewest.as_ref().is_none_or(|fewest| unexplained.len() < fewest.len()) {
                fewest = Some(unexplained);
            }
        }
        for name in fewest.unwrap_or_default() {
            self.said.push(format!("the names are of no one moment: {name}"));
        }
    }

    /// Returns the names that are not as in state `moment`, though the roll-forward of a later fsync does not explain
    /// them.
    fn unexplained_names(&self, moment: usize) -> Vec<String> {
        let model = self.expect.states[moment];
        let mut unexplained = Vec::new();
        let mut todo = vec![(NodeId::ROOT, self.tree.root, String::from("/"))];
        while let Some((dir, ino, path)) = todo.pop() {
            let (Some(node), Some(seen)) = (model.get(dir), self.tree.nodes.get(&ino)) else { continue };
            let foreign =
                |name: &Vec<u8>| dir == NodeId::ROOT && (name == LOST_AND_FOUND || name.starts_with(USE_PREFIX));
            let names: BTreeSet<&Vec<u8>> = node.entries.keys().chain(seen.entries.keys()).collect();
            for name in names.into_iter().filter(|name| !foreign(name)) {
                let path = format!("{path}{}/", name.escape_ascii());
                let (is, should) = (seen.entries.get(name), node.entries.get(name));
                match (is, should) {
                    (Some(ino), Some(child)) if self.may_be(*child, *ino) => todo.push((*child, *ino, path)),
                    (Some(ino), _) if self.rolled_forward(dir, name, *ino, moment) => {}
                    _ => unexplained.push(format!("{path} is {is:?} after operation {moment}")),
                }
            }
        }
        unexplained
    }

    /// Returns true if this is the node's number, or its number is unknown because its creation returned an error.
    fn may_be(&self, id: NodeId, ino: u64) -> bool {
        self.expect.inos.get(&id).is_none_or(|known| *known == ino)
    }

    fn rolled_forward(&self, dir: NodeId, name: &[u8], ino: u64, moment: usize) -> bool {
        // The candidates are found first, since that is cheap.
        let later = self.expect.fsynced.iter().filter(|(id, state)| *state > moment && self.may_be(*id, ino));
        later.into_iter().any(|(id, state)| {
            let bound = self.expect.states[*state].get(dir).and_then(|dir| dir.entries.get(name));
            bound == Some(id)
        })
    }

    /// Returns the acceptable versions. A dead node has none: its name is removed before its bytes are.
    fn versions(&self, id: NodeId, since: Option<usize>) -> Vec<&Node> {
        let states = self.expect.states[since.unwrap_or(0)..].iter();
        states.filter_map(|model| model.get(id)).filter(|node| node.alive()).collect()
    }

    fn node(&mut self, id: NodeId, seen: &Seen, path: &str) {
        let Some(newest) = self.newest(id) else { return };
        let (kind, wrong_target) = (newest.kind, newest.target != seen.target);
        if kind != seen.kind {
            self.said.push(format!("{path} is a {:?}, should be a {kind:?}", seen.kind));
            return;
        }
        if kind == FileKind::Symlink && wrong_target {
            self.said.push(format!("{path} points to {:?}", seen.target.escape_ascii().to_string()));
        }
        if kind == FileKind::Regular {
            self.content(id, seen, path);
        }
        self.attributes(id, seen, path);
    }

    fn attributes(&mut self, id: NodeId, seen: &Seen, path: &str) {
        let since = self.expect.attr_since.get(&id).copied();
        let versions = self.versions(id, since);
        let fits = |node: &&Node| (node.perm, node.uid, node.gid) == (seen.perm, seen.uid, seen.gid);
        let mut said = Vec::new();
        // Attributes change in one inode write: one version has them all.
        if !versions.iter().any(fits) {
            said.push(format!(
                "{path} (file #{}) has mode {:o}, owner {}:{}: no acceptable version (promised: {})",
                id.0,
                seen.perm,
                seen.uid,
                seen.gid,
                since.is_some()
            ));
        }
        let mut names: BTreeSet<&Vec<u8>> = seen.xattrs.keys().collect();
        names.extend(versions.iter().flat_map(|node| node.xattrs.keys()));
        for name in names {
            let is = seen.xattrs.get(name);
            let new_and_unpromised = since.is_none() && is.is_none();
            if !new_and_unpromised && !versions.iter().any(|node| node.xattrs.get(name) == is) {
                said.push(format!("{path}: xattr {} has no acceptable value", name.escape_ascii()));
            }
        }
        self.said.extend(said);
    }

    fn content(&mut self, id: NodeId, seen: &Seen, path: &str) {
        let since = self.expect.content_since.get(&id).copied();
        let versions = self.versions(id, since);
        let sizes = || versions.iter().map(|node| node.content.size());
        let low = if since.is_some() { sizes().min().unwrap_or(0) } else { 0 };
        let high = sizes().max().unwrap_or(0);
        let slack = self.expect.size_slack;
        let highest = if slack == 0 { high } else { high.next_multiple_of(slack) };
        let size = seen.content.size();
        let mut said = Vec::new();
        if !(low..=highest).contains(&size) {
            said.push(format!("{path} (file #{}) has {size} bytes, should have {low} to {highest}", id.0));
        }
        let mut ranges: Vec<(u64, u64)> = seen.content.ranges();
        ranges.extend(versions.iter().flat_map(|node| node.content.ranges()));
        ranges.sort_unstable();
        ranges.dedup();
        for (start, len) in ranges {
            let end = (start + len).min(size);
            for at in (start..end).step_by(stamp::SECTOR) {
                let len = (end - at).min(stamp::SECTOR as u64) as usize;
                if let Some(wrong) = wrong_sector(&versions, since.is_some(), seen, at, len) {
                    said.push(format!("{path} (file #{}) byte {at}: {wrong}", id.0));
                }
            }
        }
        said.truncate(4);
        self.said.extend(said);
    }
}

/// Describes a sector that no acceptable version has.
fn wrong_sector(versions: &[&Node], promised: bool, seen: &Seen, at: u64, len: usize) -> Option<String> {
    let (mut is, mut should) = ([0; stamp::SECTOR], [0; stamp::SECTOR]);
    seen.content.read(at, &mut is[..len]);
    let zeros = is[..len].iter().all(|b| *b == 0);
    if zeros && !promised {
        return None;
    }
    let fits = versions.iter().any(|node| {
        node.content.read(at, &mut should[..len]);
        is[..len] == should[..len]
    });
    (!fits).then(|| {
        let promised = if promised { "promised" } else { "not promised" };
        format!(
            "shows {}, no acceptable version has that ({promised}, last version: {})",
            stamp::describe(&is[..len]),
            stamp::describe(&should[..len])
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use moafs_vfs::api::RenameMode;

    /// Creates a history without a device: operation n takes log entries 10n to 10n + 5.
    fn history(ops: &[Op]) -> History {
        let mut model = Model::new(0o755, false);
        let mut history = History::new(model.clone());
        history.inos.insert(NodeId::ROOT, 3);
        for (number, op) in ops.iter().enumerate() {
            if let Ok(crate::model::Outcome::Made(id)) = model.apply(op) {
                history.inos.insert(id, 100 + id.0 as u64);
            }
            let promise = match op {
                Op::Fsync { node, .. } => Some(Promise::Node(*node)),
                Op::Sync => Some(Promise::All),
                _ => None,
            };
            let (start, end) = (10 * number, 10 * number + 5);
            history.steps.push(Step { op: op.clone(), start, end, after: model.clone(), promise });
        }
        history
    }

    /// Returns the tree that shows exactly this model.
    fn shown(model: &Model, history: &History) -> Tree {
        let ino = |id: &NodeId| history.inos[id];
        let see = |(id, node): (NodeId, &Node)| {
            let seen = Seen {
                kind: node.kind,
                perm: node.perm,
                uid: node.uid,
                gid: node.gid,
                nlink: node.nlink,
                content: node.content.clone(),
                target: node.target.clone(),
                rdev: node.rdev,
                mtime: moafs_runtime::Timestamp { secs: 0, nanos: 0 },
                xattrs: node.xattrs.clone(),
                entries: node.entries.iter().map(|(name, id)| (name.clone(), ino(id))).collect(),
            };
            (ino(&id), seen)
        };
        Tree { root: 3, nodes: model.living().map(see).collect() }
    }

    fn rename(from: &str, to: &str) -> Op {
        let (from, to) = ((NodeId::ROOT, from.into()), (NodeId::ROOT, to.into()));
        Op::Rename { from, to, mode: RenameMode::Replace }
    }

    fn write(node: usize) -> Op {
        Op::Write { node: NodeId(node), offset: 0, len: 1000, append: false }
    }

    #[test]
    fn every_state_since_a_sync_is_of_one_moment_and_a_mixture_is_not() {
        let ops = [
            Op::create(NodeId::ROOT, "a"),
            Op::create(NodeId::ROOT, "b"),
            Op::Sync,
            rename("a", "a2"),
            rename("b", "b2"),
        ];
        let history = history(&ops);
        let violations = |model: &Model| history.at(48).of_one_moment().violations(&shown(model, &history));
        for step in &history.steps[2..] {
            assert_eq!(violations(&step.after), Vec::<String>::new(), "{:?}", step.op);
        }
        assert!(!violations(&history.start).is_empty(), "what was synced is lost");
        let mut mixture = history.steps[2].after.clone();
        mixture.apply(&ops[4]).unwrap();
        assert!(history.at(48).violations(&shown(&mixture, &history)).is_empty(), "each name by itself is right");
        assert!(!violations(&mixture).is_empty(), "b moved before a did");
    }

    #[test]
    fn a_file_that_was_only_renamed_has_one_name_and_one_that_was_linked_may_have_both() {
        let link = Op::Link { node: NodeId(1), dir: NodeId::ROOT, name: "b".into() };
        let with = |change: Op| {
            let history = history(&[Op::create(NodeId::ROOT, "a"), Op::Sync, change]);
            let mut both = history.steps[1].after.clone();
            both.apply(&link).unwrap();
            let tree = shown(&both, &history);
            (history.at(22).violations(&tree), history.at(22).with_whole_renames().violations(&tree))
        };
        let (each, whole) = with(rename("a", "b"));
        assert_eq!((each.len(), whole.len()), (0, 1), "{whole:?}");
        assert_eq!(with(link.clone()), (Vec::new(), Vec::new()));
    }

    #[test]
    fn a_number_that_was_freed_may_be_another_file_of_the_same_name() {
        let chmod = |node| Op::SetPerm { node: NodeId(node), perm: 0o600 + node as u32 };
        let remove = Op::Unlink { dir: NodeId::ROOT, name: "a".into() };
        let create = || Op::create(NodeId::ROOT, "a");
        let mut history = history(&[create(), chmod(1), remove, create(), chmod(2)]);
        history.inos.insert(NodeId(2), history.inos[&NodeId(1)]);
        let violations = |model: &Model| history.at(45).of_one_moment().violations(&shown(model, &history));
        for step in &history.steps {
            assert_eq!(violations(&step.after), Vec::<String>::new(), "{:?}", step.op);
        }
        let mut neither = history.steps[1].after.clone();
        neither.apply(&Op::SetPerm { node: NodeId(1), perm: 0o611 }).unwrap();
        assert!(!violations(&neither).is_empty());
    }

    /// An exchange keeps a name in lost+found for a while; later the file is removed, and its number is given to
    /// another.
    #[test]
    fn a_file_in_lost_and_found_counts_as_found_though_its_number_was_given_away_later() {
        let ops = [
            Op::create(NodeId::ROOT, "a"),
            Op::Sync,
            rename("a", "b"),
            Op::Unlink { dir: NodeId::ROOT, name: "b".into() },
            Op::create(NodeId::ROOT, "c"),
        ];
        let mut history = history(&ops);
        history.inos.insert(NodeId(2), history.inos[&NodeId(1)]);
        let mut tree = shown(&history.steps[1].after, &history);
        let root = tree.nodes.get_mut(&3).unwrap();
        let (ino, lost) = (root.entries.remove(&b"a"[..]).unwrap(), 11);
        root.entries.insert(LOST_AND_FOUND.to_vec(), lost);
        let mut dir = root.clone();
        dir.entries = BTreeMap::from([(b".moafs-exchange".to_vec(), ino)]);
        tree.nodes.insert(lost, dir);
        assert_eq!(history.at(22).violations(&tree), Vec::<String>::new());
        tree.nodes.get_mut(&lost).unwrap().entries.clear();
        assert!(!history.at(22).violations(&tree).is_empty(), "it has no name at all");
    }

    #[test]
    fn a_fsynced_file_comes_forward_alone_and_must_come() {
        let ops = [Op::Sync, Op::create(NodeId::ROOT, "a"), Op::create(NodeId::ROOT, "b"), write(2)];
        let fsync = Op::Fsync { node: NodeId(2), data_only: false };
        let history = history(&[&ops[..], &[fsync]].concat());
        let mut only_b = history.steps[3].after.clone();
        only_b.apply(&Op::Unlink { dir: NodeId::ROOT, name: "a".into() }).unwrap();
        let violations =
            |cut: usize, model: &Model| history.at(cut).of_one_moment().violations(&shown(model, &history));
        assert_eq!(violations(45, &only_b), Vec::<String>::new(), "rolled forward");
        assert_eq!(violations(42, &only_b), Vec::<String>::new(), "the chain may be whole before fsync returns");
        assert_eq!(violations(42, &history.start), Vec::<String>::new(), "or not");
        let mut interrupted = history.clone();
        *interrupted.steps.last_mut().unwrap() =
            Step { end: usize::MAX, promise: None, ..interrupted.steps[4].clone() };
        let said = interrupted.at(42).of_one_moment().violations(&shown(&only_b, &interrupted));
        assert_eq!(said, Vec::<String>::new(), "nor need it ever return for that");
        assert!(!violations(45, &history.start).is_empty(), "it was fsynced");
        assert!(!violations(35, &only_b).is_empty(), "nobody asked for b yet");
    }
}
