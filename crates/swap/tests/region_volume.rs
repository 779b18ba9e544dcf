//! A region in the swap areas of a volume that is not mounted, and one of a process without rights.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use moafs_disk::{MemDisk, SECTOR, SharedDisk};
use moafs_ext::mkfs::{MkfsOptions, mkfs};
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::{Live, Timestamp};
use moafs_swap::{Home, PAGE_BYTES, Region, RegionError, RegionOptions, Swap, SwapOptions};
use moafs_vfs::api::NewFile;
use moafs_vfs::api::Options;
use moafs_vfs::types::{FileKind, Name};
use moafs_vfs::{Vfs, Who};

const PAGES: u32 = 2048;
const BUDGET: RegionOptions = RegionOptions { budget_bytes: 128 * PAGE_BYTES as u64, cluster_pages: 16 };

/// `None`, and a word about it, where regions cannot be had.
fn region(swap: &Arc<Swap>) -> Option<Region> {
    match Region::new(Arc::clone(swap), BUDGET) {
        Ok(region) => Some(region),
        Err(error @ (RegionError::NoUserfaultfd | RegionError::KernelTooOld { .. } | RegionError::NotPermitted)) => {
            eprintln!("SKIPPED: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Writes numbers, and reads them back twice.
fn use_all(region: &mut Region) {
    let numbers = region.as_mut_slice_of::<u64>();
    numbers.iter_mut().zip(1..).for_each(|(number, value)| *number = value);
    for _ in 0..2 {
        assert!(numbers.iter().zip(1..).all(|(number, value)| *number == value));
    }
}

fn complaints_of_e2fsck(image: &Path) -> Option<String> {
    let checked = Command::new("e2fsck").arg("-fn").arg(image).output();
    let Ok(checked) = checked else {
        eprintln!("SKIPPED: e2fsck is not installed (package e2fsprogs)");
        return None;
    };
    (!checked.status.success()).then(|| String::from_utf8_lossy(&checked.stdout).into_owned())
}

#[test]
fn a_region_lives_in_the_areas_of_a_volume_and_leaves_no_trace() {
    let rt = Live::new();
    let mem = Arc::new(MemDisk::new((64 << 20) / SECTOR as u64));
    mkfs(&*mem, &MkfsOptions::new([1; 16], [2; 16], Timestamp::new(1_700_000_000, 0))).unwrap();
    let disk: SharedDisk = mem.clone();
    let format = Ext::open(disk.clone(), rt.clone(), OpenOptions::default()).unwrap();
    let vfs = Vfs::new(format, disk.clone(), rt.clone(), Options::default());
    let name = Name::new(b"beside").unwrap();
    let file = vfs
        .create(
            &Who::root(),
            vfs.shape().root,
            name,
            &NewFile { kind: FileKind::Regular, perm: 0o644, umask: 0, rdev: 0, target: None },
        )
        .unwrap();
    let contents = vec![0x5A; 1 << 20];
    vfs.write(&Who::root(), file.ino, 0, &contents, false).unwrap();
    vfs.sync().unwrap();
    let free = vfs.stat_fs().free;

    let swap = Arc::new(Swap::open(Home::of(&vfs, disk), None, PAGES, rt, SwapOptions::default()).unwrap());
    let Some(mut region) = region(&swap) else { return };
    use_all(&mut region);
    let status = swap.status();
    assert!(status.used > 0, "{}", status.json());
    drop(region);
    drop(swap);

    assert_eq!(vfs.stat_fs().free, free);
    let mut back = vec![0; contents.len()];
    assert_eq!(vfs.read(file.ino, 0, &mut back).unwrap(), contents.len());
    assert_eq!(back, contents);
    vfs.close().unwrap();
    let dir = tempfile::tempdir().unwrap();
    mem.write_to(&dir.path().join("image")).unwrap();
    assert_eq!(complaints_of_e2fsck(&dir.path().join("image")), None);
}

#[test]
fn a_process_without_rights_has_its_region() {
    const CHILD: &str = "MOAFS_TEST_WITHOUT_RIGHTS";
    const NOBODY: u32 = 65534;
    if std::env::var_os(CHILD).is_some() {
        let disk: SharedDisk = Arc::new(MemDisk::new(u64::from(PAGES) * (PAGE_BYTES / SECTOR) as u64));
        let swap = Arc::new(Swap::open(None, Some(disk), PAGES, Live::new(), SwapOptions::default()).unwrap());
        let Some(mut region) = region(&swap) else { return };
        use_all(&mut region);
        println!("serves system calls: {}", region.serves_system_calls());
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "a_process_without_rights_has_its_region", "--nocapture"]).env(CHILD, "1");
    child.uid(NOBODY).gid(NOBODY).current_dir("/");
    match child.output() {
        Ok(ended) => {
            eprintln!("{}", String::from_utf8_lossy(&ended.stderr));
            assert!(ended.status.success(), "{ended:?}");
        }
        Err(error) => eprintln!("SKIPPED: cannot become somebody without rights: {error}"),
    }
}
