//! Volumes that must not be mounted, and the messages about them.

use std::sync::Arc;

use moafs_disk::SharedDisk;
use moafs_disk::mem::MemDisk;
use moafs_ext::check::{CheckOptions, Mode, check};
use moafs_ext::mkfs::{MkfsOptions, mkfs};
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::{Live, Timestamp};
use moafs_vfs::Error;

const NOW: Timestamp = Timestamp { secs: 1_750_000_000, nanos: 0 };
/// The byte of the volume at which `s_state` lies.
const STATE_AT: u64 = 1024 + 0x3A;

fn volume() -> Arc<MemDisk> {
    let disk = Arc::new(MemDisk::new((8 << 20) / 512));
    mkfs(&*disk, &MkfsOptions { block_size: Some(1024), ..MkfsOptions::new([7; 16], [9; 16], NOW) }).unwrap();
    disk
}

fn open(disk: &Arc<MemDisk>, read_only: bool) -> Result<Ext, Error> {
    let shared: SharedDisk = disk.clone();
    Ext::open(shared, Live::new(), OpenOptions { read_only, ..OpenOptions::default() })
}

fn root_at(disk: &MemDisk) -> u64 {
    let mut table = [0; 4];
    disk.peek(2 * 1024 + 8, &mut table);
    u64::from(u32::from_le_bytes(table)) * 1024 + 256
}

#[test]
fn a_volume_marked_with_errors_is_not_mounted_for_writing() {
    let disk = volume();
    disk.poke(STATE_AT, &[3, 0]);
    let Err(Error::Refused(text)) = open(&disk, false) else { panic!("it was mounted") };
    assert!(text.contains("moafs fsck -p"), "{text}");
    open(&disk, true).expect("it can be read");
    let options = CheckOptions { mode: Mode::Preen, force: false, superblock: None, now: NOW };
    assert_eq!(check(&*disk, &options, &mut |_| ()).unwrap().exit_code(), 1);
    open(&disk, false).expect("the check took the mark away");
}

#[test]
fn a_volume_without_a_root_directory_is_refused() {
    // Not in use; no file type; a regular file; without a block; with a block beyond the end.
    let damages: [(u64, &[u8]); 5] =
        [(26, &[0, 0]), (0, &[0xFF, 0x1F]), (0, &[0xA4, 0x81]), (40, &[0; 4]), (40, &[0xFF; 4])];
    for (at, bytes) in damages {
        for read_only in [false, true] {
            let disk = volume();
            disk.poke(root_at(&disk) + at, bytes);
            let before = disk.to_bytes();
            let Err(Error::Refused(text)) = open(&disk, read_only) else { panic!("{at}: it was mounted") };
            assert!(text.contains("root directory") && text.contains("fsck -y"), "{text}");
            assert!(disk.to_bytes() == before, "nothing was written");
        }
    }
}
