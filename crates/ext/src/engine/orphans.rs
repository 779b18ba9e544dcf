//! The orphan list of volumes with a journal: inodes that have no name any more, and files that are being truncated.
//!
//! Both need more than one transaction, or wait until a program closes the file. The list on the disk says what to
//! finish after a crash: it begins in the superblock (`s_last_orphan`), and each member's `i_dtime` names the next. A
//! member without links is deleted; one with links loses the blocks beyond its end. An inode joins the list in the
//! transaction that takes its last name, or lowers its size, and leaves it in the one that frees its last block.
//!
//! On volumes with the feature orphan_file other drivers keep such inodes in a file. Its members are moved to the list
//! when the volume is mounted; it stays empty from then on.
//!
//! A crash after the removal of many files leaves a long list: as long as the volume has inodes, at most. A mount looks
//! through all of it before it changes anything, and then finishes a portion from its head at a time, so that neither
//! takes memory for the whole list.

use std::sync::Arc;

use moafs_disk::{Cause, DiskExt, Kind, Lba, Tag};
use moafs_vfs::format::{Admission, FormatOp, OpKind, Progress};
use moafs_vfs::types::{FileKind, Lbn, Mapping};
use moafs_vfs::{Error, Result};

use super::incore::{Incore, Life, SlotAt};
use super::op::ExtOp;
use super::volume::Ext;
use crate::format::checksum::{ORPHAN_MAGIC, ORPHAN_TAIL_BYTES};
use crate::format::inode::InodeFlags;
use crate::format::superblock::RoCompat;
use crate::format::{BlockNo, Geometry, Inode, InodeNo, Sealed, Superblock, bitmap, put_u32, u32_at};
use crate::meta::{Block, Level};

impl Ext {
    /// Puts an inode at the head of the list, unless it is a member, and stores its slot.
    pub(super) fn add_orphan(&self, node: &Arc<Incore>) -> Result<Level> {
        let mut list = self.orphans.lock();
        let head = self.superblock.lock().last_orphan();
        let is_new = {
            let mut state = node.state.lock();
            let is_new = !std::mem::replace(&mut state.is_listed, true);
            if is_new {
                state.inode.dtime = head;
            }
            is_new
        };
        if is_new {
            list.push(Arc::clone(node));
            self.store_orphan_head(node.ino.0)?;
        }
        self.store(node)
    }

    /// Takes an inode off the list; its `i_dtime` becomes `dtime`. The caller stores its slot.
    pub(super) fn remove_orphan(&self, node: &Incore, dtime: u32) -> Result<()> {
        let mut list = self.orphans.lock();
        let next = {
            let mut state = node.state.lock();
            if !std::mem::replace(&mut state.is_listed, false) {
                return Ok(());
            }
            std::mem::replace(&mut state.inode.dtime, dtime)
        };
        let Some(at) = list.iter().rposition(|member| std::ptr::eq(&**member, node)) else {
            debug_assert!(false, "inode {} is marked as listed, and is not", node.ino.0);
            return Ok(());
        };
        list.remove(at);
        let Some(before) = list.get(at) else { return self.store_orphan_head(next) };
        before.state.lock().inode.dtime = next;
        self.store(before).map(drop)
    }

    /// Stores the head of the list.
    fn store_orphan_head(&self, head: u32) -> Result<()> {
        self.change_superblock(|superblock| superblock.set_last_orphan(head)).map(drop)
    }

    /// Finishes what the list says that a crash has interrupted. Called before any client is served.
    ///
    /// # Errors
    /// [`Error::Refused`] if the list leads somewhere else than to inodes: then nothing was changed; damage and device
    /// errors.
    pub(super) fn finish_orphans(&self) -> Result<()> {
        self.check_orphans()?;
        loop {
            let portion = self.read_orphans()?;
            if portion.is_empty() {
                break;
            }
            self.orphans.lock().extend(portion.iter().rev().map(Arc::clone));
            portion.iter().try_for_each(|node| self.finish_orphan(node))?;
            self.meta.shrink(METADATA_BYTES_MAX);
        }
        if self.superblock.lock().ro_compat().contains(RoCompat::ORPHAN_PRESENT) {
            self.empty_orphan_file()?;
        }
        Ok(())
    }

    /// Moves the members of the orphan file, which other drivers use in place of the list, to the list, and finishes
    /// them.
    fn empty_orphan_file(&self) -> Result<()> {
        let ino = InodeNo(self.superblock.lock().orphan_file_inum());
        let refused = |problem: String| {
            Error::Refused(format!(
                "the file of deleted and truncated files (inode {ino}) is damaged: {problem}; run `moafs fsck -y` or `e2fsck -fy`"
            ))
        };
        let file = self.incore(ino).map_err(|error| refused(error.to_string()))?;
        let (blocks, owner) = (file.inode().size / u64::from(self.geo.block_size), file.owner());
        if blocks > self.geo.blocks {
            return Err(refused(format!("it has {blocks} blocks, the volume {}", self.geo.blocks)));
        }
        for lbn in 0..blocks {
            let Mapping::Run(run) = self.map_run(&file, Lbn(lbn), 1)? else {
                return Err(refused(format!("its block {lbn} is a hole")));
            };
            let block = self.meta.get(run.start.0, Kind::Map)?;
            let what = Sealed::OrphanFile(owner, BlockNo(block.no));
            block.view(|bytes| orphan_block(&self.geo, what, bytes)).map_err(refused)?;
            self.empty_orphan_block(&block, what)?;
        }
        let mut admission = Admission::none();
        let op = self.begin_op(OpKind::Unmap, &mut admission)?;
        let clear = |superblock: &mut Superblock| {
            superblock.set_ro_compat(superblock.ro_compat() - RoCompat::ORPHAN_PRESENT);
        };
        let cleared = self.change_superblock(clear);
        op.end();
        cleared.map(drop)
    }

    /// Moves the members in one block of the orphan file to the list, some at a time, and finishes them.
    fn empty_orphan_block(&self, block: &Arc<Block>, what: Sealed) -> Result<()> {
        let slots = (self.geo.block_bytes() - ORPHAN_TAIL_BYTES) / 4;
        let used = |bytes: &[u8]| (0..slots).filter(|slot| u32_at(bytes, 4 * slot) != 0).collect::<Vec<_>>();
        for slots in block.view(used).chunks(ORPHANS_PER_OP) {
            let mut admission = Admission::none();
            let op = self.begin_op(OpKind::Unmap, &mut admission)?;
            for slot in slots {
                self.adopt_orphan(InodeNo(block.view(|bytes| u32_at(bytes, 4 * slot))))?;
            }
            let mut image = block.view(<[u8]>::to_vec);
            slots.iter().for_each(|slot| put_u32(&mut image, 4 * slot, 0));
            let sealed = self.geo.checksums.seal(what, &mut image);
            debug_assert!(sealed.is_ok(), "blocks of the orphan file have a place for their checksum");
            self.meta.change(block, 0..image.len(), Level::NONE, |bytes| bytes.copy_from_slice(&image));
            op.end();
            let adopted: Vec<_> = self.orphans.lock().iter().rev().map(Arc::clone).collect();
            adopted.iter().try_for_each(|node| self.finish_orphan(node))?;
        }
        self.meta.shrink(METADATA_BYTES_MAX);
        Ok(())
    }

    /// Puts an inode that the orphan file names on the list.
    fn adopt_orphan(&self, ino: InodeNo) -> Result<()> {
        let is_listed = self.orphans.lock().iter().any(|member| member.ino == ino);
        if is_listed {
            return Ok(());
        }
        let Some(node) = self.read_orphan(ino)? else {
            return Err(Error::Refused(format!(
                "the file of deleted and truncated files (s_orphan_file_inum) names inode {ino}, which cannot be a member: run \
                 `moafs fsck -y` or `e2fsck -fy`"
            )));
        };
        self.add_orphan(&node).map(drop)
    }

    /// Looks through the list on the disk.
    ///
    /// # Errors
    /// [`Error::Refused`] if it leads somewhere else than to inodes, or in a circle; damage and device errors.
    fn check_orphans(&self) -> Result<()> {
        let mut next = self.superblock.lock().last_orphan();
        // A circle comes back to the member that was marked last once the steps to the next mark are longer than it.
        let (mut marked, mut steps, mut steps_max) = (0, 0_u64, 1_u64);
        while next != 0 {
            let found = if next == marked { None } else { self.orphan_slot(InodeNo(next))? };
            let Some((_, inode, _)) = found else { return Err(no_orphan(next)) };
            if steps == steps_max {
                (marked, steps, steps_max) = (next, 0, 2 * steps_max);
            }
            steps += 1;
            if steps.is_multiple_of(PORTION_MAX as u64) {
                self.meta.shrink(METADATA_BYTES_MAX);
            }
            next = inode.dtime;
        }
        Ok(())
    }

    /// Reads the first members of the list from the disk, its head first.
    fn read_orphans(&self) -> Result<Vec<Arc<Incore>>> {
        let mut found = Vec::new();
        let mut next = self.superblock.lock().last_orphan();
        while next != 0 && found.len() < PORTION_MAX {
            let node = self.read_orphan(InodeNo(next))?.ok_or_else(|| no_orphan(next))?;
            node.state.lock().is_listed = true;
            next = node.inode().dtime;
            found.push(node);
        }
        Ok(found)
    }

    /// Reads an inode that is to be finished; `None` if it cannot be one.
    fn read_orphan(&self, ino: InodeNo) -> Result<Option<Arc<Incore>>> {
        let Some((at, inode, kind)) = self.orphan_slot(ino)? else { return Ok(None) };
        let life = if inode.links == 0 { Life::Orphan(Level::NONE) } else { Life::Named { born: Level::NONE } };
        let node = Arc::new(Incore::new(&self.registry, ino, kind, at, inode, life));
        self.registry.insert(&node);
        Ok(Some(node))
    }

    /// Reads the slot of an inode that is to be finished; `None` if it cannot be one.
    fn orphan_slot(&self, ino: InodeNo) -> Result<Option<(SlotAt, Inode, FileKind)>> {
        if ino.0 < self.geo.first_ino || self.own_files.contains(&ino) {
            return Ok(None);
        }
        let Some(at) = self.slot_at(ino) else { return Ok(None) };
        if !bitmap::test(&self.alloc.inodes_in_use(at.group)?, at.index) {
            return Ok(None);
        }
        let slot = self.slot_bytes(&*self.table_block(&at)?, &at);
        let Ok(inode) = Inode::decode_orphan(&slot, ino, &self.geo, at.block) else { return Ok(None) };
        Ok(inode.kind().map(|kind| (at, inode, kind)))
    }

    fn finish_orphan(&self, node: &Arc<Incore>) -> Result<()> {
        let (links, size) = {
            let state = node.state.lock();
            (state.inode.links, state.inode.size)
        };
        let from = if links == 0 { 0 } else { size.div_ceil(self.geo.block_size.into()) };
        if links > 0 {
            self.zero_behind_end(node, size)?;
        }
        loop {
            let mut admission = Admission::none();
            let mut op = self.begin_op(OpKind::Unmap, &mut admission)?;
            let progress = self.clear_pointers(node, from, u64::MAX, ORPHAN_BLOCKS_MAX, true)?;
            if progress == Progress::Done {
                self.finish_member(&mut op, node, links)?;
            }
            op.end();
            if progress == Progress::Done {
                return Ok(());
            }
        }
    }

    /// Zeroes the last block of a truncated file behind the end, durably. The truncation may not have come to it, and
    /// most drivers do not look at it when the file grows again.
    fn zero_behind_end(&self, node: &Incore, size: u64) -> Result<()> {
        let (block_bytes, flags) = (u64::from(self.geo.block_size), node.inode().flags);
        let within = (size % block_bytes) as usize;
        let is_elsewhere = flags.intersects(InodeFlags::INLINE_DATA | InodeFlags::ENCRYPT);
        if within == 0 || node.kind != FileKind::Regular || is_elsewhere {
            return Ok(());
        }
        let Mapping::Run(run) = self.map_run(node, Lbn(size / block_bytes), 1)? else { return Ok(()) };
        let at = Lba::from_byte(run.start.0 * block_bytes);
        let tag = Tag::new(Kind::Data, node.ino.0.into(), Cause::Volume);
        let zeroed = self.disk.read(at, self.geo.block_bytes(), tag).and_then(|mut block| {
            block[within..].fill(0);
            let written = self.disk.write(at, block.freeze(), tag)?;
            self.disk.make_durable(written)
        });
        let what = || format!("zeroing the last block of inode {} behind its end", node.ino);
        self.health.watch(zeroed.map_err(|source| Error::disk(what(), source)))
    }

    fn finish_member(&self, op: &mut ExtOp<'_>, node: &Arc<Incore>, links: u16) -> Result<()> {
        if links == 0 {
            return op.inode_free(node);
        }
        self.remove_orphan(node, 0)?;
        self.store(node).map(drop)
    }
}

/// Returns the error of a list that leads to an inode that cannot be a member.
fn no_orphan(ino: u32) -> Error {
    Error::Refused(format!(
        "the list of deleted and truncated files (s_last_orphan) leads to inode {ino}, which cannot be a member: run \
         `moafs fsck -y` or `e2fsck -fy`"
    ))
}

/// Checks a block of the orphan file: its magic number and its checksum.
fn orphan_block(geo: &Geometry, what: Sealed, bytes: &[u8]) -> std::result::Result<(), String> {
    match u32_at(bytes, bytes.len() - ORPHAN_TAIL_BYTES) {
        ORPHAN_MAGIC => geo.checksums.verify(what, bytes),
        magic => Err(format!("the magic number of a block is {magic:#010x}, should be {ORPHAN_MAGIC:#010x}")),
    }
}

/// Members of the orphan file that one op moves to the list.
const ORPHANS_PER_OP: usize = 32;
/// Members of the list that are in memory together while a mount finishes it.
const PORTION_MAX: usize = 1024;
/// Metadata that stay in memory between two portions, in bytes, so far as they need not be written first.
const METADATA_BYTES_MAX: usize = 16 << 20;
/// Blocks that one op frees of an orphan at most.
const ORPHAN_BLOCKS_MAX: u32 = 4096;
