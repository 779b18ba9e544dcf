//! The facts that recovery has noted about the volume as it was at mount: a few bits per inode, a
//! bit per block, and counts where they are wrong.

use std::collections::{BTreeMap, BTreeSet};

use super::references::References;
use crate::format::inode::Inode;
use crate::format::{BlockNo, Geometry, GroupNo, InodeNo, bitmap};

/// A bit per inode, kept for the groups that have any.
struct Bits {
    per_group: u32,
    groups: BTreeMap<u32, Vec<u8>>,
}

impl Bits {
    fn new(geo: &Geometry) -> Bits {
        Bits { per_group: geo.inodes_per_group, groups: BTreeMap::new() }
    }

    fn at(&self, ino: u32) -> (u32, u32) {
        ((ino - 1) / self.per_group, (ino - 1) % self.per_group)
    }

    fn test(&self, ino: u32) -> bool {
        let (group, index) = self.at(ino);
        self.groups.get(&group).is_some_and(|map| bitmap::test(map, index))
    }

    /// Sets a bit; returns true if it was clear.
    fn set(&mut self, ino: u32) -> bool {
        let (group, index) = self.at(ino);
        let bytes = self.per_group.div_ceil(8) as usize;
        let map = self.groups.entry(group).or_insert_with(|| vec![0; bytes]);
        let was = bitmap::test(map, index);
        bitmap::set(map, index);
        !was
    }

    fn clear(&mut self, ino: u32) {
        let (group, index) = self.at(ino);
        if let Some(map) = self.groups.get_mut(&group) {
            bitmap::clear(map, index);
        }
    }

    /// Returns the first inodes whose bits are set, at most `max`. Groups without any are forgotten.
    fn first(&mut self, max: usize) -> Vec<u32> {
        self.groups.retain(|_, map| map.iter().any(|byte| *byte != 0));
        let per_group = self.per_group;
        let in_group = |(group, map): (&u32, &Vec<u8>)| {
            let first = group * per_group + 1;
            let set: Vec<u32> = (0..per_group).filter(|index| bitmap::test(map, *index)).collect();
            set.into_iter().map(move |index| first + index)
        };
        self.groups.iter().flat_map(in_group).take(max).collect()
    }

    fn count(&self, group: GroupNo) -> u32 {
        self.groups.get(&group.0).map_or(0, |map| map.iter().map(|byte| byte.count_ones()).sum())
    }

    fn memory(&self) -> usize {
        self.groups.len() * self.per_group.div_ceil(8) as usize
    }
}

/// The reason for which a crash of moafs cannot have left a name.
pub(super) enum Wrong {
    /// It leads to an inode that has no names (the root, a reserved one, the directory itself), or
    /// to no inode.
    Target,
    /// Its inode has fewer links than names.
    Links,
}

/// The notes of recovery. Everything is as it was at mount, since every inode and directory is
/// looked at before its first change.
pub(super) struct Known {
    geo: Geometry,
    /// Inodes whose link count and kind were noted.
    facts: Bits,
    directories: Bits,
    /// Inodes that a directory which was read names.
    named: Bits,
    /// Directories whose names were noted.
    read: Bits,
    /// Inodes whose blocks were noted, and which were repaired: they may change.
    mapped: Bits,
    /// Inodes that were changed through the mount.
    touched: Bits,
    /// Links at mount minus names found so far, where files have several links and where directories have too many.
    excess: BTreeMap<u32, Vec<u16>>,
    /// Blocks that belong to inodes, a bitmap per group.
    owned: Vec<Vec<u8>>,
    /// Those of them that hold attributes, a bitmap for each group that has any.
    attributes: BTreeMap<u32, Vec<u8>>,
    /// The numbers of references that attribute blocks say.
    pub(super) references: References,
    /// Directories still to be read, each with the directory that names it.
    pub(super) pending: Vec<(u32, u32)>,
    /// The inode that `..` names in directories that were read before their turn.
    pub(super) dot_dots: BTreeMap<u32, u32>,
    /// Directories with more than one name.
    pub(super) doubles: BTreeSet<u32>,
    /// Directories whose `..` does not name the directory that names them, by number, with that
    /// directory.
    pub(super) misplaced: BTreeMap<u32, u32>,
    /// Files that were being renamed.
    renames: Bits,
    /// Inodes that are being looked at.
    pub(super) visiting: BTreeSet<u32>,
    /// Directories per group, as the descriptors said at mount.
    pub(super) directories_stored: Vec<u32>,
    /// True if there are leaks that can be returned only when the volume is not in use.
    pub(super) incomplete: bool,
}

impl Known {
    pub(super) fn new(geo: &Geometry, directories_stored: Vec<u32>) -> Known {
        Known {
            facts: Bits::new(geo),
            directories: Bits::new(geo),
            named: Bits::new(geo),
            read: Bits::new(geo),
            mapped: Bits::new(geo),
            touched: Bits::new(geo),
            excess: BTreeMap::new(),
            owned: vec![Vec::new(); geo.groups as usize],
            attributes: BTreeMap::new(),
            references: References::new(),
            pending: vec![(InodeNo::ROOT.0, InodeNo::ROOT.0)],
            dot_dots: BTreeMap::new(),
            doubles: BTreeSet::new(),
            misplaced: BTreeMap::new(),
            renames: Bits::new(geo),
            visiting: BTreeSet::new(),
            directories_stored,
            incomplete: false,
            geo: geo.clone(),
        }
    }

    /// Forgets all names, which recovery itself has changed; they are read again.
    pub(super) fn forget_names(&mut self) {
        let fresh = Known::new(&self.geo, std::mem::take(&mut self.directories_stored));
        let before = std::mem::replace(self, fresh);
        self.mapped = before.mapped;
        self.owned = before.owned;
        self.attributes = before.attributes;
        self.references = before.references;
        self.incomplete = before.incomplete;
    }

    pub(super) fn memory(&self) -> usize {
        let bits =
            [&self.facts, &self.directories, &self.named, &self.read, &self.mapped, &self.touched, &self.renames];
        let pairs = self.pending.capacity() + self.dot_dots.len() + self.misplaced.len() + self.doubles.len();
        bits.iter().map(|bits| bits.memory()).sum::<usize>()
            + self.excess.values().map(|counts| 2 * counts.len()).sum::<usize>()
            + self.owned.iter().chain(self.attributes.values()).map(Vec::len).sum::<usize>()
            + self.references.memory()
            + pairs * size_of::<(u32, u32)>()
    }

    // -- inodes

    pub(super) fn has_facts(&self, ino: u32) -> bool {
        self.facts.test(ino)
    }

    /// Notes an inode as it was at mount.
    pub(super) fn note_facts(&mut self, ino: u32, inode: &Inode) {
        self.facts.set(ino);
        if inode.links == 0 {
            return;
        }
        if inode.is_dir() {
            self.directories.set(ino);
        } else if inode.links > 1 {
            *self.excess_of(ino) = inode.links;
            if inode.renaming.is_some() {
                self.renames.set(ino);
            }
        }
    }

    /// Returns the first files whose renames have not ended, at most `max`.
    pub(super) fn renames(&mut self, max: usize) -> Vec<u32> {
        self.renames.first(max)
    }

    pub(super) fn note_renamed(&mut self, ino: u32) {
        self.renames.clear(ino);
    }

    pub(super) fn is_directory(&self, ino: u32) -> bool {
        self.directories.test(ino)
    }

    pub(super) fn directories_in(&self, group: GroupNo) -> u32 {
        self.directories.count(group)
    }

    pub(super) fn is_named(&self, ino: u32) -> bool {
        self.named.test(ino)
    }

    pub(super) fn is_read(&self, ino: u32) -> bool {
        self.read.test(ino)
    }

    pub(super) fn is_mapped(&self, ino: u32) -> bool {
        self.mapped.test(ino)
    }

    pub(super) fn set_mapped(&mut self, ino: u32) {
        self.mapped.set(ino);
    }

    pub(super) fn is_touched(&self, ino: u32) -> bool {
        self.touched.test(ino)
    }

    /// Notes that an inode is about to be changed through the mount. Returns true if all facts of
    /// it have been noted.
    pub(super) fn touch(&mut self, ino: u32) -> bool {
        self.touched.set(ino);
        self.facts.test(ino) && self.mapped.test(ino) && (!self.directories.test(ino) || self.read.test(ino))
    }

    /// Notes that an inode was made, or is about to be deleted: no facts of it are to be noted.
    pub(super) fn set_new(&mut self, ino: u32) {
        for bits in [&mut self.facts, &mut self.read, &mut self.mapped] {
            bits.set(ino);
        }
        if self.excess(ino) > 0 {
            *self.excess_of(ino) = 0;
        }
    }

    // -- link counts

    pub(super) fn excess(&self, ino: u32) -> u16 {
        let (group, index) = self.facts.at(ino);
        self.excess.get(&group).map_or(0, |counts| counts[index as usize])
    }

    pub(super) fn excess_of(&mut self, ino: u32) -> &mut u16 {
        let (group, index) = self.facts.at(ino);
        let inodes = self.geo.inodes_per_group as usize;
        &mut self.excess.entry(group).or_insert_with(|| vec![0; inodes])[index as usize]
    }

    /// Takes all inodes with names that have links too many, each with the number of these.
    pub(super) fn take_excess(&mut self) -> Vec<(u32, u16)> {
        let per_group = self.geo.inodes_per_group;
        let mut found = Vec::new();
        for (group, counts) in std::mem::take(&mut self.excess) {
            let numbered = (group * per_group + 1..).zip(counts).filter(|(_, excess)| *excess > 0);
            found.extend(numbered.filter(|(ino, _)| *ino == InodeNo::ROOT.0 || self.named.test(*ino)));
        }
        found
    }

    // -- names

    /// Notes that `directory` names `child`, whose facts are known. Returns true if `child` is a
    /// directory.
    pub(super) fn note_name(&mut self, directory: u32, child: u32) -> Result<bool, Wrong> {
        if child < self.geo.first_ino || child > self.geo.inodes || child == directory {
            return Err(Wrong::Target);
        }
        let first = self.named.set(child);
        if self.directories.test(child) {
            if first {
                self.pending.push((child, directory));
            } else {
                self.doubles.insert(child);
            }
            return Ok(true);
        }
        match self.excess(child) {
            0 if first => {}
            0 => return Err(Wrong::Links),
            _ => *self.excess_of(child) -= 1,
        }
        Ok(false)
    }

    /// Notes that all names in a directory with `links` links have been noted, those of
    /// `subdirectories` among them.
    pub(super) fn note_read(&mut self, directory: u32, links: u16, subdirectories: u32) {
        self.read.set(directory);
        // A single link says that there are too many subdirectories to count.
        let excess = u32::from(links).saturating_sub(subdirectories.saturating_add(2));
        if links > 1 && excess > 0 {
            *self.excess_of(directory) = excess as u16;
        }
    }

    // -- blocks

    /// Notes that a block belongs to an inode. Returns false if one was noted to own it already.
    pub(super) fn own(&mut self, block: u64) -> bool {
        let Some((group, bit)) = self.geo.bit_of_block(BlockNo(block)) else { return true };
        let owned = &mut self.owned[group.0 as usize];
        if owned.is_empty() {
            owned.resize(self.geo.block_bytes(), 0);
        }
        let was = bitmap::test(owned, bit);
        bitmap::set(owned, bit);
        !was
    }

    /// Notes that an inode refers to an attribute block, which says that it has `references` references. Returns false
    /// if the block was noted to be another one's, and not for attributes.
    pub(super) fn own_attributes(&mut self, block: u64, references: u32) -> bool {
        let is_first = self.own(block);
        let Some((group, bit)) = self.geo.bit_of_block(BlockNo(block)) else { return false };
        let bytes = self.geo.block_bytes();
        let attributes = self.attributes.entry(group.0).or_insert_with(|| vec![0; bytes]);
        if is_first {
            bitmap::set(attributes, bit);
            self.references.note(block, i64::from(references) - 1);
        } else if bitmap::test(attributes, bit) {
            self.references.note(block, -1);
        } else {
            return false;
        }
        true
    }

    /// Takes the bitmap of a group's owned blocks; empty if it has none.
    pub(super) fn take_owned(&mut self, group: GroupNo) -> Vec<u8> {
        std::mem::take(&mut self.owned[group.0 as usize])
    }
}
