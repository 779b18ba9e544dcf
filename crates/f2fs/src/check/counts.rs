//! Pass 4: connection of every directory to the root, link counts, orphans and the checkpoint's
//! counts.

use std::collections::{BTreeMap, BTreeSet};

use moafs_vfs::types::FileKind;

use super::Issue;
use super::checker::{Checker, DirInfo, InodeState, Tell};
use super::issue::Count;
use crate::format::{Nid, Segno};

/// Links of a directory without subdirectories: its name, and its `.`.
const DIRECTORY_LINKS: u32 = 2;

impl Checker<'_> {
    pub(super) fn check_counts(&mut self, tell: Tell<'_>) {
        let total = self.inodes.len() as u64;
        tell(4, 0, total);
        self.check_root();
        self.check_parents();
        self.check_quota_files();
        let orphans: BTreeSet<Nid> = self.pack.orphans.iter().copied().collect();
        for orphan in &orphans {
            if self.inode_index(*orphan).is_none() {
                self.found(Issue::OrphanUnused { inode: *orphan });
            }
        }
        for index in 0..self.inodes.len() {
            let state = self.inodes[index];
            self.check_links(&state, orphans.contains(&state.ino));
        }
        self.check_segments();
        self.check_sections();
        self.check_totals();
        tell(4, total, total);
    }

    fn check_root(&mut self) {
        let root = self.inode_index(Nid::ROOT).and_then(|index| self.inodes[index].kind);
        if root != Some(FileKind::Directory) {
            self.found(Issue::RootNotDirectory);
        }
    }

    /// Checks that `..` is the parent, and that the parents lead to the root (or to a directory
    /// without a name).
    fn check_parents(&mut self) {
        let dirs: Vec<Nid> = self.dirs.keys().copied().collect();
        let mut connected = BTreeSet::from([Nid::ROOT]);
        for ino in dirs {
            let info = self.dirs[&ino];
            let parent = if ino == Nid::ROOT { Some(ino) } else { info.parent };
            if let (Some(parent), Some(stored)) = (parent, info.dot_dot)
                && stored != parent
            {
                self.found(Issue::DotDotWrong { directory: ino, stored, parent });
            }
            self.check_carried_parent(ino, &info);
            if self.ends_in_a_circle(ino, &mut connected) {
                self.found(Issue::DirectoryLoop { inode: ino });
            }
        }
    }

    /// Checks that a directory carries the parent that it has, or that `..` names if it has no name. The root carries
    /// any.
    fn check_carried_parent(&mut self, directory: Nid, info: &DirInfo) {
        let (Some(index), Some(dot_dot)) = (self.inode_index(directory), info.dot_dot) else { return };
        let (stored, parent) = (self.inodes[index].pino, info.parent.unwrap_or(dot_dot));
        if directory != Nid::ROOT && stored != parent {
            self.found(Issue::ParentWrong { directory, stored, parent });
        }
    }

    /// Checks that the superblock's quota files exist, whether or not the volume keeps quota.
    fn check_quota_files(&mut self) {
        for (index, ino) in self.superblock.qf_ino.into_iter().enumerate().filter(|(_, ino)| *ino != 0) {
            let inode = Nid(ino);
            let state = self.inode_index(inode).map(|at| self.inodes[at].kind);
            let problem = match state {
                None => "is not in use",
                Some(Some(kind)) if kind != FileKind::Regular => "is not a regular file",
                // A damaged inode was reported as such.
                Some(_) => continue,
            };
            self.found(Issue::QuotaInode { index, inode, problem });
        }
    }

    /// Follows a directory's parents until one that is known; all on the way are known afterwards.
    fn ends_in_a_circle(&self, from: Nid, connected: &mut BTreeSet<Nid>) -> bool {
        let mut way = BTreeSet::new();
        let mut at = from;
        let circle = loop {
            if connected.contains(&at) {
                break false;
            }
            if !way.insert(at) {
                break true;
            }
            match self.dirs.get(&at).and_then(|info| info.parent) {
                Some(parent) => at = parent,
                None => break false,
            }
        };
        connected.extend(way);
        circle
    }

    fn check_links(&mut self, state: &InodeState, orphan: bool) {
        let InodeState { ino, links: stored, names, kind, .. } = *state;
        if orphan && names > 0 {
            self.found(Issue::OrphanNamed { inode: ino, names });
        }
        let Some(kind) = kind else { return };
        if ino != Nid::ROOT && self.superblock.is_reserved(ino) {
            return;
        }
        if names == 0 && !orphan && ino != Nid::ROOT {
            self.found(Issue::Unattached { inode: ino });
            return;
        }
        let subdirs = self.dirs.get(&ino).map_or(0, |info| info.subdirs);
        let counted = match kind {
            _ if orphan => names,
            FileKind::Directory => DIRECTORY_LINKS + subdirs,
            _ => names,
        };
        if stored != counted {
            self.found(Issue::LinkCount { inode: ino, stored, counted });
        }
    }

    fn check_segments(&mut self) {
        let segments = std::mem::take(&mut self.segments);
        for (segno, segment) in &segments {
            let unused = || segment.valid.iter_set().filter(|offset| !segment.reached.get(*offset));
            if let Some(first) = unused().next() {
                let (blocks, first) = (unused().count() as u32, self.geo.block_of(*segno, first));
                self.found(Issue::Leaked { segment: *segno, blocks, first });
            }
            if let (Some(stored), 1..) = (segment.log, segment.misfits) {
                self.found(Issue::Temperature { segment: *segno, stored, blocks: segment.misfits });
            }
        }
        self.segments = segments;
    }

    /// Tells of sections in which segments of nodes and of data are in use.
    fn check_sections(&mut self) {
        let mut sections: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
        for (segno, segment) in self.segments.iter().filter(|(_, segment)| !segment.valid.is_empty()) {
            let Some(log) = segment.log else { continue };
            let (nodes, data) = sections.entry(self.geo.section_of(*segno)).or_default();
            *(if log.is_node() { nodes } else { data }) += 1;
        }
        for (section, (nodes, data)) in sections.into_iter().filter(|(_, (nodes, data))| *nodes > 0 && *data > 0) {
            self.found(Issue::MixedSection { section, nodes, data });
        }
    }

    fn check_totals(&mut self) {
        let checkpoint = &self.pack.checkpoint;
        let current: BTreeSet<Segno> = checkpoint.current.iter().map(|current| current.segno).collect();
        let used = self.segments.iter().filter(|(_, segment)| !segment.valid.is_empty());
        let not_free = used.map(|(segno, _)| *segno).chain(current).collect::<BTreeSet<_>>().len() as u64;
        let counts = [
            (Count::ValidBlocks, checkpoint.valid_blocks, self.reached_blocks + self.promised_blocks),
            (Count::ValidNodes, checkpoint.valid_nodes.into(), self.nodes_used),
            (Count::ValidInodes, checkpoint.valid_inodes.into(), self.inodes.len() as u64),
            (Count::FreeSegments, checkpoint.free_segments.into(), u64::from(self.geo.segments) - not_free),
        ];
        for (count, stored, counted) in counts.into_iter().filter(|(_, stored, counted)| stored != counted) {
            self.found(Issue::Count { count, stored, counted });
        }
    }
}
