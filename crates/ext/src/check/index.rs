//! Pass 1: the index of a directory: each leaf is named once, and holds only names whose hashes belong there.
//!
//! A damaged index is given up: its nodes become ordinary blocks without names. The names are all in the leaves.

use moafs_disk::Buf;

use super::checker::Checker;
use super::error::CheckError;
use super::issue::Issue;
use super::mapped::Mapped;
use super::scan::Blocks;
use crate::format::dir::{self, Form};
use crate::format::htree::{self, Hasher, IndexEntry};
use crate::format::inode::InodeFlags;
use crate::format::{BlockNo, Inode, InodeNo, Owner, Place, Sealed, Structure, bitmap};

/// The end of a walk over an index.
enum Fault {
    /// A rule that is broken, in words.
    Broken(String),
    Failed(CheckError),
}

impl From<CheckError> for Fault {
    fn from(error: CheckError) -> Fault {
        Fault::Failed(error)
    }
}

impl Checker<'_> {
    pub(super) fn check_index(&mut self, ino: InodeNo, inode: &mut Inode, mapped: &Mapped) -> Result<(), CheckError> {
        let blocks: Vec<BlockNo> = mapped.blocks().map(|(_, block)| block).collect();
        let problem = match self.walk_index(ino, &blocks) {
            Ok(()) => return Ok(()),
            Err(Fault::Failed(error)) => return Err(error),
            Err(Fault::Broken(problem)) => problem,
        };
        if self.log.found(Issue::IndexDamaged { inode: ino, problem }) {
            self.give_up_index(ino, inode, mapped)?;
        }
        Ok(())
    }

    pub(super) fn give_up_index(&mut self, ino: InodeNo, inode: &mut Inode, mapped: &Mapped) -> Result<(), CheckError> {
        if !inode.flags.contains(InodeFlags::INDEX) {
            return Ok(());
        }
        inode.flags.remove(InodeFlags::INDEX);
        let blocks: Vec<BlockNo> = mapped.blocks().map(|(_, block)| block).collect();
        self.make_linear(inode.owner(ino), &blocks)
    }

    /// Makes the directory an ordinary one: its index may not fit what a repair leaves.
    pub(super) fn drop_index(&mut self, directory: InodeNo) -> Result<(), CheckError> {
        let (_, inode) = self.read_inode(directory)?;
        if !inode.flags.contains(InodeFlags::INDEX) {
            return Ok(());
        }
        self.change_inode(directory, |inode| inode.flags.remove(InodeFlags::INDEX))?;
        let blocks: Vec<BlockNo> = self.dirs[&directory.0].blocks.iter().map(|(_, block)| *block).collect();
        self.make_linear(inode.owner(directory), &blocks)
    }

    /// Makes blocks without names of the nodes of an index. Without checksums they are that as they are.
    fn make_linear(&self, owner: Owner, blocks: &[BlockNo]) -> Result<(), CheckError> {
        let form = Form::of(&self.geo);
        if !form.has_tail {
            return Ok(());
        }
        for (lbn, block) in blocks.iter().enumerate() {
            let page = self.volume.read(*block)?;
            let what = dir::sealed(&page, lbn as u64, true, owner);
            if matches!(what, Sealed::Leaf(_)) {
                continue;
            }
            let mut contents = Buf::copy_of(&page);
            dir::make_linear(&mut contents, form, lbn == 0);
            self.volume.write_sealed(*block, Sealed::Leaf(owner), contents);
        }
        Ok(())
    }

    fn walk_index(&self, ino: InodeNo, blocks: &[BlockNo]) -> Result<(), Fault> {
        let first = *blocks.first().ok_or_else(|| Fault::Broken("it has no root".to_owned()))?;
        let form = Form::of(&self.geo);
        let page = self.volume.read(first)?;
        let place = Place::of(Structure::Index { inode: ino, lbn: 0 });
        let levels_max = htree::edit::levels_max(&self.superblock);
        let (info, top) = htree::root(&page, levels_max, place).map_err(|damage| Fault::Broken(damage.problem))?;
        // Higher numbers are names for the signedness of characters in `s_flags`; they are never on
        // a volume.
        let hasher = Hasher::of(info.hash_version, &self.superblock).filter(|_| info.hash_version <= 2);
        let Some(hasher) = hasher else {
            return Err(Fault::Broken(format!("block 0: hash version {}, should be 0 to 2", info.hash_version)));
        };
        htree::check_limit(&page, form, true).map_err(Fault::Broken)?;
        let mut names = dir::records(&page, form).map_while(Result::ok).map(|entry| entry.name);
        if names.next() != Some(b".") || names.next() != Some(b"..") {
            return Err(Fault::Broken("block 0 does not begin with '.' and '..'".to_owned()));
        }
        let seen = vec![0u8; blocks.len().div_ceil(8)];
        let mut walk = Walk { checker: self, ino, form, blocks, seen, leaves: Vec::new() };
        bitmap::set(&mut walk.seen, 0);
        walk.descend(&top, info.levels)?;
        walk.check_leaves(hasher)
    }
}

/// A walk over an index.
struct Walk<'a> {
    checker: &'a Checker<'a>,
    ino: InodeNo,
    form: Form,
    /// The directory's blocks, in order.
    blocks: &'a [BlockNo],
    /// The blocks that were named so far, a bit each.
    seen: Vec<u8>,
    leaves: Vec<IndexEntry>,
}

impl Walk<'_> {
    /// Collects the leaves below a node that has `levels` levels of nodes below it. Every block is met once, so the
    /// walk ends.
    fn descend(&mut self, entries: &[IndexEntry], levels: u8) -> Result<(), Fault> {
        for entry in entries {
            let lbn = entry.block;
            let Some(block) = self.blocks.get(lbn as usize) else {
                return Err(Fault::Broken(format!("it names block {lbn}, beyond the end")));
            };
            if !bitmap::set(&mut self.seen, lbn) {
                return Err(Fault::Broken(format!("it names block {lbn} twice")));
            }
            if levels == 0 {
                self.leaves.push(*entry);
                continue;
            }
            let page = self.checker.volume.read(*block)?;
            htree::check_limit(&page, self.form, false)
                .map_err(|problem| Fault::Broken(format!("block {lbn}: {problem}")))?;
            let place = Place::of(Structure::Index { inode: self.ino, lbn: lbn.into() });
            let mut below = htree::node(&page, place).map_err(|damage| Fault::Broken(damage.problem))?;
            // The first entry of a node has no hash of its own.
            below[0].hash = entry.hash;
            self.descend(&below, levels - 1)?;
        }
        Ok(())
    }

    fn check_leaves(&self, hasher: Hasher) -> Result<(), Fault> {
        for (i, leaf) in self.leaves.iter().enumerate() {
            let end = self.leaves.get(i + 1).map_or(u32::MAX, |next| next.hash);
            if leaf.hash > end {
                return Err(Fault::Broken("its hashes are out of order".to_owned()));
            }
            let page = self.checker.volume.read(self.blocks[leaf.block as usize])?;
            for record in dir::records(&page, self.form) {
                let entry = record.map_err(|bad| Fault::Broken(format!("block {}: {bad}", leaf.block)))?;
                let hash = hasher.hash(entry.name).major;
                if entry.is_used() && (hash < leaf.hash & !1 || hash > end) {
                    let problem = format!("a name in block {} has a hash that belongs elsewhere", leaf.block);
                    return Err(Fault::Broken(problem));
                }
            }
        }
        match bitmap::first_zero(&self.seen, 0, self.blocks.len() as u32) {
            Some(block) => Err(Fault::Broken(format!("it does not name block {block}"))),
            None => Ok(()),
        }
    }
}
