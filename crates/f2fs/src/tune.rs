//! Changing a volume that is not in use: its label and its UUID.
//!
//! Both copies of the superblock get the change, one after the other: after a power cut one of them is whole.

use moafs_disk::{Buf, DiskExt, Kind, Lba, SECTOR, SharedDisk, Tag};
use moafs_vfs::Error;

use crate::engine::read_superblock;
use crate::format::BLOCK;
use crate::format::superblock::{Features, LABEL_UNITS};

/// A change of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The label: at most 512 UTF-16 units.
    Label(String),
    /// The UUID.
    Uuid([u8; 16]),
}

/// The reason for which a volume was not changed.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// The change cannot be made on this volume.
    #[error("{0}")]
    Impossible(String),
    /// Damage, or a device error.
    #[error(transparent)]
    Volume(#[from] Error),
}

/// Changes a volume that nothing else uses.
///
/// # Errors
/// If a change cannot be made on this volume: then nothing is written. Damage of both superblocks, and device errors.
pub fn tune(disk: &SharedDisk, changes: &[Change]) -> Result<(), TuneError> {
    let mut superblock = read_superblock(disk)?;
    for change in changes {
        match change {
            Change::Label(label) => {
                let units = label.encode_utf16().count();
                if units > LABEL_UNITS {
                    let problem = format!("a label has at most {LABEL_UNITS} UTF-16 units, this one has {units}");
                    return Err(TuneError::Impossible(problem));
                }
                superblock.label.clone_from(label);
            }
            Change::Uuid(_) if superblock.features.contains(Features::INODE_CHECKSUM) => {
                return Err(TuneError::Impossible(
                    "the checksums of the inodes depend on the UUID (feature inode_checksum): it cannot be changed"
                        .to_owned(),
                ));
            }
            Change::Uuid(uuid) => superblock.uuid = *uuid,
        }
    }
    let block = superblock.encode();
    for copy in [1, 0] {
        let at = Lba(copy * (BLOCK / SECTOR) as u64);
        let failed = |source| Error::disk(format!("writing superblock copy {copy}"), source);
        let page = Buf::copy_of(&block[..]).freeze();
        let epoch = disk.write(at, page, Tag::volume(Kind::Superblock)).map_err(failed)?;
        disk.make_durable(epoch).map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use moafs_disk::mem::MemDisk;
    use moafs_runtime::Timestamp;

    use super::*;
    use crate::judge;
    use crate::mkfs::{MkfsOptions, mkfs};

    fn volume(features: Features) -> Arc<MemDisk> {
        let disk = Arc::new(MemDisk::new(64 << 11));
        let options = MkfsOptions { features, ..MkfsOptions::new([7; 16], Timestamp::new(1_700_000_000, 0)) };
        mkfs(&*disk, &options).expect("a volume");
        disk
    }

    #[test]
    fn label_and_uuid_are_in_both_copies() {
        let disk = volume(Features::SB_CHECKSUM);
        let shared: SharedDisk = disk.clone();
        tune(&shared, &[Change::Label("späte Karte".to_owned()), Change::Uuid([9; 16])]).unwrap();
        for copy in 0..2 {
            let at = Lba(u64::from(copy) * (BLOCK / SECTOR) as u64);
            let bytes = disk.read(at, BLOCK, Tag::volume(Kind::Superblock)).unwrap();
            let superblock = crate::format::superblock::Superblock::decode(&bytes, copy).unwrap();
            assert_eq!((superblock.label.as_str(), superblock.uuid), ("späte Karte", [9; 16]), "copy {copy}");
        }
        judge::assert_clean(&disk, "the changed volume");
    }

    #[test]
    fn a_uuid_that_checksums_depend_on_stays() {
        let shared: SharedDisk = volume(Features::EXTRA_ATTR | Features::INODE_CHECKSUM);
        let problem = tune(&shared, &[Change::Label("x".to_owned()), Change::Uuid([9; 16])]).unwrap_err();
        assert!(problem.to_string().contains("inode_checksum"), "{problem}");
        assert_eq!(read_superblock(&shared).unwrap().label, "", "nothing was written");
    }
}
