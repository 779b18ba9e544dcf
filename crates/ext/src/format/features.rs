//! The features of the format, and the use that each allows: the one table that mounting, checking and
//! `docs/formats/ext4.md` go by.
//!
//! A feature is a bit in one of three words, and the word says what a driver must do that does not know it: ignore it
//! ([`Compat`]), only read the volume ([`RoCompat`]), or leave the volume alone ([`Incompat`]).

use super::Unsupported;
use super::error::Reason;
use super::superblock::{Compat, Incompat, RoCompat, Superblock};

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
const UNJOURNALED: &str = "without a journal not supported for writing; the volume can only be read";
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
pub fn present(sb: &Superblock) -> Vec<Present> {
    let words = [
        (Word::Compat, sb.compat().bits()),
        (Word::Incompat, sb.incompat().bits()),
        (Word::RoCompat, sb.ro_compat().bits()),
    ];
    let mut found = Vec::new();
    for (word, bits) in words {
        let known = FEATURES.iter().filter(|feature| feature.word == word && feature.bit & bits != 0);
        found.extend(known.map(|feature| Present { name: feature.name.to_owned(), access: access(sb, feature) }));
        let named = FEATURES.iter().filter(|feature| feature.word == word).fold(0, |all, feature| all | feature.bit);
        let unknown = (0..32).map(|bit| 1u32 << bit).filter(|bit| bits & !named & bit != 0);
        found.extend(unknown.map(|bit| Present { name: format!("{bit:#x}"), access: word.of_unknown() }));
    }
    found
}

/// Returns the use that a feature allows of this volume.
fn access(sb: &Superblock, feature: &Feature) -> Access {
    let of_journal = match feature.word {
        Word::Incompat => INCOMPAT_OF_JOURNAL.bits(),
        Word::RoCompat => RO_COMPAT_OF_JOURNAL.bits(),
        Word::Compat => 0,
    };
    let lacks_journal = !sb.compat().contains(Compat::HAS_JOURNAL) && of_journal & feature.bit != 0;
    match feature.access {
        Access::Write if lacks_journal => Access::Read(UNJOURNALED),
        access => access,
    }
}

/// Returns the reasons for which a volume is refused, and those for which it is not written.
pub(super) fn reasons(sb: &Superblock) -> (Unsupported, Vec<Reason>) {
    let (mut refused, mut read_only) = (Vec::new(), Vec::new());
    for Present { name: feature, access } in present(sb) {
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
