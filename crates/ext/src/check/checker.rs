//! The state of one sweep over a volume, which its passes fill and read.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use moafs_vfs::types::FileKind;

use super::claims::Sharing;
use super::error::CheckError;
use super::issue::Issue;
use super::report::{CheckOptions, Log};
use super::volume::Volume;
use crate::format::renaming::{Candidates, Marks};
use crate::format::{BlockNo, Descriptor, Geometry, GroupNo, Inode, InodeNo, Superblock, bitmap, inode};

/// Results of pass 1 about an inode.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct InodeState {
    /// Type byte of its directory entries; 0: the inode is not in use.
    pub(super) type_byte: u8,
    /// True if its map was walked.
    pub(super) has_map: bool,
    /// The link count from `i_links_count`.
    pub(super) links: u16,
    /// Names found by pass 2.
    pub(super) found: u32,
}

/// Results of the passes about a directory.
#[derive(Debug, Clone, Default)]
pub(super) struct DirInfo {
    /// Its blocks: number in the file, number on the volume.
    pub(super) blocks: Vec<(u64, BlockNo)>,
    /// The directory with its name.
    pub(super) parent: Option<InodeNo>,
    /// The inode that `..` names, and the block and offset of that entry.
    pub(super) dot_dot: Option<(InodeNo, BlockNo, usize)>,
}

/// The sharing of an attribute block.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Shared {
    pub(super) stored: u32,
    pub(super) counted: u32,
}

/// The state of one sweep.
pub(super) struct Checker<'a> {
    pub(super) volume: Volume<'a>,
    pub(super) superblock: Superblock,
    pub(super) geo: Geometry,
    pub(super) descriptors: Vec<Descriptor>,
    pub(super) log: Log,
    pub(super) options: &'a CheckOptions,
    /// The blocks in use, one bit per block of the volume.
    pub(super) used: Vec<u8>,
    /// Blocks of the groups' metadata, sorted.
    pub(super) fixed: Vec<Range<u64>>,
    /// Blocks with more than one claim.
    pub(super) sharing: Sharing,
    /// By group; absent where no inode is in use.
    pub(super) inodes: Vec<Option<Box<[InodeState]>>>,
    pub(super) dirs: BTreeMap<u32, DirInfo>,
    pub(super) xattrs: BTreeMap<u64, Shared>,
    /// Inodes that a crash left to be deleted or truncated.
    pub(super) orphans: BTreeSet<u32>,
    /// Those of them that lose the blocks beyond their end in this sweep.
    pub(super) truncated: BTreeSet<u32>,
    /// The last blocks of these, and the bytes in them that are the file's.
    pub(super) tails: Vec<(BlockNo, usize)>,
    /// The orphan file, if it can be used: it has no name.
    pub(super) orphan_file: Option<InodeNo>,
    /// Groups with inodes in use that this sweep has not looked at, since their descriptors hid them.
    pub(super) uncovered: BTreeSet<GroupNo>,
    /// Such groups that this sweep may not uncover, with an inode of each.
    pub(super) hidden: BTreeMap<GroupNo, Issue>,
    /// The marks of the mount that crashed, by which inodes tell of renames; `None` if no such crash left the volume.
    pub(super) marks: Option<Marks>,
    /// The renames that inodes tell of.
    pub(super) renames: BTreeMap<u32, Candidates>,
    /// Directories that got a name in lost+found in this sweep.
    pub(super) reconnected: BTreeSet<InodeNo>,
    pub(super) lost_found: Option<InodeNo>,
    /// True if lost+found is missing and could not be made.
    pub(super) lost_found_failed: bool,
}

impl Checker<'_> {
    pub(super) fn table_of(&self, ino: InodeNo) -> BlockNo {
        let at = self.geo.locate_inode(ino).expect("an inode of the volume");
        self.descriptors[at.group.0 as usize].inode_table
    }

    pub(super) fn read_inode(&self, ino: InodeNo) -> Result<(Vec<u8>, Inode), CheckError> {
        let slot = self.volume.slot(self.table_of(ino), ino)?;
        let inode = Inode::parse(&slot, &self.geo);
        Ok((slot, inode))
    }

    pub(super) fn write_inode(&self, ino: InodeNo, slot: &mut [u8], inode: &Inode) -> Result<(), CheckError> {
        inode.encode_into(slot, &self.geo);
        self.volume.set_slot(self.table_of(ino), ino, slot)
    }

    pub(super) fn change_inode(&self, ino: InodeNo, change: impl FnOnce(&mut Inode)) -> Result<(), CheckError> {
        let (mut slot, mut inode) = self.read_inode(ino)?;
        change(&mut inode);
        self.write_inode(ino, &mut slot, &inode)
    }

    /// Returns the current time in 32 bits, never 0: that would mean "not deleted".
    pub(super) fn now_secs(&self) -> u32 {
        self.options.now.secs.clamp(1, u32::MAX.into()) as u32
    }

    pub(super) fn state(&self, ino: InodeNo) -> InodeState {
        let Some(at) = self.geo.locate_inode(ino) else { return InodeState::default() };
        match &self.inodes[at.group.0 as usize] {
            Some(group) => group[at.index as usize],
            None => InodeState::default(),
        }
    }

    pub(super) fn state_mut(&mut self, ino: InodeNo) -> &mut InodeState {
        let at = self.geo.locate_inode(ino).expect("an inode of the volume");
        let per_group = self.geo.inodes_per_group as usize;
        let group = self.inodes[at.group.0 as usize]
            .get_or_insert_with(|| vec![InodeState::default(); per_group].into_boxed_slice());
        &mut group[at.index as usize]
    }

    pub(super) fn is_dir(&self, ino: InodeNo) -> bool {
        self.state(ino).type_byte == inode::entry_type(FileKind::Directory)
    }

    /// Returns the inodes in use, ascending, with their states.
    pub(super) fn inodes_in_use(&self) -> impl Iterator<Item = (InodeNo, InodeState)> + '_ {
        self.inodes.iter().enumerate().flat_map(move |(group, states)| {
            let states = states.iter().flat_map(|states| states.iter().enumerate());
            let in_use = states.filter(|(_, state)| state.type_byte != 0);
            in_use.map(move |(index, state)| (self.geo.inode_at(GroupNo(group as u32), index as u32), *state))
        })
    }

    /// Returns the inodes whose maps pass 1 has walked, ascending.
    pub(super) fn inodes_with_maps(&self) -> Vec<InodeNo> {
        let groups = self.inodes.iter().enumerate();
        let states = groups.flat_map(|(group, states)| {
            states
                .iter()
                .flat_map(move |states| (0..).zip(states.iter()).map(move |(index, state)| (group, index, state)))
        });
        let mapped = states.filter(|(_, _, state)| state.has_map);
        mapped.map(|(group, index, _)| self.geo.inode_at(GroupNo(group as u32), index)).collect()
    }

    pub(super) fn is_used(&self, block: BlockNo) -> bool {
        bitmap::test(&self.used, block.0 as u32)
    }

    pub(super) fn is_fixed(&self, block: BlockNo) -> bool {
        is_in(&self.fixed, block)
    }

    /// Marks a block as used; returns false if it was already.
    pub(super) fn claim(&mut self, block: BlockNo) -> bool {
        let byte = &mut self.used[(block.0 / 8) as usize];
        let bit = 1 << (block.0 % 8);
        let first_time = *byte & bit == 0;
        *byte |= bit;
        first_time
    }

    pub(super) fn release(&mut self, block: BlockNo) {
        self.used[(block.0 / 8) as usize] &= !(1 << (block.0 % 8));
    }

    /// Takes a free block. Only correct after pass 1, when all used blocks are known.
    pub(super) fn take_block(&mut self) -> Option<BlockNo> {
        let first = self.geo.first_data_block as u32 + 1;
        let free = bitmap::first_zero(&self.used, first, self.geo.blocks as u32)?;
        let block = BlockNo(free.into());
        self.claim(block);
        Some(block)
    }
}

/// Returns true if one of these ranges, which are sorted, has the block. Damaged descriptors make
/// them overlap.
pub(super) fn is_in(ranges: &[Range<u64>], block: BlockNo) -> bool {
    let behind = ranges.partition_point(|range| range.start <= block.0);
    ranges[..behind].iter().rev().any(|range| range.contains(&block.0))
}
