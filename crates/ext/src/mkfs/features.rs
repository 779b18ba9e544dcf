//! The features of new volumes: those of each member of the family, those that older systems know, and the words with
//! which the user changes them (`-O` of mke2fs).

use super::error::MkfsError;
pub use crate::format::features::FeatureSet;
use crate::format::features::{FEATURES, Feature, Made, Word};
use crate::format::superblock::{Compat, Incompat, RoCompat};

impl FeatureSet {
    /// No features.
    pub const NONE: FeatureSet =
        FeatureSet { compat: Compat::empty(), incompat: Incompat::empty(), ro_compat: RoCompat::empty() };

    /// ext2 with neither a reserve for growth nor indexes.
    pub const PLAIN: FeatureSet = FeatureSet {
        compat: Compat::EXT_ATTR,
        incompat: Incompat::FILETYPE,
        ro_compat: RoCompat::SPARSE_SUPER.union(RoCompat::LARGE_FILE),
    };

    /// ext2 as mke2fs makes it.
    pub const EXT2: FeatureSet = FeatureSet {
        compat: Compat::EXT_ATTR.union(Compat::RESIZE_INODE).union(Compat::DIR_INDEX),
        ..FeatureSet::PLAIN
    };

    /// ext3 as mke2fs makes it.
    pub const EXT3: FeatureSet =
        FeatureSet { compat: FeatureSet::EXT2.compat.union(Compat::HAS_JOURNAL), ..FeatureSet::EXT2 };

    /// ext4 as mke2fs 1.42 makes it.
    const EXT4_OF_1_42: FeatureSet = FeatureSet {
        compat: FeatureSet::EXT3.compat,
        incompat: Incompat::FILETYPE.union(Incompat::EXTENT).union(Incompat::FLEX_BG),
        ro_compat: FeatureSet::EXT2
            .ro_compat
            .union(RoCompat::HUGE_FILE)
            .union(RoCompat::UNINIT_BG)
            .union(RoCompat::DIR_NLINK)
            .union(RoCompat::EXTRA_ISIZE),
    };

    /// ext4 as mke2fs 1.43 to 1.46 makes it, and 1.47.0 of Debian 12.
    pub const EXT4: FeatureSet = FeatureSet {
        compat: FeatureSet::EXT4_OF_1_42.compat,
        incompat: FeatureSet::EXT4_OF_1_42.incompat.union(Incompat::BIT64),
        ro_compat: FeatureSet::EXT4_OF_1_42.ro_compat.difference(RoCompat::UNINIT_BG).union(RoCompat::METADATA_CSUM),
    };

    /// ext4 as mke2fs 1.47 makes it where its configuration is not changed.
    const EXT4_OF_1_47: FeatureSet = FeatureSet {
        compat: FeatureSet::EXT4.compat.union(Compat::ORPHAN_FILE),
        incompat: FeatureSet::EXT4.incompat.union(Incompat::METADATA_CSUM_SEED),
        ro_compat: FeatureSet::EXT4.ro_compat,
    };

    /// Sets or clears a feature.
    fn set(&mut self, feature: &Feature, value: bool) {
        match feature.word {
            Word::Compat => self.compat.set(Compat::from_bits_retain(feature.bit), value),
            Word::Incompat => self.incompat.set(Incompat::from_bits_retain(feature.bit), value),
            Word::RoCompat => self.ro_compat.set(RoCompat::from_bits_retain(feature.bit), value),
        }
    }

    /// Applies a list as mke2fs takes it after `-O`: names with commas between them, `^` before those to be left out,
    /// and `none` for all.
    ///
    /// # Errors
    /// If a name is not known, or mkfs does not make the feature.
    pub fn apply(&mut self, list: &str) -> Result<(), MkfsError> {
        for word in list.split(',').filter(|word| !word.is_empty()) {
            if word == "none" {
                *self = FeatureSet::NONE;
                continue;
            }
            let (name, value) = word.strip_prefix('^').map_or((word, true), |name| (name, false));
            let feature = named(name).ok_or_else(|| refused(format!("{name} is no feature of ext volumes")))?;
            if value && feature.made == Made::Never {
                return Err(refused(format!("volumes with {name} are not made")));
            }
            self.set(feature, value);
        }
        // Checksums of all metadata include those of descriptors.
        if self.ro_compat.contains(RoCompat::METADATA_CSUM) {
            self.ro_compat.remove(RoCompat::UNINIT_BG);
        }
        Ok(())
    }

    /// Checks that the features go together.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), MkfsError> {
        let FeatureSet { compat, incompat, ro_compat } = *self;
        let rules = [
            (
                compat.contains(Compat::RESIZE_INODE) && incompat.contains(Incompat::META_BG),
                "resize_inode and meta_bg exclude each other: add ^resize_inode",
            ),
            (
                compat.contains(Compat::RESIZE_INODE)
                    && !ro_compat.contains(RoCompat::SPARSE_SUPER)
                    && !compat.contains(Compat::SPARSE_SUPER2),
                "resize_inode needs sparse_super: add ^resize_inode",
            ),
            (
                incompat.contains(Incompat::BIT64) && !incompat.contains(Incompat::EXTENT),
                "64bit needs extent: maps without extents have block numbers of 32 bits",
            ),
            (
                incompat.contains(Incompat::METADATA_CSUM_SEED) && !ro_compat.contains(RoCompat::METADATA_CSUM),
                "metadata_csum_seed needs metadata_csum",
            ),
            (
                compat.contains(Compat::ORPHAN_FILE) && !compat.contains(Compat::HAS_JOURNAL),
                "orphan_file needs has_journal",
            ),
        ];
        match rules.into_iter().find(|(is_broken, _)| *is_broken) {
            Some((_, rule)) => Err(refused(rule.to_owned())),
            None => Ok(()),
        }
    }

    /// Returns the names of the features, in the order in which `dumpe2fs` prints them.
    pub fn names(&self) -> Vec<&'static str> {
        let set = FEATURES.iter().filter(|feature| self.bits(feature.word) & feature.bit != 0);
        set.map(|feature| feature.name).collect()
    }
}

fn refused(problem: String) -> MkfsError {
    MkfsError::Features { problem }
}

/// Returns the feature of a name, also of the second names that mke2fs accepts.
fn named(name: &str) -> Option<&'static Feature> {
    let name = match name {
        "gdt_csum" => "uninit_bg",
        "extents" => "extent",
        name => name,
    };
    FEATURES.iter().find(|feature| feature.name == name)
}

/// A system whose drivers and tools know the features of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct System {
    /// The name that the user gives.
    pub name: &'static str,
    /// The features of ext4 volumes made for it.
    pub features: FeatureSet,
    /// The tool whose defaults they are.
    pub source: &'static str,
}

/// The systems for which volumes can be made. The defaults are those that mke2fs.conf(5) and the release notes of
/// e2fsprogs name.
pub const SYSTEMS: &[System] = &[
    System { name: "linux-3.10", features: FeatureSet::EXT4_OF_1_42, source: "e2fsprogs 1.42" },
    System { name: "debian-8", features: FeatureSet::EXT4_OF_1_42, source: "e2fsprogs 1.42.12" },
    System { name: "linux-4.9", features: FeatureSet::EXT4, source: "e2fsprogs 1.43" },
    System { name: "debian-12", features: FeatureSet::EXT4, source: "e2fsprogs 1.47.0 as Debian configures it" },
    System { name: "linux-5.15", features: FeatureSet::EXT4_OF_1_47, source: "e2fsprogs 1.47" },
];

/// Returns the system of a name.
pub fn system(name: &str) -> Option<&'static System> {
    SYSTEMS.iter().find(|system| system.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_features_marks_those_of_ext4() {
        let made: Vec<&str> =
            FEATURES.iter().filter(|feature| feature.made == Made::ByDefault).map(|feature| feature.name).collect();
        assert_eq!(FeatureSet::EXT4.names(), made);
        for system in SYSTEMS {
            system.features.check().unwrap();
            assert_eq!(super::system(system.name), Some(system));
        }
    }

    #[test]
    fn lists_change_sets() {
        let mut set = FeatureSet::EXT4;
        set.apply("^resize_inode,meta_bg,,uninit_bg").unwrap();
        assert!(set.incompat.contains(Incompat::META_BG) && !set.compat.contains(Compat::RESIZE_INODE));
        assert!(!set.ro_compat.contains(RoCompat::UNINIT_BG), "metadata_csum includes it");
        set.check().unwrap();
        set.apply("gdt_csum,^metadata_csum").unwrap();
        assert!(set.ro_compat.contains(RoCompat::UNINIT_BG));
        set.apply("none,extents").unwrap();
        assert_eq!(set.names(), ["extent"]);
        for (list, problem) in [("large_directory", "no feature"), ("bigalloc", "not made"), ("needs_recovery", "not")]
        {
            assert!(set.apply(list).unwrap_err().to_string().contains(problem), "{list}");
        }
    }

    #[test]
    fn features_that_exclude_each_other_are_named() {
        for list in
            ["meta_bg", "^sparse_super", "^extent", "orphan_file,^has_journal", "metadata_csum_seed,^metadata_csum"]
        {
            let mut set = FeatureSet::EXT4;
            set.apply(list).unwrap();
            assert!(set.check().is_err(), "{list}");
        }
    }
}
