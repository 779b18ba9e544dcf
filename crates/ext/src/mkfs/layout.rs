//! The places of everything on a new volume: decided here, written elsewhere.
//!
//! Without flex_bg every group starts with the copies that it carries, then its two bitmaps and its inode table. With
//! it the bitmaps and tables of a flex group's members lie together at its start. Behind them in group 0 come the root
//! directory, lost+found and the block that lists the descriptor table's reserve; the journal lies in the middle of the
//! volume if extents map it, else before all else. A volume that `mke2fs` makes with the same options has the same
//! layout.

use std::ops::Range;

use moafs_runtime::Timestamp;

use super::error::MkfsError;
use super::options::{MkfsOptions, MkfsReport};
use super::shape::{self, FIRST_INO, ORPHAN_FILE_INO, Shape};
use crate::block_set::BlockSet;
use crate::format::extent::{Extent, build};
use crate::format::group::{BLOCK_UNINIT, INODE_UNINIT, INODE_ZEROED};
use crate::format::inode::{EXTRA_BYTES, InodeFlags};
use crate::format::map::{POINTERS, Path};
use crate::format::reserve::Reserved;
use crate::format::superblock::{Compat, Incompat};
use crate::format::{BlockNo, Descriptor, Geometry, GroupNo, Inode, InodeNo, Superblock};

/// Inodes of a new volume that are in use.
const FIRST_DIRECTORIES: u32 = 2;

/// A new volume: where everything lies. The module `write` carries it out.
#[derive(Debug, Clone)]
pub struct VolumeLayout {
    /// The primary superblock, complete but for its checksum.
    pub superblock: Superblock,
    /// Its meaning.
    pub geometry: Geometry,
    /// The descriptors of all groups, without checksums.
    pub descriptors: Vec<Descriptor>,
    /// All blocks in use.
    pub(crate) used: BlockSet,
    /// The root directory, lost+found and the other files.
    pub(crate) files: Vec<PlannedFile>,
}

/// A file of a new volume.
#[derive(Debug, Clone)]
pub(crate) struct PlannedFile {
    pub(super) ino: InodeNo,
    pub(crate) inode: Inode,
    pub(super) contents: Contents,
    /// The blocks of the file, ascending in the file.
    pub(crate) data: Vec<Range<u64>>,
    /// The blocks of its map.
    pub(crate) nodes: Vec<MapNode>,
}

/// The contents of a file of a new volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contents {
    /// The root directory.
    Root,
    /// The directory lost+found.
    LostFound,
    /// The reserve of the descriptor table: nothing is written but the map.
    Reserve,
    /// The journal.
    Journal,
    /// The orphan file.
    Orphans,
}

/// A block of a file's map.
#[derive(Debug, Clone)]
pub(crate) struct MapNode {
    pub(crate) block: BlockNo,
    pub(super) contents: MapContents,
}

/// The contents of a block of a file's map.
#[derive(Debug, Clone)]
pub(crate) enum MapContents {
    /// An indirect block: index of the entry, and pointer.
    Pointers(Vec<(u32, u32)>),
    /// A node of the extent tree, without its checksum.
    Extents(Vec<u8>),
}

/// Finds a place for a journal of `blocks` blocks on a volume that is in use, from block `from` on and outside of the
/// used blocks of `volume`. The journal is the one file of the result, whose superblock names it.
pub(crate) fn place_journal(
    volume: VolumeLayout,
    blocks: u32,
    from: u64,
    now: Timestamp,
) -> Result<VolumeLayout, MkfsError> {
    let mut planner = Planner { layout: VolumeLayout { files: Vec::new(), ..volume }, now };
    planner.place_journal(blocks, from)?;
    Ok(planner.layout)
}

/// Finds a place for everything.
pub(super) fn place(shape: Shape, options: &MkfsOptions) -> Result<VolumeLayout, MkfsError> {
    let Shape { superblock, geometry, journal_blocks } = shape;
    let mut planner = Planner {
        layout: VolumeLayout {
            superblock,
            descriptors: vec![Descriptor::default(); geometry.groups as usize],
            geometry,
            used: BlockSet::default(),
            files: Vec::new(),
        },
        now: options.now,
    };
    planner.take_heads();
    planner.place_groups()?;
    planner.place_directories(options.root_owner)?;
    planner.place_reserve()?;
    if journal_blocks > 0 {
        let from = planner.start_of_journal();
        planner.place_journal(journal_blocks, from)?;
    }
    planner.place_orphan_file()?;
    planner.count(options.lazy_tables);
    Ok(planner.layout)
}

struct Planner {
    layout: VolumeLayout,
    now: Timestamp,
}

/// The block map of a file that is placed in the order of its blocks.
#[derive(Default)]
struct PointerMap {
    pointers: [u32; POINTERS],
    /// The indirect blocks on the way to the block that was placed last, each with its entries: index and pointer.
    way: Vec<(u64, Vec<(u32, u32)>)>,
    /// The other indirect blocks.
    full: Vec<MapNode>,
}

impl PointerMap {
    /// Puts a pointer to `block` where a way leads (see [`Path::indices`]).
    fn point(&mut self, indices: &[u32], block: u64) {
        match *indices {
            [slot] => self.pointers[slot as usize] = block as u32,
            [.., index] => self.way[indices.len() - 2].1.push((index, block as u32)),
            [] => unreachable!("a way begins in the inode"),
        }
    }

    /// Begins an indirect block where a way leads; those on it that the next file blocks do not lie below are full.
    fn begin_node(&mut self, indices: &[u32], block: u64) {
        self.full.extend(self.way.drain(indices.len() - 1..).map(node_of));
        self.point(indices, block);
        self.way.push((block, Vec::new()));
    }

    /// Returns the pointers of the inode, and all indirect blocks.
    fn end(mut self) -> ([u32; POINTERS], Vec<MapNode>) {
        self.full.extend(self.way.into_iter().map(node_of));
        (self.pointers, self.full)
    }
}

/// Returns an indirect block with these entries.
fn node_of((block, entries): (u64, Vec<(u32, u32)>)) -> MapNode {
    MapNode { block: BlockNo(block), contents: MapContents::Pointers(entries) }
}

impl Planner {
    fn geo(&self) -> &Geometry {
        &self.layout.geometry
    }

    /// Takes the blocks for copies of superblock and descriptors, and their reserves.
    fn take_heads(&mut self) {
        let VolumeLayout { geometry, used, .. } = &mut self.layout;
        for group in geometry.all_groups() {
            let start = geometry.group_start(group).0;
            used.add(start..start + u64::from(geometry.head_blocks(group)));
        }
    }

    /// Takes the first run of `len` free blocks from `from` on.
    fn take_run(&mut self, from: u64, len: u64) -> Result<u64, MkfsError> {
        let start = self.layout.used.first_run(from, len);
        if start + len > self.geo().blocks {
            return Err(self.no_room());
        }
        self.layout.used.add(start..start + len);
        Ok(start)
    }

    /// Takes `len` free blocks from `from` on, in as many runs as it takes.
    fn take_blocks(&mut self, from: u64, len: u64) -> Result<Vec<Range<u64>>, MkfsError> {
        let (mut runs, mut at, mut left) = (Vec::new(), from, len);
        while left > 0 {
            let (start, free) = self.layout.used.free_run(at);
            let end = start.saturating_add(free.min(left));
            if end > self.geo().blocks {
                return Err(self.no_room());
            }
            self.layout.used.add(start..end);
            left -= end - start;
            at = end;
            runs.push(start..end);
        }
        Ok(runs)
    }

    fn no_room(&self) -> MkfsError {
        let geo = self.geo();
        let why = "not all metadata find room".to_owned();
        MkfsError::TooSmall { blocks: geo.blocks, block_size: geo.block_size, why }
    }

    fn place_groups(&mut self) -> Result<(), MkfsError> {
        let groups = self.geo().groups;
        let size = self.groups_per_flex();
        (0..groups)
            .step_by(size as usize)
            .try_for_each(|first| self.place_flex_group(first..first.saturating_add(size).min(groups), size))
    }

    /// Returns the number of groups whose bitmaps and tables lie together.
    fn groups_per_flex(&self) -> u32 {
        if self.geo().flex_bg { 1 << self.layout.superblock.log_groups_per_flex() } else { 1 }
    }

    /// Places the bitmaps and tables of a flex group, or of one group, behind the head of the first one.
    fn place_flex_group(&mut self, members: Range<u32>, size: u32) -> Result<(), MkfsError> {
        let geo = self.geo();
        let table = u64::from(geo.inode_table_blocks);
        let first = GroupNo(members.start);
        let base = geo.group_start(first).0 + u64::from(geo.head_blocks(first));
        let count = match geo.groups {
            1 => size.into(),
            _ => u64::from(members.end - members.start),
        };
        // A volume of one group leaves room for a whole flex group.
        // Three regions: block bitmaps, inode bitmaps, tables. Each begins where the last one would end if nothing
        // were in the way.
        let mut next = [base, base + count, base + 2 * count];
        for group in members {
            let lens = [1, 1, table];
            for (at, len) in next.iter_mut().zip(lens) {
                *at = self.take_run(*at, len)? + len;
            }
            let descriptor = &mut self.layout.descriptors[group as usize];
            descriptor.block_bitmap = BlockNo(next[0] - 1);
            descriptor.inode_bitmap = BlockNo(next[1] - 1);
            descriptor.inode_table = BlockNo(next[2] - table);
        }
        Ok(())
    }

    /// Returns an inode with times and without a map.
    fn inode(&self, mode: u16, links: u16, size: u64) -> Inode {
        let extra_isize = if self.geo().inode_size > 128 { EXTRA_BYTES } else { 0 };
        let (atime, mtime, ctime, crtime) = (self.now, self.now, self.now, Some(self.now));
        Inode { mode, links, size, atime, mtime, ctime, crtime, extra_isize, ..Inode::default() }
    }

    fn place_directories(&mut self, owner: (u32, u32)) -> Result<(), MkfsError> {
        let block_size = u64::from(self.geo().block_size);
        let lost_found = u64::from(shape::lost_found_blocks(self.geo().block_size));
        let root = Inode { uid: owner.0, gid: owner.1, ..self.inode(0o040_755, 3, block_size) };
        self.place_file(InodeNo::ROOT, root, Contents::Root, 0)?;
        let inode = self.inode(0o040_700, 2, lost_found * block_size);
        self.place_file(InodeNo(FIRST_INO), inode, Contents::LostFound, 0)
    }

    /// Places a file of `inode.size` bytes on the first free blocks from `from` on.
    fn place_file(&mut self, ino: InodeNo, inode: Inode, contents: Contents, from: u64) -> Result<(), MkfsError> {
        let blocks = inode.size / u64::from(self.geo().block_size);
        let from = from.max(self.geo().first_data_block);
        let file = PlannedFile { ino, inode, contents, data: Vec::new(), nodes: Vec::new() };
        let file = if self.geo().incompat.contains(Incompat::EXTENT) {
            self.place_extents(file, from, blocks)?
        } else {
            self.place_pointers(file, from, blocks)?
        };
        self.layout.files.push(file);
        Ok(())
    }

    fn place_extents(&mut self, mut file: PlannedFile, from: u64, blocks: u64) -> Result<PlannedFile, MkfsError> {
        file.data = self.take_blocks(from, blocks)?;
        let mut extents = Vec::new();
        let mut lbn = 0;
        for run in &file.data {
            let len = run.end - run.start;
            extents.extend(Extent::cover(lbn, run.start, len, false));
            lbn += len;
        }
        // A node lies before the file's first block if that is free, else behind the file.
        let before = file.data[0].start - 1;
        let tree = build(&extents, self.geo().block_bytes(), &mut || self.take_run(before, 1).map(BlockNo))?;
        file.inode.flags |= InodeFlags::EXTENTS;
        file.inode.set_block_bytes(&tree.root);
        file.nodes = tree
            .nodes
            .into_iter()
            .map(|(block, bytes)| MapNode { block, contents: MapContents::Extents(bytes) })
            .collect();
        file.inode.blocks = (blocks + file.nodes.len() as u64) * u64::from(self.geo().sectors_per_block());
        Ok(file)
    }

    /// Places a file that indirect blocks map: each block in the order of the file, indirect blocks before what they
    /// map.
    fn place_pointers(&mut self, mut file: PlannedFile, from: u64, blocks: u64) -> Result<PlannedFile, MkfsError> {
        let apb = self.geo().apb;
        let mut at = from;
        let mut next = |planner: &mut Planner| {
            let block = planner.take_run(at, 1)?;
            at = block + 1;
            Ok(block)
        };
        let mut map = PointerMap::default();
        for lbn in 0..blocks {
            let path = Path::of(lbn, apb).ok_or_else(|| self.no_room())?;
            let indices = path.indices();
            // An indirect block begins where all indices behind the pointer to it are 0.
            for depth in (1..indices.len()).filter(|depth| indices[*depth..].iter().all(|index| *index == 0)) {
                let block = next(self)?;
                map.begin_node(&indices[..depth], block);
            }
            let block = next(self)?;
            map.point(indices, block);
            match file.data.last_mut().filter(|run| run.end == block) {
                Some(run) => run.end += 1,
                None => file.data.push(block..block + 1),
            }
        }
        (file.inode.block, file.nodes) = map.end();
        file.inode.blocks = (blocks + file.nodes.len() as u64) * u64::from(self.geo().sectors_per_block());
        Ok(file)
    }

    /// Places the block that lists the reserve of the descriptor table. Each block of the primary reserve lists the
    /// blocks of the same position in the copies.
    fn place_reserve(&mut self) -> Result<(), MkfsError> {
        if !self.layout.superblock.compat().contains(Compat::RESIZE_INODE) {
            return Ok(());
        }
        let group0 = &self.layout.descriptors[0];
        let behind = group0.inode_table.0 + u64::from(self.geo().inode_table_blocks);
        let list = self.take_run(behind, 1)?;
        let geo = self.geo();
        let apb = u64::from(geo.apb);
        let reserve = geo.descriptor_reserve();
        let blocks = 1 + reserve.iter().map(|reserved| 1 + reserved.copies.len() as u64).sum::<u64>();
        let entries = reserve.iter().map(|reserved| (reserved.index, reserved.block)).collect();
        let mut nodes = vec![MapNode { block: BlockNo(list), contents: MapContents::Pointers(entries) }];
        nodes.extend(reserve.into_iter().map(|Reserved { block, copies, .. }| {
            let entries = (0..).zip(copies).collect();
            MapNode { block: BlockNo(block.into()), contents: MapContents::Pointers(entries) }
        }));
        let size = (POINTERS as u64 - 3 + apb + apb * apb) * u64::from(geo.block_size);
        let mut inode = self.inode(0o100_600, 1, size);
        inode.blocks = blocks * u64::from(geo.sectors_per_block());
        inode.block[POINTERS - 2] = list as u32;
        let file = PlannedFile { ino: InodeNo::RESIZE, inode, contents: Contents::Reserve, data: Vec::new(), nodes };
        self.layout.files.push(file);
        Ok(())
    }

    /// Returns the block from which on the journal of a new volume is placed.
    fn start_of_journal(&self) -> u64 {
        if self.geo().incompat.contains(Incompat::EXTENT) {
            self.geo().group_start(self.journal_group()).0
        } else {
            self.geo().first_data_block
        }
    }

    fn place_journal(&mut self, blocks: u32, from: u64) -> Result<(), MkfsError> {
        let inode = self.inode(0o100_600, 1, u64::from(blocks) * u64::from(self.geo().block_size));
        self.place_file(InodeNo::JOURNAL, inode, Contents::Journal, from)?;
        let journal = self.layout.files.last().expect("it was just placed").inode.clone();
        self.layout.superblock.set_journal_inum(InodeNo::JOURNAL.0);
        self.layout.superblock.set_journal_backup(&journal.block, journal.size);
        Ok(())
    }

    /// Returns the group in which the journal begins: near the middle of the volume, and of neighbours the one with the
    /// most free blocks. Where there are flex groups, these are the first two groups of the middle one that have any.
    fn journal_group(&self) -> GroupNo {
        let geo = self.geo();
        let middle = ((geo.blocks - geo.first_data_block) / 2 / u64::from(geo.blocks_per_group)) as u32;
        let size = self.groups_per_flex();
        let groups = if size > 1 && middle > size {
            let first = (middle / size * size..geo.groups).find(|group| self.free_blocks(GroupNo(*group)) > 0);
            first.unwrap_or(0)..first.unwrap_or(0) + 2
        } else {
            middle.saturating_sub(1)..middle + 2
        };
        let groups = groups.filter(|group| *group < geo.groups).map(GroupNo);
        // Of equals the first.
        groups.rev().max_by_key(|group| self.free_blocks(*group)).unwrap_or(GroupNo(0))
    }

    fn free_blocks(&self, group: GroupNo) -> u64 {
        let range = self.geo().group_range(group);
        range.end - range.start - self.layout.used.count(range)
    }

    fn place_orphan_file(&mut self) -> Result<(), MkfsError> {
        if !self.layout.superblock.compat().contains(Compat::ORPHAN_FILE) {
            return Ok(());
        }
        let blocks = shape::orphan_file_blocks(self.geo().blocks);
        let inode = self.inode(0o100_600, 1, u64::from(blocks) * u64::from(self.geo().block_size));
        self.layout.superblock.set_orphan_file_inum(ORPHAN_FILE_INO);
        self.place_file(InodeNo(ORPHAN_FILE_INO), inode, Contents::Orphans, 0)
    }

    /// Fills in counts and flags. `lazy_tables`: inode tables are left as they are on the device.
    fn count(&mut self, lazy_tables: bool) {
        let VolumeLayout { superblock, geometry: geo, descriptors, used, files } = &mut self.layout;
        let used_inodes = files.iter().map(|file| file.ino.0).max().unwrap_or(0).max(FIRST_INO);
        for (group, descriptor) in geo.all_groups().zip(descriptors.iter_mut()) {
            let range = geo.group_range(group);
            let own_inodes = if group.0 == 0 { used_inodes } else { 0 };
            descriptor.free_blocks = (range.end - range.start - used.count(range)) as u32;
            descriptor.free_inodes = geo.inodes_per_group - own_inodes;
            descriptor.used_dirs = if group.0 == 0 { FIRST_DIRECTORIES } else { 0 };
            if geo.checksums.allow_lazy_groups() {
                descriptor.itable_unused = descriptor.free_inodes;
                descriptor.flags =
                    flags(geo, group, descriptor, own_inodes) | if lazy_tables { 0 } else { INODE_ZEROED };
            }
        }
        superblock.set_free_blocks(descriptors.iter().map(|descriptor| u64::from(descriptor.free_blocks)).sum());
        superblock.set_free_inodes(descriptors.iter().map(|descriptor| descriptor.free_inodes).sum());
        let journal: u64 =
            files.iter().filter(|file| file.contents == Contents::Journal).map(PlannedFile::data_blocks).sum();
        superblock.set_overhead_clusters(overhead(geo, journal));
    }
}

/// Returns the flags of the parts of a group that are not initialised. The bitmap of the last group always is.
fn flags(geo: &Geometry, group: GroupNo, descriptor: &Descriptor, own_inodes: u32) -> u16 {
    let own = geo.group_range(group);
    let table = u64::from(geo.inode_table_blocks);
    let inside = |start: BlockNo, len: u64| if own.contains(&start.0) { len } else { 0 };
    let metadata = u64::from(geo.head_blocks(group))
        + inside(descriptor.block_bitmap, 1)
        + inside(descriptor.inode_bitmap, 1)
        + inside(descriptor.inode_table, table);
    let holds_only_own = u64::from(descriptor.free_blocks) + metadata == own.end - own.start;
    let is_lazy = holds_only_own && group.0 != 0 && group.0 + 1 != geo.groups;
    let blocks = if is_lazy { BLOCK_UNINIT } else { 0 };
    blocks | if own_inodes == 0 { INODE_UNINIT } else { 0 }
}

/// Returns the clusters that files can never have.
fn overhead(geo: &Geometry, journal: u64) -> u32 {
    let heads: u64 = geo.all_groups().map(|group| u64::from(geo.head_blocks(group))).sum();
    let own = u64::from(geo.groups) * (2 + u64::from(geo.inode_table_blocks));
    (geo.first_data_block + heads + own + journal) as u32
}

impl VolumeLayout {
    /// Returns true if the volume has a journal.
    pub(super) fn has_journal(&self) -> bool {
        self.superblock.compat().contains(Compat::HAS_JOURNAL)
    }

    /// Returns the facts of the volume that a user wants to know.
    pub fn report(&self) -> MkfsReport {
        let geo = self.geometry.clone();
        let journal = self.files.iter().filter(|file| file.contents == Contents::Journal);
        MkfsReport {
            features: self.superblock.feature_names(),
            journal_blocks: journal.map(PlannedFile::data_blocks).sum(),
            backups: geo.groups_with_copies().map(|group| geo.group_start(group)).collect(),
            reserved_blocks: self.superblock.reserved_blocks(),
            free_blocks: self.superblock.free_blocks(),
            free_inodes: self.superblock.free_inodes(),
            geometry: geo,
        }
    }
}

impl PlannedFile {
    /// Returns the number of blocks of the file itself.
    pub(super) fn data_blocks(&self) -> u64 {
        self.data.iter().map(|run| run.end - run.start).sum()
    }
}
