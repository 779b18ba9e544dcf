//! Changes of a file beside its write-back.

use std::sync::Arc;

use moafs_testkit::family::{Ext, Ext4, F2fs, Family};
use moafs_testkit::tests_of;
use moafs_vfs::api::{Allocate, SetAttr};
use moafs_vfs::types::Ino;
use moafs_vfs::{Credentials, Format, Vfs};

use super::{check, each_seed, make_file, play, scheduler, volume};

tests_of!([ext: Ext, ext4: Ext4, f2fs: F2fs] [zeroing_a_part_of_a_block, allocating_holes, appending]);

/// Bytes written before the fsync begins.
const WRITTEN: u64 = 45;

/// A call beside an fsync.
#[derive(Debug, Clone, Copy)]
enum Change {
    /// Makes a hole of a part of the block that is being written.
    Punch,
    /// Allocates the block that is being written, and holes behind it.
    Allocate,
    /// Appends blocks one by one, and syncs.
    Append,
}

impl Change {
    fn apply<F: Format>(self, vfs: &Vfs<F>, file: Ino, block: u64) {
        let root = Credentials::root();
        match self {
            Change::Punch => vfs.allocate(&root, file, 4, WRITTEN - 4, Allocate::Punch).expect("punch"),
            Change::Allocate => vfs.allocate(&root, file, 0, 3 * block, Allocate::Extend).expect("allocate"),
            Change::Append => {
                for at in 1..20 {
                    vfs.write(&root, file, at * block, &[at as u8; 512], false).expect("write");
                }
                vfs.sync().expect("sync");
            }
        }
    }

    /// Returns the contents that the file has in the end.
    fn contents(self, block: u64) -> Vec<u8> {
        let mut bytes = vec![7; WRITTEN as usize];
        match self {
            Change::Punch => bytes[4..].fill(0),
            Change::Allocate => bytes.resize(3 * block as usize, 0),
            Change::Append => {
                for at in 1..20 {
                    bytes.resize((at * block) as usize, 0);
                    bytes.extend([at as u8; 512]);
                }
            }
        }
        bytes
    }
}

fn beside_write_back<F: Family>(change: Change) {
    let Some(fresh) = volume::<F>() else { return };
    each_seed(|seed| {
        let (runtime, disk) = (scheduler::<F>(seed), Arc::new(fresh.snapshot()));
        let (shown, expected) = play::<F, _>(seed, &runtime, disk.clone(), move |rt, vfs| {
            let (file, block) = (make_file(&vfs, "file"), u64::from(vfs.shape().block_size));
            vfs.write(&Credentials::root(), file, 0, &[7; WRITTEN as usize], false).expect("write");
            if matches!(change, Change::Allocate) {
                let size = SetAttr { size: Some(3 * block), ..SetAttr::default() };
                vfs.set_attr(&Credentials::root(), file, &size).expect("truncate");
            }
            let other = vfs.clone();
            let fsync = rt.spawn("fsync", Box::new(move || other.fsync(file, false).expect("fsync")));
            change.apply(&vfs, file, block);
            fsync.join(&**rt);
            vfs.sync().expect("sync");
            vfs.shrink(0);
            let expected = change.contents(block);
            let mut shown = vec![0xEE; expected.len() + 1];
            let len = vfs.read(file, 0, &mut shown).expect("read");
            shown.truncate(len);
            vfs.close().expect("unmount");
            (shown, expected)
        });
        if shown != expected {
            return Err("the contents differ".to_owned());
        }
        check::<F>(&disk)
    });
}

fn zeroing_a_part_of_a_block<F: Family>() {
    beside_write_back::<F>(Change::Punch);
}

fn allocating_holes<F: Family>() {
    beside_write_back::<F>(Change::Allocate);
}

fn appending<F: Family>() {
    beside_write_back::<F>(Change::Append);
}
