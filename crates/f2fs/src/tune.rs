//! Changing a volume that is not in use: its label and its UUID.
//!
//! Both copies of the superblock get the change, the second one first: after a power cut one of them is whole, and the
//! first that is whole counts. A mount for writing, or changing the volume again, writes the other one anew.

use moafs_disk::SharedDisk;
use moafs_vfs::Error;

use crate::engine::{read_superblock, replace_copy};
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
    for copy in [1, 0] {
        replace_copy(disk, copy, &superblock)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use moafs_disk::mem::MemDisk;
    use moafs_disk::probe::crash::{CrashRecorder, Mode};
    use moafs_disk::{DiskExt, Kind, Lba, SECTOR, Tag};
    use moafs_runtime::{Rt, Timestamp, Virtual};
    use moafs_vfs::types::{FileKind, Ino};

    use super::*;
    use crate::format::BLOCK;
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

    /// Changes label and UUID, cuts the power at every point, and judges each state: it has both changes or neither,
    /// can be mounted and used, and no checker finds anything then.
    fn judge_cuts(features: Features, before: &str, after: &str) {
        let disk = volume(features);
        let shared: SharedDisk = disk.clone();
        tune(&shared, &[Change::Label(before.to_owned())]).unwrap();
        let virt = Virtual::new(None);
        let rt: Rt = virt.clone();
        let recorder = Arc::new(CrashRecorder::over(disk, rt));
        let recorded: SharedDisk = recorder.clone();
        virt.run(|| tune(&recorded, &[Change::Label(after.to_owned()), Change::Uuid([9; 16])]).unwrap());
        let both = [(before, [7; 16]), (after, [9; 16])];
        for cut in 0..recorder.cut_points() {
            for (seed, mode) in (0..).zip([Mode::All, Mode::None, Mode::Torn, Mode::Torn, Mode::Torn, Mode::Torn]) {
                let what = format!("{features:?} {} units, cut {cut}, seed {seed}", after.len());
                let state = Arc::new(recorder.state(cut, seed, mode));
                let shared: SharedDisk = state.clone();
                let found = read_superblock(&shared).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(both.contains(&(found.label.as_str(), found.uuid)), "{what}: {} {:?}", found.label, found.uuid);
                judge::assert_fsck_is_silent(&state, &format!("{what}, before the mount"));
                let vfs = judge::mount(&state);
                vfs.create(&judge::root(), Ino(3), judge::name(b"file"), &judge::new(FileKind::Regular)).unwrap();
                vfs.close().unwrap();
                judge::assert_clean(&state, &what);
                let kept = read_superblock(&shared).unwrap();
                assert_eq!((kept.label, kept.uuid), (found.label, found.uuid), "{what}");
            }
        }
    }

    #[test]
    fn a_power_cut_leaves_the_old_or_the_new_label_and_uuid() {
        let long = |letter: &str| letter.repeat(LABEL_UNITS);
        for features in [Features::empty(), Features::SB_CHECKSUM] {
            judge_cuts(features, "before", "after");
            judge_cuts(features, &long("b"), &long("a"));
        }
    }
}
