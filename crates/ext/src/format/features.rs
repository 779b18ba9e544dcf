//! The features of the format, and the use that each allows: the one table that mounting, checking and
//! `docs/formats/ext4.md` go by.
//!
//! A feature is a bit in one of three words, and the word says what a driver must do that does not know it: ignore it
//! ([`Compat`]), only read the volume ([`RoCompat`]), or leave the volume alone ([`Incompat`]).

use bitflags::bitflags;

use super::Unsupported;
use super::error::Reason;

bitflags! {
    /// Features that a driver may ignore.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Compat: u32 {
        /// Blocks are preallocated for directories.
        const DIR_PREALLOC = 0x0001;
        /// The volume has AFS inodes.
        const IMAGIC_INODES = 0x0002;
        /// The volume has a journal.
        const HAS_JOURNAL = 0x0004;
        /// Extended attributes may exist.
        const EXT_ATTR = 0x0008;
        /// Blocks are reserved for growing the descriptor table.
        const RESIZE_INODE = 0x0010;
        /// Directories may be indexed.
        const DIR_INDEX = 0x0020;
        /// An obsolete feature: `lazy_bg`.
        const LAZY_BG = 0x0040;
        /// An obsolete feature: `exclude_bitmap`.
        const EXCLUDE_BITMAP = 0x0100;
        /// Superblock copies in two groups only.
        const SPARSE_SUPER2 = 0x0200;
        /// The journal may contain fast commits.
        const FAST_COMMIT = 0x0400;
        /// Inode numbers never change.
        const STABLE_INODES = 0x0800;
        /// Orphans are listed in a file.
        const ORPHAN_FILE = 0x1000;
    }

    /// Features that a driver must know to use the volume at all.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Incompat: u32 {
        /// Files may be compressed.
        const COMPRESSION = 0x0001;
        /// Directory entries carry the file's type.
        const FILETYPE = 0x0002;
        /// The journal must be replayed first.
        const NEEDS_RECOVERY = 0x0004;
        /// The volume is not a file system but the journal of one.
        const JOURNAL_DEV = 0x0008;
        /// Descriptors lie in their own meta group.
        const META_BG = 0x0010;
        /// Files may be mapped by extents.
        const EXTENT = 0x0040;
        /// Block numbers have 64 bits.
        const BIT64 = 0x0080;
        /// Multiple mount protection is on.
        const MMP = 0x0100;
        /// A group's metadata may lie in another group.
        const FLEX_BG = 0x0200;
        /// Attribute values may lie in inodes.
        const EA_INODE = 0x0400;
        /// Data may lie in directory entries.
        const DIRDATA = 0x1000;
        /// The checksum seed is stored.
        const METADATA_CSUM_SEED = 0x2000;
        /// Directory indexes may have three levels.
        const LARGE_DIR = 0x4000;
        /// Small files may lie inside the inode.
        const INLINE_DATA = 0x8000;
        /// Files may be encrypted.
        const ENCRYPT = 0x10000;
        /// Names may be case-insensitive.
        const CASEFOLD = 0x20000;
    }

    /// Features that a driver must know to write the volume.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct RoCompat: u32 {
        /// Superblock copies only in groups 1 and powers of 3, 5, 7.
        const SPARSE_SUPER = 0x0001;
        /// Files of 2 GiB and more.
        const LARGE_FILE = 0x0002;
        /// Never used by any driver.
        const BTREE_DIR = 0x0004;
        /// 48-bit block counts in inodes.
        const HUGE_FILE = 0x0008;
        /// Descriptor checksums and uninitialised groups.
        const UNINIT_BG = 0x0010;
        /// Directories with more subdirectories than links can count.
        const DIR_NLINK = 0x0020;
        /// The extra part of large inodes is described.
        const EXTRA_ISIZE = 0x0040;
        /// The volume has snapshots.
        const HAS_SNAPSHOT = 0x0080;
        /// Quota files kept by the file system.
        const QUOTA = 0x0100;
        /// Allocation in clusters of blocks.
        const BIGALLOC = 0x0200;
        /// Checksums over all metadata.
        const METADATA_CSUM = 0x0400;
        /// The volume is a replica.
        const REPLICA = 0x0800;
        /// The volume is never to be written.
        const READ_ONLY = 0x1000;
        /// Project quota is kept.
        const PROJECT = 0x2000;
        /// Blocks shared by several files on purpose.
        const SHARED_BLOCKS = 0x4000;
        /// Files protected by hash trees.
        const VERITY = 0x8000;
        /// The orphan file has entries.
        const ORPHAN_PRESENT = 0x10000;
    }
}

/// The three words of features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeatureSet {
    /// Features that a driver may ignore.
    pub compat: Compat,
    /// Features that a driver must know to use the volume.
    pub incompat: Incompat,
    /// Features that a driver must know to write the volume.
    pub ro_compat: RoCompat,
}

impl FeatureSet {
    /// Returns the bits of a word.
    pub fn bits(&self, word: Word) -> u32 {
        match word {
            Word::Compat => self.compat.bits(),
            Word::Incompat => self.incompat.bits(),
            Word::RoCompat => self.ro_compat.bits(),
        }
    }
}

/// The word of the superblock that holds a feature's bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Word {
    /// `s_feature_compat`.
    Compat,
    /// `s_feature_incompat`.
    Incompat,
    /// `s_feature_ro_compat`.
    RoCompat,
}

impl Word {
    /// Returns the use of a volume that has a feature of this word that is not known.
    fn of_unknown(self) -> Access {
        match self {
            Word::Compat => Access::Write,
            Word::Incompat => Access::Refused(KERNEL),
            Word::RoCompat => Access::Read(READ),
        }
    }
}

/// The use of a volume that a feature allows to this crate. The text is the advice for what it does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading and writing.
    Write,
    /// Reading only.
    Read(&'static str),
    /// Neither.
    Refused(&'static str),
}

/// A feature that this crate knows by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feature {
    /// The word that holds the bit.
    pub word: Word,
    /// The bit, as a mask.
    pub bit: u32,
    /// The name as `tune2fs -O` spells it.
    pub name: &'static str,
    /// The use that the feature allows.
    pub access: Access,
    /// The condition under which mkfs sets it.
    pub made: Made,
}

/// The condition under which mkfs sets a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Made {
    /// On ext4 volumes, unless told otherwise.
    ByDefault,
    /// If asked for.
    OnRequest,
    /// Under none.
    Never,
}

const READ: &str = "not supported for writing; the volume can only be read";
const UNJOURNALED: &str =
    "without a journal not supported for writing, and the volume can only be read; `moafs tune -j` adds a journal";
const KERNEL: &str = "not supported: mount it with the kernel";
const JOURNAL: &str = "this is the journal of another volume";

const fn compat(bit: Compat, name: &'static str) -> Feature {
    Feature { word: Word::Compat, bit: bit.bits(), name, access: Access::Write, made: Made::Never }
}

const fn incompat(bit: Incompat, name: &'static str, access: Access) -> Feature {
    Feature { word: Word::Incompat, bit: bit.bits(), name, access, made: Made::Never }
}

const fn ro_compat(bit: RoCompat, name: &'static str, access: Access) -> Feature {
    Feature { word: Word::RoCompat, bit: bit.bits(), name, access, made: Made::Never }
}

const fn by_default(feature: Feature) -> Feature {
    Feature { made: Made::ByDefault, ..feature }
}

const fn on_request(feature: Feature) -> Feature {
    Feature { made: Made::OnRequest, ..feature }
}

/// All features that have a name, by word and bit.
pub const FEATURES: &[Feature] = &[
    compat(Compat::DIR_PREALLOC, "dir_prealloc"),
    compat(Compat::IMAGIC_INODES, "imagic_inodes"),
    by_default(compat(Compat::HAS_JOURNAL, "has_journal")),
    by_default(compat(Compat::EXT_ATTR, "ext_attr")),
    by_default(compat(Compat::RESIZE_INODE, "resize_inode")),
    by_default(compat(Compat::DIR_INDEX, "dir_index")),
    compat(Compat::LAZY_BG, "lazy_bg"),
    compat(Compat::EXCLUDE_BITMAP, "exclude_bitmap"),
    on_request(compat(Compat::SPARSE_SUPER2, "sparse_super2")),
    compat(Compat::FAST_COMMIT, "fast_commit"),
    on_request(compat(Compat::STABLE_INODES, "stable_inodes")),
    on_request(compat(Compat::ORPHAN_FILE, "orphan_file")),
    incompat(Incompat::COMPRESSION, "compression", Access::Refused(KERNEL)),
    by_default(incompat(Incompat::FILETYPE, "filetype", Access::Write)),
    incompat(Incompat::NEEDS_RECOVERY, "needs_recovery", Access::Write),
    incompat(Incompat::JOURNAL_DEV, "journal_dev", Access::Refused(JOURNAL)),
    on_request(incompat(Incompat::META_BG, "meta_bg", Access::Write)),
    by_default(incompat(Incompat::EXTENT, "extent", Access::Write)),
    by_default(incompat(Incompat::BIT64, "64bit", Access::Write)),
    incompat(Incompat::MMP, "mmp", Access::Read(READ)),
    by_default(incompat(Incompat::FLEX_BG, "flex_bg", Access::Write)),
    incompat(Incompat::EA_INODE, "ea_inode", Access::Read(READ)),
    incompat(Incompat::DIRDATA, "dirdata", Access::Refused(KERNEL)),
    on_request(incompat(Incompat::METADATA_CSUM_SEED, "metadata_csum_seed", Access::Write)),
    on_request(incompat(Incompat::LARGE_DIR, "large_dir", Access::Write)),
    incompat(Incompat::INLINE_DATA, "inline_data", Access::Read(READ)),
    incompat(Incompat::ENCRYPT, "encrypt", Access::Read(READ)),
    incompat(Incompat::CASEFOLD, "casefold", Access::Read(READ)),
    by_default(ro_compat(RoCompat::SPARSE_SUPER, "sparse_super", Access::Write)),
    by_default(ro_compat(RoCompat::LARGE_FILE, "large_file", Access::Write)),
    ro_compat(RoCompat::BTREE_DIR, "btree_dir", Access::Write),
    by_default(ro_compat(RoCompat::HUGE_FILE, "huge_file", Access::Write)),
    on_request(ro_compat(RoCompat::UNINIT_BG, "uninit_bg", Access::Write)),
    by_default(ro_compat(RoCompat::DIR_NLINK, "dir_nlink", Access::Write)),
    by_default(ro_compat(RoCompat::EXTRA_ISIZE, "extra_isize", Access::Write)),
    ro_compat(RoCompat::HAS_SNAPSHOT, "has_snapshot", Access::Read(READ)),
    ro_compat(RoCompat::QUOTA, "quota", Access::Read(READ)),
    ro_compat(RoCompat::BIGALLOC, "bigalloc", Access::Read(READ)),
    by_default(ro_compat(RoCompat::METADATA_CSUM, "metadata_csum", Access::Write)),
    ro_compat(RoCompat::REPLICA, "replica", Access::Read(READ)),
    ro_compat(RoCompat::READ_ONLY, "read-only", Access::Read(READ)),
    ro_compat(RoCompat::PROJECT, "project", Access::Read(READ)),
    ro_compat(RoCompat::SHARED_BLOCKS, "shared_blocks", Access::Read(READ)),
    ro_compat(RoCompat::VERITY, "verity", Access::Read(READ)),
    ro_compat(RoCompat::ORPHAN_PRESENT, "orphan_present", Access::Write),
];

/// Features that are written through a journal only: what they add spans sectors and blocks, and only a journal changes
/// these at one moment.
const INCOMPAT_OF_JOURNAL: Incompat = Incompat::EXTENT;
const RO_COMPAT_OF_JOURNAL: RoCompat = RoCompat::METADATA_CSUM.union(RoCompat::UNINIT_BG);

/// A feature that a volume has: a row of the table, or a bit without a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Present {
    /// The feature's name, or its bit as a hexadecimal number.
    pub name: String,
    /// The use that the feature allows.
    pub access: Access,
}

/// Returns the features of a volume, in the order of the table; those without a name after those of their word.
pub fn present(set: FeatureSet) -> Vec<Present> {
    let mut found = Vec::new();
    for word in [Word::Compat, Word::Incompat, Word::RoCompat] {
        let bits = set.bits(word);
        let known = FEATURES.iter().filter(|feature| feature.word == word && feature.bit & bits != 0);
        found.extend(known.map(|feature| Present { name: feature.name.to_owned(), access: access(set, feature) }));
        let named = FEATURES.iter().filter(|feature| feature.word == word).fold(0, |all, feature| all | feature.bit);
        let unknown = (0..32).map(|bit| 1u32 << bit).filter(|bit| bits & !named & bit != 0);
        found.extend(unknown.map(|bit| Present { name: format!("{bit:#x}"), access: word.of_unknown() }));
    }
    found
}

/// Returns the use that a feature allows of this volume.
fn access(set: FeatureSet, feature: &Feature) -> Access {
    let of_journal = match feature.word {
        Word::Incompat => INCOMPAT_OF_JOURNAL.bits(),
        Word::RoCompat => RO_COMPAT_OF_JOURNAL.bits(),
        Word::Compat => 0,
    };
    let lacks_journal = !set.compat.contains(Compat::HAS_JOURNAL) && of_journal & feature.bit != 0;
    match feature.access {
        Access::Write if lacks_journal => Access::Read(UNJOURNALED),
        access => access,
    }
}

/// Returns the reasons for which a volume is refused, and those for which it is not written.
pub(super) fn reasons(set: FeatureSet) -> (Unsupported, Vec<Reason>) {
    let (mut refused, mut read_only) = (Vec::new(), Vec::new());
    for Present { name: feature, access } in present(set) {
        match access {
            Access::Write => {}
            Access::Read(advice) => read_only.push(Reason { feature, advice: advice.to_owned() }),
            Access::Refused(advice) => refused.push(Reason { feature, advice: advice.to_owned() }),
        }
    }
    (Unsupported { reasons: refused }, read_only)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the rows of a section's table: bit, name, read, write, made.
    fn rows(section: &str) -> Vec<[String; 5]> {
        let text = include_str!("../../../../docs/formats/ext4.md");
        let start = text.find(&format!("\n### {section}\n")).expect("the section exists") + 5;
        let body = &text[start..];
        let body = &body[..body.find("\n#").unwrap_or(body.len())];
        let cells = |line: &str| line.split('|').skip(1).take(5).map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        let is_row = |line: &&str| line.starts_with("| 0x");
        body.lines().filter(is_row).map(|line| cells(line).try_into().expect("five cells")).collect()
    }

    #[test]
    fn the_tables_of_the_manual_are_those_of_the_code() {
        for (word, section) in
            [(Word::Compat, "2.1 compat"), (Word::Incompat, "2.2 incompat"), (Word::RoCompat, "2.3 ro_compat")]
        {
            let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
            let expected: Vec<[String; 5]> = FEATURES
                .iter()
                .filter(|feature| feature.word == word)
                .map(|feature| {
                    let read = !matches!(feature.access, Access::Refused(_));
                    let made = match feature.made {
                        Made::ByDefault => "yes",
                        Made::OnRequest => "-O",
                        Made::Never => "",
                    };
                    let made = made.to_owned();
                    let bit = format!("{:#06X}", feature.bit).replace("0X", "0x");
                    [bit, feature.name.to_owned(), yes(read), yes(feature.access == Access::Write), made]
                })
                .collect();
            assert_eq!(rows(section), expected, "section {section}");
        }
    }

    #[test]
    fn every_named_bit_has_one_row() {
        let all = |word: Word| {
            let of_word = FEATURES.iter().filter(move |feature| feature.word == word);
            of_word.fold(0, |all, feature| {
                assert_eq!((feature.bit.count_ones(), all & feature.bit), (1, 0), "{}", feature.name);
                all | feature.bit
            })
        };
        assert_eq!(all(Word::Compat), Compat::all().bits());
        assert_eq!(all(Word::Incompat), Incompat::all().bits());
        assert_eq!(all(Word::RoCompat), RoCompat::all().bits());
    }
}
