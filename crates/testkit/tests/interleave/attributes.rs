//! A task that has seen an attribute makes it durable with its own fsync, though another task's fsync of it is on its
//! way.
//!
//! The power fails when the second task's fsync returns; nothing that no flush covers survives.

use std::sync::Arc;

use moafs_disk::probe::crash::{CrashRecorder, Mode};
use moafs_runtime::Timestamp;
use moafs_testkit::family::{Ext, Ext4, F2fs, Family};
use moafs_testkit::tests_of;
use moafs_testkit::volume::Mounter;
use moafs_vfs::Credentials;
use moafs_vfs::api::{SetAttr, SetTime};
use moafs_vfs::types::Attr;

use super::{check, each_seed, make_file, play, scheduler, stat_of, volume};

tests_of!([ext: Ext, ext4: Ext4, f2fs: F2fs] [a_size_that_was_seen, a_mode_that_was_seen, a_time_that_was_seen]);

/// A change of the file's inode.
#[derive(Debug, Clone, Copy)]
enum Change {
    Size,
    Mode,
    Time,
}

impl Change {
    const SIZE: u64 = 5_000;
    const PERM: u32 = 0o600;
    const MTIME: Timestamp = Timestamp { secs: 1_000_000_000, nanos: 0 };

    fn as_call(self) -> SetAttr {
        let none = SetAttr::default();
        match self {
            Change::Size => SetAttr { size: Some(Self::SIZE), ..none },
            Change::Mode => SetAttr { perm: Some(Self::PERM), ..none },
            Change::Time => SetAttr { mtime: Some(SetTime::To(Self::MTIME)), ..none },
        }
    }

    fn is_in(self, attr: &Attr) -> bool {
        match self {
            Change::Size => attr.size == Self::SIZE,
            Change::Mode => attr.perm == Self::PERM,
            Change::Time => attr.mtime == Self::MTIME,
        }
    }
}

fn seen_before_an_fsync<F: Family>(change: Change) {
    let Some(fresh) = volume::<F>() else { return };
    each_seed(|seed| {
        let (runtime, disk) = (scheduler::<F>(seed), Arc::new(fresh.snapshot()));
        let recorder = Arc::new(CrashRecorder::over(Arc::clone(&disk), runtime.rt()));
        let log = Arc::clone(&recorder);
        let cut = play::<F, _>(seed, &runtime, recorder.clone(), move |rt, vfs| {
            let file = make_file(&vfs, "file");
            vfs.sync().expect("sync");
            let other = vfs.clone();
            let change_it = move || {
                other.set_attr(&Credentials::root(), file, &change.as_call()).expect("setattr");
                other.fsync(file, false).expect("fsync");
            };
            let changer = rt.spawn("changer", Box::new(change_it));
            while !change.is_in(&vfs.stat(file).expect("stat").attr) {}
            vfs.fsync(file, false).expect("fsync");
            let cut = log.cut_points() - 1;
            changer.join(&**rt);
            vfs.close().expect("unmount");
            cut
        });
        let left = Arc::new(recorder.state(cut, 0, Mode::None));
        let vfs = F::mounter(seed).mount(left, false).expect("mount after the cut");
        let found = stat_of(&vfs, "file");
        if !change.is_in(&found.attr) {
            return Err(format!("an fsync returned without it: {:?}", found.attr));
        }
        check::<F>(&disk)
    });
}

fn a_size_that_was_seen<F: Family>() {
    seen_before_an_fsync::<F>(Change::Size);
}

fn a_mode_that_was_seen<F: Family>() {
    seen_before_an_fsync::<F>(Change::Mode);
}

fn a_time_that_was_seen<F: Family>() {
    seen_before_an_fsync::<F>(Change::Time);
}
