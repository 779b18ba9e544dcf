//! The scanning pass: from a group's inode table to the blocks its inodes own.
//!
//! The checker uses the two halves ([`slots`], [`walk_map`]); recovery after a power cut uses the
//! whole ([`used_blocks`]). A hostile map may name one indirect block thousands of times: a judge
//! must answer [`Step::Skip`] for a block seen before, and the walk stays bounded by the number of
//! blocks on the volume.

use moafs_disk::{Buf, Page};
use moafs_vfs::types::FileKind;

use crate::format::map::POINTERS;
use crate::format::{BlockNo, Damage, Descriptor, Geometry, GroupNo, Inode, InodeNo, map, put_u32, u32_at};

/// Bytes of inode table that are read at once.
const PREFETCH_BYTES: u32 = 1 << 20;

/// Reads blocks of the volume.
pub trait Blocks {
    /// The error of a failed read.
    type Error: From<Damage>;

    /// Reads one block, which lies on the volume.
    ///
    /// # Errors
    /// As the device reports them.
    fn read(&self, block: BlockNo) -> Result<Page, Self::Error>;

    /// Says that these blocks will be read next, one by one.
    ///
    /// # Errors
    /// As the device reports them.
    fn prefetch(&self, start: BlockNo, count: u32) -> Result<(), Self::Error> {
        let _ = (start, count);
        Ok(())
    }
}

/// Shows every inode slot of a group that may have been used, in order.
///
/// # Errors
/// If a block cannot be read, or as `visit` fails.
pub fn slots<B: Blocks>(
    blocks: &B,
    geo: &Geometry,
    group: GroupNo,
    descriptor: &Descriptor,
    mut visit: impl FnMut(InodeNo, &[u8]) -> Result<(), B::Error>,
) -> Result<(), B::Error> {
    let ahead = (PREFETCH_BYTES / geo.block_size).max(1);
    let ever_used = descriptor.inodes_ever_used(geo);
    let table_blocks = ever_used.div_ceil(geo.inodes_per_block());
    let mut index = 0;
    for table_block in 0..table_blocks {
        let block = BlockNo(descriptor.inode_table.0 + u64::from(table_block));
        if table_block % ahead == 0 {
            blocks.prefetch(block, ahead.min(table_blocks - table_block))?;
        }
        let page = blocks.read(block)?;
        for slot in page.chunks_exact(geo.inode_size as usize) {
            if index < ever_used {
                visit(geo.inode_at(group, index), slot)?;
            }
            index += 1;
        }
    }
    Ok(())
}

/// A pointer of a map that is not a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pointer {
    /// The block it points to; not checked yet.
    pub block: BlockNo,
    /// Levels that the block stands above the data; 0: data.
    pub level: u8,
    /// The first file block it maps.
    pub lbn: u64,
}

/// A judge's decision about a pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It stays; if it points to an indirect block, the walk goes on there.
    Keep,
    /// It stays, but the block it points to is not read.
    Skip,
    /// It becomes a hole.
    Clear,
}

/// Judges the pointers of a map, in the order of the file's blocks.
pub trait Judge {
    /// Decides about `pointer`. Only blocks on the volume may be kept.
    fn pointer(&mut self, pointer: Pointer) -> Step;

    /// Takes the new contents of an indirect block some of whose pointers were cleared.
    fn rewritten(&mut self, block: BlockNo, contents: Buf);
}

/// Walks a map from an inode's pointers down; returns whether pointers in the inode were cleared.
///
/// # Errors
/// If an indirect block cannot be read.
pub fn walk_map<B: Blocks, J: Judge>(
    blocks: &B,
    geo: &Geometry,
    pointers: &mut [u32; POINTERS],
    judge: &mut J,
) -> Result<bool, B::Error> {
    let mut changed = false;
    for (slot, pointer) in pointers.iter_mut().enumerate() {
        let (level, lbn) = (map::level_of_slot(slot), map::first_lbn_of_slot(slot, geo.apb));
        if walk_pointer(blocks, geo, *pointer, level, lbn, judge)? == Step::Clear {
            *pointer = 0;
            changed = true;
        }
    }
    Ok(changed)
}

fn walk_pointer<B: Blocks, J: Judge>(
    blocks: &B,
    geo: &Geometry,
    pointer: u32,
    level: u8,
    lbn: u64,
    judge: &mut J,
) -> Result<Step, B::Error> {
    if pointer == 0 {
        return Ok(Step::Keep);
    }
    let block = BlockNo(pointer.into());
    let step = judge.pointer(Pointer { block, level, lbn });
    if step != Step::Keep || level == 0 {
        return Ok(step);
    }
    let page = blocks.read(block)?;
    let mut rewritten: Option<Buf> = None;
    for index in 0..geo.apb as usize {
        let child = u32_at(&page, 4 * index);
        let child_lbn = lbn + index as u64 * map::span(level - 1, geo.apb);
        if walk_pointer(blocks, geo, child, level - 1, child_lbn, judge)? == Step::Clear {
            put_u32(rewritten.get_or_insert_with(|| Buf::copy_of(&page)), 4 * index, 0);
        }
    }
    if let Some(contents) = rewritten {
        judge.rewritten(block, contents);
    }
    Ok(Step::Keep)
}

/// Returns true if the inode's `i_block` holds pointers (not the target of a short symbolic link).
pub fn has_map(inode: &Inode, geo: &Geometry) -> bool {
    match inode.kind() {
        Some(FileKind::Regular | FileKind::Directory) => true,
        Some(FileKind::Symlink) => !inode.is_fast_symlink(geo),
        _ => false,
    }
}

/// Reports every legal block that an inode in use owns, of one group's inodes: data, indirect and
/// attribute blocks. `claim` returns true if the block was not claimed before.
///
/// The inode that owns the descriptor table's reserve is left out: its blocks are the groups' own.
///
/// # Errors
/// If a block cannot be read.
pub fn used_blocks<B: Blocks>(
    blocks: &B,
    geo: &Geometry,
    group: GroupNo,
    descriptor: &Descriptor,
    mut claim: impl FnMut(InodeNo, BlockNo) -> bool,
) -> Result<(), B::Error> {
    slots(blocks, geo, group, descriptor, |ino, slot| {
        let mut inode = Inode::parse(slot, geo);
        if inode.links == 0 {
            return Ok(());
        }
        if ino == InodeNo::RESIZE {
            let double = BlockNo(inode.block[13].into());
            if geo.may_point_to(double) {
                claim(ino, double);
            }
            return Ok(());
        }
        let attributes = BlockNo(inode.file_acl);
        if geo.may_point_to(attributes) {
            claim(ino, attributes);
        }
        if !has_map(&inode, geo) {
            return Ok(());
        }
        let mut judge = Claims { geo, claim: |block| claim(ino, block) };
        walk_map(blocks, geo, &mut inode.block, &mut judge).map(drop)
    })
}

/// Passes legal blocks on, and does not walk those already claimed.
struct Claims<'a, F> {
    geo: &'a Geometry,
    claim: F,
}

impl<F: FnMut(BlockNo) -> bool> Judge for Claims<'_, F> {
    fn pointer(&mut self, pointer: Pointer) -> Step {
        let first_time = self.geo.may_point_to(pointer.block) && (self.claim)(pointer.block);
        if first_time { Step::Keep } else { Step::Skip }
    }

    fn rewritten(&mut self, block: BlockNo, _: Buf) {
        unreachable!("no pointer of block {block} was cleared");
    }
}

/// Returns true if most pointers in a block could be pointers.
pub(super) fn is_indirect_block(page: &[u8], geo: &Geometry) -> bool {
    let pointers = (0..geo.apb as usize).map(|index| u32_at(page, 4 * index)).filter(|pointer| *pointer != 0);
    let (legal, illegal): (Vec<u32>, Vec<u32>) = pointers.partition(|block| geo.may_point_to(BlockNo((*block).into())));
    legal.len() >= illegal.len()
}
