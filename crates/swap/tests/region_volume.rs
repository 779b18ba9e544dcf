//! A region in the swap areas of a volume that is not mounted, and a region of a process without
//! privileges.

use std::os::unix::process::CommandExt;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use moafs_disk::{MemDisk, SECTOR, SharedDisk};
use moafs_ext::mkfs::{MkfsOptions, mkfs};
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::{Live, Rt, Timestamp};
use moafs_swap::{Home, PAGE_BYTES, Region, RegionError, RegionOptions, Swap, SwapOptions};
use moafs_vfs::api::NewFile;
use moafs_vfs::api::Options;
use moafs_vfs::types::{FileKind, Ino, Name};
use moafs_vfs::{Credentials, Vfs};

const PAGES: u32 = 2048;
const BUDGET: RegionOptions = RegionOptions { budget_bytes: 128 * PAGE_BYTES as u64, cluster_pages: 16 };

/// Makes a region; prints a message and returns `None` where regions are not possible.
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

struct Volume {
    mem: Arc<MemDisk>,
    vfs: Vfs<Ext>,
    rt: Rt,
}

impl Volume {
    fn new(bytes: u64) -> Volume {
        let rt = Live::new();
        let mem = Arc::new(MemDisk::new(bytes / SECTOR as u64));
        mkfs(&*mem, &MkfsOptions::new([1; 16], [2; 16], Timestamp::new(1_700_000_000, 0))).unwrap();
        let format = Ext::open(mem.clone(), rt.clone(), OpenOptions::default()).unwrap();
        let vfs = Vfs::new(format, mem.clone(), rt.clone(), Options::default());
        Volume { mem, vfs, rt }
    }

    fn swap(&self) -> Arc<Swap> {
        let home = Home::of(&self.vfs, self.mem.clone());
        Arc::new(Swap::open(home, None, PAGES, self.rt.clone(), SwapOptions::default()).unwrap())
    }

    fn create(&self, name: &str) -> Ino {
        let new = NewFile { kind: FileKind::Regular, perm: 0o644, umask: 0, rdev: 0, target: None };
        self.vfs
            .create(&Credentials::root(), self.vfs.shape().root, Name::new(name.as_bytes()).unwrap(), &new)
            .unwrap()
            .ino
    }

    fn write(&self, file: Ino, contents: &[u8]) -> moafs_vfs::error::Result<u64> {
        self.vfs.write(&Credentials::root(), file, 0, contents, false)
    }

    fn unlink(&self, name: &str, file: Ino) {
        self.vfs.unlink(&Credentials::root(), self.vfs.shape().root, Name::new(name.as_bytes()).unwrap()).unwrap();
        self.vfs.forget(file, 1);
    }

    fn assert_holds(&self, file: Ino, contents: &[u8]) {
        let mut back = vec![0; contents.len()];
        assert_eq!(self.vfs.read(file, 0, &mut back).unwrap(), contents.len());
        assert!(back == contents, "file {file:?} holds something else");
    }

    /// Closes the volume; e2fsck must find no error.
    fn close(self) {
        self.vfs.close().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        self.mem.write_to(&image).unwrap();
        assert_eq!(complaints_of_e2fsck(&image), None);
    }
}

#[test]
fn a_region_lives_in_the_areas_of_a_volume_and_leaves_no_trace() {
    let volume = Volume::new(64 << 20);
    let (file, contents) = (volume.create("beside"), vec![0x5A; 1 << 20]);
    volume.write(file, &contents).unwrap();
    volume.vfs.sync().unwrap();
    let free = volume.vfs.stat_fs().free;

    let swap = volume.swap();
    let Some(mut region) = region(&swap) else { return };
    use_all(&mut region);
    let status = swap.status();
    // The pages are next to the file: the head's last access was there.
    assert!(status.used > 0 && status.traditional_used == 0, "{}", status.json());
    drop(region);
    drop(swap);

    assert_eq!(volume.vfs.stat_fs().free, free);
    volume.assert_holds(file, &contents);
    volume.close();
}

/// Writes files of 1 MiB until there is no space and deletes them, again and again; checks their
/// contents.
fn fill_and_empty(volume: &Volume, busy: &AtomicBool) -> u32 {
    let mut fills = 0;
    while busy.load(Ordering::Relaxed) || fills == 0 {
        let mut files = Vec::new();
        loop {
            let (name, contents) = (format!("{}", files.len()), vec![files.len() as u8; 1 << 20]);
            let file = volume.create(&name);
            files.push((name, file));
            if let Err(error) = volume.write(file, &contents) {
                assert_eq!(error.errno(), libc::ENOSPC, "{error}");
                break;
            }
            volume.vfs.sync().unwrap();
        }
        assert!(files.len() > 1, "no room for a single file");
        let (last, full) = files.split_last().unwrap();
        full.iter().enumerate().for_each(|(i, (_, file))| volume.assert_holds(*file, &vec![i as u8; 1 << 20]));
        full.iter().chain([last]).for_each(|(name, file)| volume.unlink(name, *file));
        volume.vfs.sync().unwrap();
        fills += 1;
    }
    fills
}

#[test]
fn a_region_and_a_writer_who_needs_all_room_get_along() {
    let volume = Volume::new(24 << 20);
    let swap = volume.swap();
    let Some(mut region) = region(&swap) else { return };
    let busy = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| fill_and_empty(&volume, &busy));
        let used = std::panic::catch_unwind(AssertUnwindSafe(|| (0..8).for_each(|_| use_all(&mut region))));
        // Stored before any check that may panic, because the scope would wait for ever.
        busy.store(false, Ordering::Relaxed);
        used.unwrap();
        assert!(writer.join().unwrap() > 0);
    });
    let stats = region.stats();
    assert_eq!(stats.page_in_errors + stats.page_out_errors + stats.tend_errors, 0, "{stats:?}");
    drop((region, swap));
    volume.close();
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
