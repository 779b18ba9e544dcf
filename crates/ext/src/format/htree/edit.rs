//! Changing a directory's index: the way to a leaf, the nodes on it, and how a full leaf is cut in two.

use super::super::dir::{DirEntry, Entries, Form, encode_rec_len, record_bytes};
use super::{
    ENTRY_BYTES, Hasher, IndexEntry, LEVELS_MAX, NODE_ENTRIES, ROOT_ENTRIES, ROOT_INFO, ReadBlock, covering, limit,
};
use crate::format::superblock::{Incompat, Superblock};
use crate::format::{InodeNo, put_u16, put_u32};

/// A node on the way to a leaf.
#[derive(Debug, Clone)]
pub struct WayNode {
    /// The node's block in the directory.
    pub lbn: u32,
    /// The node's entries.
    pub entries: Vec<IndexEntry>,
    /// The entry that leads on.
    pub at: usize,
}

/// The way from the root of an index to the leaf of a name.
#[derive(Debug, Clone)]
pub struct Way {
    /// The nodes, the root first.
    pub steps: Vec<WayNode>,
    /// The leaf's block in the directory.
    pub leaf: u32,
    /// The hash function of the index.
    pub hasher: Hasher,
    /// The number of the hash function, as the root stores it.
    pub hash_version: u8,
}

/// Returns the most levels of interior nodes below a root.
pub fn levels_max(sb: &Superblock) -> u8 {
    if sb.incompat().contains(Incompat::LARGE_DIR) { LEVELS_MAX + 1 } else { LEVELS_MAX }
}

impl WayNode {
    /// Returns the entry that leads on.
    fn entry(&self) -> IndexEntry {
        self.entries[self.at]
    }
}

impl Way {
    /// Returns the hash at which the leaf begins. Bit 0: the leaf before it also has names of that hash.
    pub fn first_hash(&self) -> u32 {
        self.steps.iter().map(|step| step.entry().hash).max().unwrap_or(0)
    }

    /// Returns the hash at which the next leaf begins, if there is one.
    pub fn next_hash(&self) -> Option<u32> {
        self.steps.iter().rev().find_map(|step| step.entries.get(step.at + 1)).map(|entry| entry.hash)
    }

    /// Goes on to the next leaf; returns how many nodes it entered for that, `None` if there is no other leaf.
    ///
    /// # Errors
    /// If a node is damaged or cannot be read.
    pub fn advance<R: ReadBlock>(&mut self, reader: &mut R) -> Result<Option<usize>, R::Error> {
        let Some(turn) = self.steps.iter().rposition(|step| step.at + 1 < step.entries.len()) else {
            return Ok(None);
        };
        self.steps[turn].at += 1;
        for below in turn + 1..self.steps.len() {
            let lbn = self.steps[below - 1].entry().block;
            let (block, place) = reader.read(lbn)?;
            self.steps[below] = WayNode { lbn, entries: super::node(block.as_ref(), place)?, at: 0 };
        }
        self.leaf = self.steps[self.steps.len() - 1].entry().block;
        Ok(Some(self.steps.len() - 1 - turn))
    }
}

/// Finds the way to the leaf for a name. Where several leaves hold names of one hash it is the first of them.
///
/// # Errors
/// If the index is damaged or a block cannot be read.
pub fn way<R: ReadBlock>(reader: &mut R, name: &[u8], sb: &Superblock) -> Result<Way, R::Error> {
    descend(reader, sb, |hasher| hasher.hash(name).major)
}

/// Finds the way to the leaf that has names of a hash, the first of them.
///
/// # Errors
/// If the index is damaged or a block cannot be read.
pub fn way_to_hash<R: ReadBlock>(reader: &mut R, hash: u32, sb: &Superblock) -> Result<Way, R::Error> {
    descend(reader, sb, |_| hash)
}

fn descend<R: ReadBlock>(reader: &mut R, sb: &Superblock, hash_of: impl Fn(&Hasher) -> u32) -> Result<Way, R::Error> {
    let (block, place) = reader.read(0)?;
    let (info, mut entries) = super::root(block.as_ref(), levels_max(sb), place)?;
    let hasher = Hasher::of(info.hash_version, sb)
        .ok_or_else(|| place.damage(format!("unknown hash version {}", info.hash_version)))?;
    let hash = hash_of(&hasher);
    let (mut steps, mut lbn) = (Vec::new(), 0);
    for level in (0..=info.levels).rev() {
        let at = covering(&entries, hash);
        let next = entries[at].block;
        steps.push(WayNode { lbn, entries, at });
        if level == 0 {
            return Ok(Way { steps, leaf: next, hasher, hash_version: info.hash_version });
        }
        let (block, place) = reader.read(next)?;
        (entries, lbn) = (super::node(block.as_ref(), place)?, next);
    }
    unreachable!("the last level returns")
}

/// Makes the rest of block 0, behind `.` and `..`, the root of an index.
pub fn put_root(block: &mut [u8], form: Form, hash_version: u8, levels: u8, entries: &[IndexEntry]) {
    put_u16(block, 16, encode_rec_len(block.len() - 12));
    block[ROOT_INFO..].fill(0);
    block[ROOT_INFO + 4..ROOT_INFO + 7].copy_from_slice(&[hash_version, (ROOT_ENTRIES - ROOT_INFO) as u8, levels]);
    put_entries(block, ROOT_ENTRIES, limit(block.len(), form, true), entries);
}

/// Makes a block an interior node.
pub fn put_node(block: &mut [u8], form: Form, entries: &[IndexEntry]) {
    block.fill(0);
    put_u16(block, 4, encode_rec_len(block.len()));
    put_entries(block, NODE_ENTRIES, limit(block.len(), form, false), entries);
}

fn put_entries(block: &mut [u8], at: usize, limit: usize, entries: &[IndexEntry]) {
    debug_assert!((1..=limit).contains(&entries.len()), "{} entries in a node of {limit}", entries.len());
    for (i, entry) in entries.iter().enumerate() {
        put_u32(block, at + i * ENTRY_BYTES, entry.hash);
        put_u32(block, at + i * ENTRY_BYTES + 4, entry.block);
    }
    // In the place of the first hash, which is less than all others.
    put_u16(block, at, limit as u16);
    put_u16(block, at + 2, entries.len() as u16);
}

/// A name in a leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The name's hash.
    pub hash: u32,
    /// The entry's first byte in the leaf.
    pub offset: usize,
    /// The inode that it names.
    pub inode: InodeNo,
    /// The type byte.
    pub type_byte: u8,
    /// The name.
    pub name: Vec<u8>,
}

impl Named {
    /// Returns the bytes of the name's entry.
    pub fn bytes(&self) -> usize {
        record_bytes(self.name.len())
    }
}

/// Returns the names of a block but `.` and `..`, by their hashes.
pub fn names_by_hash(entries: Entries<'_>, hasher: &Hasher) -> Vec<Named> {
    let named = |entry: DirEntry<'_>| Named {
        hash: hasher.hash(entry.name).major,
        offset: entry.offset,
        inode: entry.inode,
        type_byte: entry.type_byte,
        name: entry.name.to_vec(),
    };
    let mut names: Vec<Named> = entries.used().filter(|entry| !matches!(entry.name, b"." | b"..")).map(named).collect();
    names.sort_by_key(|named| named.hash);
    names
}

/// Returns the place at which names, two or more in the order of their hashes, are cut in two: both parts take about
/// as many bytes.
pub fn middle(names: &[Named]) -> usize {
    let total: usize = names.iter().map(Named::bytes).sum();
    let mut before = 0;
    let uneven = |at: usize, before: &mut usize| {
        *before += names[at - 1].bytes();
        (at, (2 * *before).abs_diff(total))
    };
    let cuts = (1..names.len()).map(|at| uneven(at, &mut before));
    cuts.min_by_key(|(_, difference)| *difference).map_or(1, |(at, _)| at)
}

/// Returns the index entry of the leaf that begins at `at` of `names`. Its lowest bit is set if the leaf before it has
/// names of the same hash.
pub fn entry_at(names: &[Named], at: usize, block: u32) -> IndexEntry {
    let continues = names[at - 1].hash == names[at].hash;
    IndexEntry { hash: names[at].hash | u32::from(continues), block }
}

#[cfg(test)]
mod tests {
    use super::super::{node, root};
    use super::*;
    use crate::format::{Place, Structure};
    use proptest::prelude::*;

    const PLACE: Place = Place::of(Structure::Index { inode: InodeNo(12), lbn: 0 });

    fn named(hash: u32, len: usize) -> Named {
        Named { hash, offset: 0, inode: InodeNo(12), type_byte: 1, name: vec![b'n'; len] }
    }

    proptest! {
        #[test]
        fn nodes_are_read_as_they_were_put(
            hashes in prop::collection::btree_set(1u32..u32::MAX, 0..122), has_tail in any::<bool>(), levels in 0u8..2,
        ) {
            let form = Form { filetype: true, inodes: 100, has_tail, is_whole: true };
            let hashes = std::iter::once(0).chain(hashes);
            let entries: Vec<_> = hashes.zip(1..).map(|(hash, block)| IndexEntry { hash, block }).collect();
            let mut block = vec![0xA5; 1024];
            put_root(&mut block, form, 1, levels, &entries);
            let (info, found) = root(&block, LEVELS_MAX, PLACE).unwrap();
            prop_assert_eq!((info.hash_version, info.levels, &found), (1, levels, &entries));
            put_node(&mut block, form, &entries);
            prop_assert_eq!(&node(&block, PLACE).unwrap(), &entries);
        }

        #[test]
        fn a_cut_leaves_room_for_any_name_in_both_parts(lengths in prop::collection::vec(1usize..256, 2..80)) {
            let mut used = 0;
            let fits = |len: &usize| {
                used += record_bytes(*len);
                used <= 1012
            };
            let names: Vec<_> = lengths.into_iter().take_while(fits).map(|len| named(2, len)).collect();
            prop_assume!(names.len() >= 2);
            let at = middle(&names);
            prop_assert!((1..names.len()).contains(&at));
            for part in [&names[..at], &names[at..]] {
                let bytes: usize = part.iter().map(Named::bytes).sum();
                prop_assert!(bytes + record_bytes(255) <= 1012, "{bytes} bytes");
            }
        }
    }

    #[test]
    fn an_entry_says_whether_the_hash_goes_on() {
        let names = [named(2, 5), named(4, 5), named(4, 5)];
        assert_eq!(entry_at(&names, 1, 7), IndexEntry { hash: 4, block: 7 });
        assert_eq!(entry_at(&names, 2, 7), IndexEntry { hash: 5, block: 7 });
    }
}
