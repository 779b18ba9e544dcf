//! Looking at inodes: their link counts, the blocks they own, and repairs of inodes that an
//! interrupted append or truncation left.

use moafs_vfs::Result;
use moafs_vfs::format::Progress;
use moafs_vfs::types::FileKind;

use super::state::GROUP_COST;
use crate::engine::volume::Ext;
use crate::format::inode::InodeFlags;
use crate::format::{BlockNo, GroupNo, Inode, InodeNo, Place, Structure, bitmap, map as paths};
use crate::health::damaged;
use crate::meta::{Freed, Level};

/// Inodes whose maps are looked at before the pass may pause.
const MAPS_AT_ONCE: u32 = 64;

/// A walk through the map of one inode.
struct Walk {
    ino: InodeNo,
    /// The block of the inode table, for messages.
    table: BlockNo,
    /// Logical blocks from here on lie beyond the end.
    end: u64,
    /// Number of blocks found, of data and of pointers.
    counted: u64,
    /// Number of blocks of pointers read.
    read: u32,
    /// True if a block lies beyond the end.
    overhangs: bool,
    /// True for a reserved inode: its blocks are the volume's own, and not judged.
    reserved: bool,
}

impl Ext {
    /// Looks at an inode whose turn is taken: notes its facts and the blocks it owns, repairs its
    /// map, and, if it is a directory and `names` are wanted, notes the names in it. Does nothing
    /// if that was done before.
    pub(super) fn visit(&self, ino: InodeNo, names: bool) -> Result<()> {
        self.visit_counting(ino, names).map(drop)
    }

    fn visit_counting(&self, ino: InodeNo, names: bool) -> Result<u32> {
        self.note_facts(ino)?;
        self.recovery.known.lock().visiting.insert(ino.0);
        let visited = self.visit_unknown(ino, names);
        self.recovery.known.lock().visiting.remove(&ino.0);
        visited
    }

    fn visit_unknown(&self, ino: InodeNo, names: bool) -> Result<u32> {
        let (mapped, unread) = {
            let known = self.recovery.known.lock();
            (known.is_mapped(ino.0), names && known.is_directory(ino.0) && !known.is_read(ino.0))
        };
        let mut cost = 0;
        if !mapped {
            cost = self.visit_map(ino)?;
            self.recovery.known.lock().set_mapped(ino.0);
        }
        if unread {
            let dot_dot = self.note_names(ino)?;
            self.recovery.known.lock().dot_dots.insert(ino.0, dot_dot);
        }
        Ok(cost)
    }

    /// Notes the link count and kind of an inode, once.
    pub(super) fn note_facts(&self, ino: InodeNo) -> Result<()> {
        if self.recovery.known.lock().has_facts(ino.0) {
            return Ok(());
        }
        // Every change of an inode passes through here first: while this lock is held the inode
        // does not change.
        let _one = self.recovery.facts.lock();
        if self.recovery.known.lock().has_facts(ino.0) {
            return Ok(());
        }
        if let Some(inode) = self.slot(ino)? {
            self.recovery.known.lock().note_facts(ino.0, &inode);
        }
        Ok(())
    }

    // -- phase Slots

    /// Notes the facts of all inodes of a group. Frees those that are deleted on disk with their
    /// bit still set. Returns the cost.
    pub(super) fn note_slots(&self, group: GroupNo) -> Result<u32> {
        let in_use = self.alloc.unchanged_inodes(group)?;
        let mut looked = 0;
        for index in (0..self.geo.inodes_per_group).filter(|index| bitmap::test(&in_use, *index)) {
            let ino = self.geo.inode_at(group, index);
            if self.is_reserved(ino) {
                continue;
            }
            looked += 1;
            self.note_facts(ino)?;
            let deleted = self.slot(ino)?.is_some_and(|inode| inode.links == 0);
            // If it was deleted through the mount, it was noted as touched before.
            if deleted && !self.recovery.known.lock().is_touched(ino.0) {
                self.alloc.free(Level::NONE, Freed::Inode { ino: ino.0, directory: false })?;
            }
        }
        let (stored, counted) = {
            let known = self.recovery.known.lock();
            (known.directories_stored[group.0 as usize], known.directories_in(group))
        };
        self.alloc.correct_directories(group, stored, counted);
        self.recovery.known.lock().directories_stored[group.0 as usize] = counted;
        Ok(looked + GROUP_COST)
    }

    pub(super) fn is_reserved(&self, ino: InodeNo) -> bool {
        ino != InodeNo::ROOT && ino.0 < self.geo.first_ino
    }

    // -- phase Maps

    /// Looks at some inodes of a group that were not looked at yet, from the one at `from` on.
    /// Returns the cost, and the index to go on at.
    pub(super) fn note_maps(&self, group: GroupNo, from: u32) -> Result<(u32, Option<u32>)> {
        let in_use = self.alloc.unchanged_inodes(group)?;
        let mut cost = 1;
        for index in (from..self.geo.inodes_per_group).filter(|index| bitmap::test(&in_use, *index)) {
            if cost > MAPS_AT_ONCE {
                return Ok((cost, Some(index)));
            }
            let ino = self.geo.inode_at(group, index);
            let _turn = self.recovery.turn(ino);
            cost += 1 + self.visit_counting(ino, false)?;
        }
        Ok((cost + GROUP_COST, None))
    }

    /// Notes the blocks that an inode owns, and repairs its map. Returns how many blocks of
    /// pointers were read.
    fn visit_map(&self, ino: InodeNo) -> Result<u32> {
        let Some(at) = self.slot_at(ino) else { return Ok(0) };
        let reserved = self.is_reserved(ino);
        let Some(inode) = self.slot(ino)? else { return Ok(0) };
        // The pointers of a deleted inode may lead to blocks that other inodes have owned for long:
        // they are not believed.
        if inode.links == 0 && !reserved {
            return Ok(0);
        }
        let kind = if reserved { FileKind::Regular } else { self.sound_kind(ino, at.block)? };
        let end = inode.size.div_ceil(self.geo.block_size.into());
        let mut walk = Walk { ino, table: at.block, end, counted: 0, read: 0, overhangs: false, reserved };
        if inode.file_acl != 0 {
            walk.counted += 1;
            self.note_attribute_block(ino, inode.file_acl)?;
        }
        if self.has_pointers(kind, &inode) {
            for (slot, pointer) in inode.block.into_iter().enumerate() {
                let first = paths::first_lbn_of_slot(slot, self.geo.apb);
                self.walk_tree(&mut walk, pointer, paths::level_of_slot(slot), first)?;
            }
        }
        let mends = matches!(kind, FileKind::Regular | FileKind::Directory) && !reserved;
        if mends && (walk.overhangs || walk.counted * self.blocks_unit(&inode) != inode.blocks) {
            self.mend_map(&walk)?;
        }
        Ok(walk.read)
    }

    /// Notes that an inode refers to an attribute block, which it may share with others.
    pub(super) fn note_attribute_block(&self, ino: InodeNo, block: u64) -> Result<()> {
        if self.is_reserved(ino) {
            self.recovery.known.lock().own(block);
            return Ok(());
        }
        let references = self.xattr_references(ino, block)?;
        if self.recovery.known.lock().own_attributes(block, references) {
            return Ok(());
        }
        let place = Place::new(Structure::XattrBlock(ino), BlockNo(block));
        Err(damaged(place.damage("it belongs to another owner as well, and not as a block of attributes")))
    }

    /// Returns the kind of an inode in use, if it is sound.
    fn sound_kind(&self, ino: InodeNo, table: BlockNo) -> Result<FileKind> {
        let at = self.slot_at(ino).expect("the caller has found it");
        let block = self.table_block(&at)?;
        let bytes = self.slot_bytes(&block, &at);
        let inode = Inode::decode(&bytes, ino, &self.geo, table).map_err(damaged)?;
        Ok(inode.kind().expect("it was decoded"))
    }

    /// Returns the number that one block counts in `i_blocks`.
    fn blocks_unit(&self, inode: &Inode) -> u64 {
        let huge = self.geo.huge_file && inode.flags.contains(InodeFlags::HUGE_FILE);
        if huge { 1 } else { self.geo.sectors_per_block().into() }
    }

    /// Notes a block and all below it; `first` is the first logical block that it maps.
    fn walk_tree(&self, walk: &mut Walk, pointer: u32, level: u8, first: u64) -> Result<()> {
        if pointer == 0 {
            return Ok(());
        }
        let block = u64::from(pointer);
        if walk.reserved && block >= self.geo.blocks {
            return Ok(());
        }
        if !walk.reserved && self.alloc.is_fixed(block, 1) {
            let what = format!("it points to block {block}, which is outside the volume or the volume's own metadata");
            return Err(walk.damage(what));
        }
        if !self.recovery.known.lock().own(block) {
            // The same check keeps blocks of pointers from leading in a circle.
            let what = format!("block {block} belongs to it and to another owner");
            return if walk.reserved { Ok(()) } else { Err(walk.damage(what)) };
        }
        walk.counted += 1;
        walk.overhangs |= first >= walk.end;
        if level == 0 {
            return Ok(());
        }
        walk.read += 1;
        let span = paths::span(level - 1, self.geo.apb);
        for (below, first) in self.pointers_in(block)?.into_iter().zip((0..).map(|index| first + index * span)) {
            self.walk_tree(walk, below, level - 1, first)?;
        }
        Ok(())
    }

    /// Frees the blocks beyond the end of a file, and corrects its block count. The size stays:
    /// bytes beyond it were never promised to be there.
    fn mend_map(&self, walk: &Walk) -> Result<()> {
        let node = self.incore(walk.ino)?;
        {
            let mut state = node.state.lock();
            state.inode.blocks = walk.counted * self.blocks_unit(&state.inode);
        }
        if !walk.overhangs {
            return self.store(&node).map(drop);
        }
        while self.clear_pointers(&node, walk.end, u64::MAX, u32::MAX, false)? == Progress::More {}
        Ok(())
    }
}

impl Walk {
    fn damage(&self, what: String) -> moafs_vfs::Error {
        damaged(Place::new(Structure::Inode(self.ino), self.table).damage(what))
    }
}
