//! After a crash of our own: returning what leaked, while the volume is in use.
//!
//! Soft updates leave leaks at most: bits set for nothing, inodes that no name leads to, link counts that are too high. A scan
//! of the whole volume finds them, in bounded steps:
//!
//! 1. every inode in use is looked at: which blocks does it own?
//! 2. every directory that can be reached from the root is read: which inodes have how many names?
//! 3. interrupted exchanges are undone or completed, their temporary names go, and the scan starts over;
//! 4. a directory that was being moved may have two names: the one that its `..` does not tell of goes; a `..` that tells of
//!    another directory than the one that names it is put right;
//! 5. inodes without names are freed, link counts lowered;
//! 6. blocks that nobody owns are freed.
//!
//! Others work on the volume meanwhile. What they touch is left alone: inodes that were made, named, renamed or unlinked since the
//! mount, blocks handed out or freed since. If a directory moves while names are read the scan starts over, since a
//! whole tree may have been missed. Links that are too many on inodes in use are lowered when the volume is closed.
//!
//! A crash during recovery leaves what the crash before it left, or less.

use moafs_runtime::leaf::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use moafs_runtime::Time;
use moafs_runtime::leaf::Mutex;
use moafs_vfs::Result;
use moafs_vfs::format::{Idle, Progress};
use moafs_vfs::types::{Cookie, FileKind, Name};

use super::dir::hash_of;
use super::incore::Life;
use super::op::{EXCHANGE_PREFIX, parse_exchange_name};
use super::{Ext, Incore};
use crate::format::{GroupNo, Inode, InodeNo, bitmap, map as paths};
use crate::meta::{Freed, Level};

/// Directories read in one step.
const DIRECTORIES_PER_STEP: usize = 64;
/// Inodes judged in one step.
const INODES_PER_STEP: usize = 1024;
/// Pause between steps while the volume is busy.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// Whether leaks are still to be returned, and what must be left alone.
pub(super) struct Recovery {
    active: AtomicBool,
    /// Inodes whose names or existence changed since the mount.
    touched: Mutex<BTreeSet<u32>>,
    /// Directories moved since the mount.
    moves: AtomicU64,
    scan: Mutex<Option<Box<Scan>>>,
    /// Links too many, to be lowered when nobody uses the inodes any more.
    excess: Mutex<BTreeMap<u32, u16>>,
}

/// What the scan knows of an inode.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    links: u16,
    directory: bool,
    /// Names found.
    names: u32,
    /// Directories in it.
    subdirectories: u32,
    /// For directories: where the first name was found.
    parent: u32,
    /// For directories: what `..` names.
    dot_dot: u32,
}

enum Phase {
    Inodes(GroupNo),
    Names,
    Temporaries,
    Parents,
    Judge,
    Blocks(GroupNo),
    Done,
}

struct Scan {
    phase: Phase,
    moves: u64,
    inodes: BTreeMap<u32, Seen>,
    /// Directories still to be read.
    queue: VecDeque<u32>,
    /// Directories found under a second name, and where.
    doubles: Vec<(u32, u32)>,
    /// Owned blocks, a bitmap per group.
    owned: Vec<Vec<u8>>,
    /// Judged up to here.
    judged: u32,
    /// The level at which every directory without a name is gone: what is named in them goes after that.
    unnamed: Level,
}

impl Recovery {
    pub(super) fn new(needed: bool) -> Recovery {
        Recovery {
            active: AtomicBool::new(needed),
            touched: Mutex::new(BTreeSet::new()),
            moves: AtomicU64::new(0),
            scan: Mutex::new(None),
            excess: Mutex::new(BTreeMap::new()),
        }
    }

    /// True while leaks may be left.
    pub(super) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// An inode's names or existence are about to change.
    pub(super) fn touch(&self, ino: InodeNo) {
        if self.is_active() {
            self.touched.lock().insert(ino.0);
        }
    }

    /// A directory is about to move.
    pub(super) fn directory_moves(&self) {
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    fn is_touched(&self, ino: u32) -> bool {
        self.touched.lock().contains(&ino)
    }
}

impl Ext {
    /// One bounded step. When it wants to be called again; never, once all leaks are returned.
    pub(super) fn recover_step(&self, idle: Idle) -> Option<Time> {
        if !self.recovery.is_active() || self.health.failed().is_some() {
            return None;
        }
        let mut scan = self.recovery.scan.lock().take().unwrap_or_else(|| self.new_scan());
        let stepped = self.step(&mut scan);
        if self.health.watch(stepped).is_err() {
            return None;
        }
        if matches!(scan.phase, Phase::Done) {
            self.recovery.active.store(false, Ordering::Relaxed);
            self.alloc.stop_watching();
            return None;
        }
        *self.recovery.scan.lock() = Some(scan);
        let pause = if idle == Idle::Busy { BUSY_PAUSE } else { Duration::ZERO };
        Some(self.rt.now() + pause)
    }

    /// Takes recovery to its end; nobody uses the volume any more.
    pub(super) fn finish_recovery(&self) -> Result<()> {
        while self.recovery.is_active() {
            self.health.check()?;
            self.recover_step(Idle::For(Duration::ZERO));
        }
        let excess = std::mem::take(&mut *self.recovery.excess.lock());
        for (ino, excess) in excess {
            self.lower_links(InodeNo(ino), excess)?;
        }
        Ok(())
    }

    fn new_scan(&self) -> Box<Scan> {
        Box::new(Scan {
            phase: Phase::Inodes(GroupNo(0)),
            moves: self.recovery.moves.load(Ordering::Relaxed),
            inodes: BTreeMap::new(),
            queue: VecDeque::new(),
            doubles: Vec::new(),
            owned: vec![Vec::new(); self.geo.groups as usize],
            judged: 0,
            unnamed: Level::NONE,
        })
    }

    fn step(&self, scan: &mut Scan) -> Result<()> {
        let next = |group: GroupNo| Some(GroupNo(group.0 + 1)).filter(|g| g.0 < self.geo.groups);
        scan.phase = match scan.phase {
            Phase::Inodes(group) => {
                self.look_at_inodes(group, scan)?;
                match next(group) {
                    Some(group) => Phase::Inodes(group),
                    None => {
                        scan.queue.push_back(InodeNo::ROOT.0);
                        Phase::Names
                    }
                }
            }
            Phase::Names => {
                for _ in 0..DIRECTORIES_PER_STEP {
                    let Some(directory) = scan.queue.pop_front() else { break };
                    self.count_names(InodeNo(directory), scan)?;
                }
                if scan.queue.is_empty() { Phase::Temporaries } else { Phase::Names }
            }
            // A tree may have been missed.
            Phase::Temporaries | Phase::Parents | Phase::Judge
                if scan.moves != self.recovery.moves.load(Ordering::Relaxed) =>
            {
                *scan = *self.new_scan();
                Phase::Inodes(GroupNo(0))
            }
            Phase::Temporaries => {
                if self.end_exchanges(scan)? {
                    *scan = *self.new_scan();
                    Phase::Inodes(GroupNo(0))
                } else {
                    Phase::Parents
                }
            }
            Phase::Parents => {
                self.drop_doubles(scan)?;
                self.correct_parents(scan)?;
                self.free_unnamed_directories(scan)?;
                Phase::Judge
            }
            Phase::Judge => {
                if self.judge_some(scan)? {
                    Phase::Blocks(GroupNo(0))
                } else {
                    Phase::Judge
                }
            }
            Phase::Blocks(group) => {
                self.free_unowned(group, &scan.owned[group.0 as usize])?;
                next(group).map_or(Phase::Done, Phase::Blocks)
            }
            Phase::Done => Phase::Done,
        };
        Ok(())
    }

    // -- interrupted exchanges

    /// Ends every interrupted exchange. True if there was one.
    fn end_exchanges(&self, scan: &Scan) -> Result<bool> {
        let home = self.exchange_home()?;
        let mut names: Vec<(Vec<u8>, u32)> = Vec::new();
        self.list_names(&home, Cookie::START, &mut |name, dentry, _| {
            if name.as_bytes().starts_with(EXCHANGE_PREFIX) {
                names.push((name.as_bytes().to_vec(), dentry.ino.0 as u32));
            }
            true
        })?;
        let mut ended = false;
        for (name, ino) in &names {
            let only_name = scan.inodes.get(ino).is_some_and(|seen| seen.names == 1);
            if only_name && !self.put_back(InodeNo(*ino), name, scan)? {
                continue;
            }
            if let Some(name) = Name::new(name) {
                let level = self.remove_name(&home, name, Level(self.names_level.load(Ordering::Relaxed)), true)?;
                self.entries_level.fetch_max(level.0, Ordering::Relaxed);
                ended = true;
            }
        }
        Ok(ended)
    }

    /// The name that an inode lost to an exchange leads to it again, unless that is all that who took it has: then nothing was left to
    /// be done but to remove the temporary name. False if it cannot be found.
    fn put_back(&self, ino: InodeNo, temporary: &[u8], scan: &Scan) -> Result<bool> {
        let Some((dir, hash)) = parse_exchange_name(temporary) else { return Ok(false) };
        let (Ok(dir), Ok(node)) = (self.incore(dir), self.incore(ino)) else { return Ok(false) };
        if dir.kind != FileKind::Directory {
            return Ok(false);
        }
        let mut lost: Option<(Vec<u8>, u32)> = None;
        self.list_names(&dir, Cookie::START, &mut |name, dentry, _| {
            if hash_of(name.as_bytes()) == hash && !matches!(name.as_bytes(), b"." | b"..") {
                lost = Some((name.as_bytes().to_vec(), dentry.ino.0 as u32));
            }
            true
        })?;
        let Some((name, taker)) = lost else { return Ok(false) };
        if scan.inodes.get(&taker).is_some_and(|seen| seen.names == 1) {
            return Ok(true);
        }
        let Some(name) = Name::new(&name) else { return Ok(false) };
        let Some(level) = self.point_name(&dir, name, ino, node.kind, Level::NONE)? else { return Ok(false) };
        self.names_level.fetch_max(level.0, Ordering::Relaxed);
        self.entries_level.fetch_max(level.0, Ordering::Relaxed);
        Ok(true)
    }

    // -- owned blocks

    fn look_at_inodes(&self, group: GroupNo, scan: &mut Scan) -> Result<()> {
        let directories_before = self.alloc.counts(group).directories;
        let in_use = self.alloc.inodes_in_use(group)?;
        let mut directories = 0;
        for index in (0..self.geo.inodes_per_group).filter(|index| bitmap::test(&in_use, *index)) {
            let ino = self.geo.inode_at(group, index);
            let Some(inode) = self.slot(ino)? else { continue };
            let reserved = ino != InodeNo::ROOT && ino.0 < self.geo.first_ino;
            directories += u32::from(inode.is_dir() && !reserved);
            if reserved {
                self.own_blocks(&inode, None, scan)?;
                continue;
            }
            let seen = Seen { links: inode.links, directory: inode.is_dir(), ..Seen::default() };
            scan.inodes.insert(ino.0, seen);
            // A deleted inode's pointers may lead to blocks that have been others' for long: they are not believed.
            if inode.links > 0 {
                let node = self.incore(ino)?;
                let inode = node.inode();
                self.own_blocks(&inode, Some(&node), scan)?;
            }
        }
        self.alloc.count_directories(group, directories_before, directories);
        Ok(())
    }

    /// Marks every block of an inode as owned. `checked` inodes' pointers must be legal; the reserved
    /// inodes own blocks of the volume's own metadata.
    fn own_blocks(&self, inode: &Inode, checked: Option<&Incore>, scan: &mut Scan) -> Result<()> {
        if inode.file_acl != 0 {
            self.own(inode.file_acl.into(), scan);
        }
        let mapped = checked.is_none_or(|node| self.has_pointers(node.kind, inode));
        if !mapped {
            return Ok(());
        }
        for (slot, pointer) in inode.block.into_iter().enumerate() {
            self.own_tree(pointer, paths::level_of_slot(slot), checked, scan)?;
        }
        Ok(())
    }

    fn own_tree(&self, pointer: u32, level: u8, checked: Option<&Incore>, scan: &mut Scan) -> Result<()> {
        if pointer == 0 {
            return Ok(());
        }
        match checked {
            Some(node) => drop(self.checked(node, level + 1, None, pointer, 1)?),
            None if u64::from(pointer) >= self.geo.blocks => return Ok(()),
            None => {}
        }
        self.own(pointer.into(), scan);
        if level > 0 {
            for below in self.pointers_in(pointer.into())? {
                self.own_tree(below, level - 1, checked, scan)?;
            }
        }
        Ok(())
    }

    fn own(&self, block: u64, scan: &mut Scan) {
        if let Some((group, bit)) = self.geo.bit_of_block(crate::format::BlockNo(block)) {
            let owned = &mut scan.owned[group.0 as usize];
            if owned.is_empty() {
                owned.resize(self.geo.block_bytes(), 0);
            }
            bitmap::set(owned, bit);
        }
    }

    // -- names

    fn count_names(&self, directory: InodeNo, scan: &mut Scan) -> Result<()> {
        // A directory that has gone meanwhile was touched.
        let Ok(node) = self.incore(directory) else { return Ok(()) };
        if node.kind != FileKind::Directory || node.state.lock().inode.links == 0 {
            return Ok(());
        }
        let (mut subdirectories, mut dot_dot) = (0, 0);
        let Scan { inodes, queue, doubles, .. } = scan;
        self.list_names(&node, Cookie::START, &mut |name, dentry, _| {
            if name.as_bytes() == b".." {
                dot_dot = dentry.ino.0 as u32;
            }
            if matches!(name.as_bytes(), b"." | b"..") {
                return true;
            }
            if let Some(seen) = inodes.get_mut(&(dentry.ino.0 as u32)) {
                seen.names += 1;
                subdirectories += u32::from(seen.directory);
                if seen.directory && seen.names == 1 {
                    seen.parent = directory.0;
                    queue.push_back(dentry.ino.0 as u32);
                } else if seen.directory {
                    doubles.push((dentry.ino.0 as u32, directory.0));
                }
            }
            true
        })?;
        if let Some(seen) = inodes.get_mut(&directory.0) {
            seen.subdirectories += subdirectories;
            seen.dot_dot = dot_dot;
        }
        Ok(())
    }

    /// Directories with two names keep one: that of the parent that `..` names.
    fn drop_doubles(&self, scan: &mut Scan) -> Result<()> {
        for (ino, second) in std::mem::take(&mut scan.doubles) {
            let first = scan.inodes.get(&ino).map_or(second, |seen| seen.parent);
            if [ino, first, second].into_iter().any(|ino| self.recovery.is_touched(ino)) {
                continue;
            }
            let keep_second = first != second && scan.inodes.get(&ino).is_some_and(|seen| seen.dot_dot == second);
            if let (true, Some(seen)) = (keep_second, scan.inodes.get_mut(&ino)) {
                seen.parent = second;
            }
            let loser = if keep_second { first } else { second };
            let dropped = self.drop_one_name(InodeNo(loser), ino, first == second)?;
            if let Some(seen) = scan.inodes.get_mut(&loser) {
                seen.subdirectories -= u32::from(dropped);
            }
        }
        Ok(())
    }

    /// `..` names the directory that names this one.
    fn correct_parents(&self, scan: &Scan) -> Result<()> {
        let dot_dot = Name::new(b"..").expect("a legal name");
        for (ino, seen) in &scan.inodes {
            let wrong = seen.directory && seen.names > 0 && seen.dot_dot != seen.parent;
            if wrong && !self.recovery.is_touched(*ino) {
                let node = self.incore(InodeNo(*ino))?;
                self.point_name(&node, dot_dot, InodeNo(seen.parent), FileKind::Directory, Level::NONE)?;
            }
        }
        Ok(())
    }

    /// Removes a name of `child` from a directory; if it has two there, the second.
    fn drop_one_name(&self, directory: InodeNo, child: u32, keep_first: bool) -> Result<bool> {
        let dir = self.incore(directory)?;
        let mut names: Vec<Vec<u8>> = Vec::new();
        self.list_names(&dir, Cookie::START, &mut |name, dentry, _| {
            if dentry.ino.0 == u64::from(child) && !matches!(name.as_bytes(), b"." | b"..") {
                names.push(name.as_bytes().to_vec());
            }
            true
        })?;
        let Some(name) = names.get(usize::from(keep_first)).and_then(|name| Name::new(name)) else { return Ok(false) };
        let level = self.remove_name(&dir, name, Level::NONE, true)?;
        self.entries_level.fetch_max(level.0, Ordering::Relaxed);
        Ok(true)
    }

    // -- judgement

    /// Judges some inodes. True when all are.
    fn judge_some(&self, scan: &mut Scan) -> Result<bool> {
        let some: Vec<(u32, Seen)> =
            scan.inodes.range(scan.judged..).take(INODES_PER_STEP).map(|(i, s)| (*i, *s)).collect();
        for (ino, seen) in &some {
            if !self.recovery.is_touched(*ino) {
                self.judge(InodeNo(*ino), *seen, scan.unnamed)?;
            }
        }
        match some.last() {
            Some((ino, _)) => scan.judged = ino + 1,
            None => return Ok(true),
        }
        Ok(false)
    }

    fn judge(&self, ino: InodeNo, seen: Seen, unnamed: Level) -> Result<()> {
        if seen.names == 0 && ino != InodeNo::ROOT {
            return match (seen.links, seen.directory) {
                (0, directory) => self.alloc.free(Level::NONE, Freed::Inode { ino: ino.0, directory }),
                // Freed with the others of its tree, or in use.
                (_, true) => Ok(()),
                (_, false) => self.free_unnamed(self.incore(ino)?, unnamed).map(drop),
            };
        }
        let links = if seen.directory { 2 + seen.subdirectories } else { seen.names };
        let excess = u32::from(seen.links).saturating_sub(links).min(u16::MAX.into()) as u16;
        // Directories with too many subdirectories to count have one link.
        if excess > 0 && seen.links > 1 {
            self.recovery.excess.lock().insert(ino.0, excess);
        }
        Ok(())
    }

    /// Frees directories that nothing leads to, parents before children: a name never leads to an inode that is gone.
    fn free_unnamed_directories(&self, scan: &mut Scan) -> Result<()> {
        let unnamed = |(ino, seen): (&u32, &Seen)| {
            let gone = seen.directory && seen.links > 0 && seen.names == 0 && *ino != InodeNo::ROOT.0;
            (gone && !self.recovery.is_touched(*ino)).then_some(*ino)
        };
        let mut left: BTreeSet<u32> = scan.inodes.iter().filter_map(unnamed).collect();
        let dot_dot = Name::new(b"..").expect("a legal name");
        let mut gone: BTreeMap<u32, Level> = BTreeMap::new();
        while let Some(&start) = left.first() {
            // Up to the topmost of them; a directory is left for good once it was looked at, so loops end.
            let mut way = Vec::new();
            let mut at = start;
            while left.remove(&at) {
                let node = self.incore(InodeNo(at))?;
                let parent = self.find_name(&node, dot_dot)?;
                way.push(node);
                at = parent.map_or(0, |found| found.ino.0);
            }
            let mut above = gone.get(&at).copied().unwrap_or_default();
            for node in way.into_iter().rev() {
                let ino = node.ino.0;
                above = self.free_unnamed(node, above)?;
                gone.insert(ino, above);
            }
        }
        scan.unnamed = gone.into_values().max().unwrap_or_default();
        Ok(())
    }

    /// Frees an inode that is sound but has no name: made, but not named before the power went.
    fn free_unnamed(&self, node: Arc<Incore>, needs: Level) -> Result<Level> {
        // Somebody got hold of it by number: next time.
        if Arc::strong_count(&node) > 1 {
            return Ok(Level::NONE);
        }
        self.delete(&node, needs)
    }

    /// Marks an inode as deleted, after `needs`, and frees what it owns. The level of the deletion.
    fn delete(&self, node: &Arc<Incore>, needs: Level) -> Result<Level> {
        let table = self.table_block(&node.at)?;
        let level = {
            let mut state = node.state.lock();
            state.inode.links = 0;
            state.inode.dtime = self.rt.timestamp().secs.clamp(1, u32::MAX.into()) as u32;
            let level = self.write_slot(&table, node, &mut state, needs, |_, _| {});
            state.life = Life::Orphan(level);
            level
        };
        while self.clear_pointers_of(node)? == Progress::More {}
        let file_acl = node.state.lock().inode.file_acl;
        if file_acl != 0 {
            self.release_xattr_block(node, file_acl, level)?;
        }
        self.drop_index(node);
        self.forget_node(node);
        self.alloc.free(level, Freed::Inode { ino: node.ino.0, directory: node.kind == FileKind::Directory })?;
        Ok(level)
    }

    fn lower_links(&self, ino: InodeNo, excess: u16) -> Result<()> {
        let Ok(node) = self.incore(ino) else { return Ok(()) };
        let links = {
            let mut state = node.state.lock();
            state.inode.links = state.inode.links.saturating_sub(excess);
            state.inode.links
        };
        if links == 0 { self.delete(&node, Level::NONE).map(drop) } else { self.store(&node).map(drop) }
    }

    // -- unowned blocks

    fn free_unowned(&self, group: GroupNo, owned: &[u8]) -> Result<()> {
        let start = self.geo.group_start(group).0;
        let bits = self.geo.group_blocks(group);
        let leaked = self.alloc.unchanged_in_use(group)?;
        for bit in 0..bits {
            let is_owned = !owned.is_empty() && bitmap::test(owned, bit);
            let block = start + u64::from(bit);
            if bitmap::test(&leaked, bit) && !is_owned && !self.alloc.is_fixed(block, 1) {
                self.alloc.free(Level::NONE, Freed::Data { start: block, len: 1 })?;
            }
        }
        Ok(())
    }
}
