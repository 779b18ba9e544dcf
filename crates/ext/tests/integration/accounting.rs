//! The space that stat(2) and statfs(2) show is the same before and after data have left the cache.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use moafs_disk::mem::MemDisk;
use moafs_disk::{Disk, Kind, Op, Request, SharedDisk, Ticket};
use moafs_ext::mkfs::{MkfsOptions, mkfs};
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::{Live, Timestamp};
use moafs_vfs::api::{Allocate, NewFile, Options, SetAttr};
use moafs_vfs::types::{FileKind, Ino, Name, SetMode};
use moafs_vfs::{Credentials, Vfs};

const ROOT: Ino = Ino(2);

/// A disk in memory that notes how many blocks are free whenever data are written to it.
struct Watched {
    disk: MemDisk,
    vfs: Mutex<Option<Vfs<Ext>>>,
    free: Mutex<Vec<u64>>,
}

impl Disk for Watched {
    moafs_disk::forward_to!(disk: limits, wait, make_durable, epoch, durable);

    fn submit(&self, batch: Vec<Request>) -> Ticket {
        let writes_data = |request: &Request| matches!(request.op, Op::Write { .. }) && request.tag.kind == Kind::Data;
        let vfs = self.vfs.lock().unwrap().clone();
        if let Some(vfs) = vfs.filter(|_| batch.iter().any(writes_data)) {
            self.free.lock().unwrap().push(vfs.stat_fs().free);
        }
        self.disk.submit(batch)
    }
}

/// An ext4 volume of 64 MiB; `None` without mke2fs.
fn ext4_image() -> Option<tempfile::NamedTempFile> {
    image_of(&["-t", "ext4"])
}

/// A volume of 64 MiB made with these options of mke2fs; `None` without it.
fn image_of(options: &[&str]) -> Option<tempfile::NamedTempFile> {
    let image = tempfile::NamedTempFile::new().unwrap();
    let made = Command::new("mke2fs").args(["-F", "-q"]).args(options).arg(image.path()).arg("64M").status();
    if made.is_err() {
        eprintln!("SKIPPED: mke2fs is not installed (package e2fsprogs)");
        return None;
    }
    assert!(made.is_ok_and(|status| status.success()));
    Some(image)
}

/// Returns a number that dumpe2fs shows of an image.
fn shown(image: &Path, what: &str) -> u64 {
    let out = Command::new("dumpe2fs").arg("-h").arg(image).output().expect("dumpe2fs comes with mke2fs");
    let text = String::from_utf8(out.stdout).expect("text");
    let line = text.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':'));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or_else(|| panic!("no {what} in {text}"))
}

struct Volume {
    vfs: Vfs<Ext>,
    disk: Arc<Watched>,
}

impl Volume {
    fn mount(disk: MemDisk, open: OpenOptions) -> Volume {
        let disk = Arc::new(Watched { disk, vfs: Mutex::default(), free: Mutex::default() });
        let (shared, rt): (SharedDisk, _) = (Arc::<Watched>::clone(&disk), Live::new());
        let ext = Ext::open(Arc::clone(&shared), rt.clone(), open).expect("the volume opens");
        let vfs = Vfs::new(ext, shared, rt, Options { syncer: false, ..Options::default() });
        *disk.vfs.lock().unwrap() = Some(vfs.clone());
        Volume { vfs, disk }
    }

    /// An ext2 volume of 64 MiB with blocks of 1 KiB.
    fn ext2(open: OpenOptions) -> Volume {
        let disk = MemDisk::new(64 << 11);
        let options = MkfsOptions::new([1; 16], [2; 16], Timestamp::new(1_700_000_000, 0));
        let options = MkfsOptions { block_size: Some(1024), ..options };
        mkfs(&disk, &options).expect("mkfs");
        Volume::mount(disk, open)
    }

    /// An ext4 volume of 64 MiB; `None` without mke2fs.
    fn ext4() -> Option<Volume> {
        Some(Volume::of(&ext4_image()?))
    }

    fn of(image: &tempfile::NamedTempFile) -> Volume {
        Volume::mount(MemDisk::read_from(image.path()).unwrap(), OpenOptions::default())
    }

    fn close(self) {
        self.disk.vfs.lock().unwrap().take();
        self.vfs.close().expect("the disk works");
    }

    fn create(&self, text: &str) -> Ino {
        let new = NewFile { kind: FileKind::Regular, perm: 0o644, umask: 0, rdev: 0, target: None };
        let name = Name::new(text.as_bytes()).expect("a legal name");
        self.vfs.create(&Credentials::root(), ROOT, name, &new).expect("there is space").ino
    }
    fn write(&self, file: Ino, kibibyte: u64, len: usize) {
        let bytes = vec![7; len << 10];
        self.vfs.write(&Credentials::root(), file, kibibyte << 10, &bytes, false).expect("there is space");
    }

    /// Fills the volume. What a large file leaves is too little for its map.
    fn fill(&self) {
        for name in ["large", "small"] {
            let file = self.create(name);
            let write =
                |kibibytes: usize| self.vfs.write(&Credentials::root(), file, 0, &vec![7; kibibytes << 10], true);
            for kibibytes in [4096, 64, 1] {
                while write(kibibytes).is_ok() {}
            }
            assert_eq!(write(1).expect_err("the volume is full").errno(), libc::ENOSPC);
        }
    }

    fn sectors(&self, file: Ino) -> u64 {
        self.vfs.stat(file).expect("it is there").sectors
    }

    /// Syncs, and holds the space that is shown before, meanwhile and afterwards to be the same.
    fn sync(&self, file: Ino, what: &str) {
        let (sectors, free) = (self.sectors(file), self.vfs.stat_fs().free);
        self.disk.free.lock().unwrap().clear();
        self.vfs.sync().expect("the disk works");
        assert_eq!(sectors, self.sectors(file), "{what}: st_blocks before and after");
        let meanwhile = self.disk.free.lock().unwrap().clone();
        assert!(!meanwhile.is_empty(), "{what}: data were written");
        assert!(meanwhile.iter().all(|now| *now == free), "{what}: {free} blocks free before, then {meanwhile:?}");
        assert_eq!(self.vfs.stat_fs().free, free, "{what}: free blocks before and after");
    }
}

#[test]
fn space_is_shown_alike_before_and_after_data_have_left_the_cache() {
    let volume = Volume::ext2(OpenOptions::default());
    let file = volume.create("file");
    // The addresses of the first 12 blocks lie in the inode, those of the next 256 in one indirect block.
    volume.write(file, 0, 12);
    volume.sync(file, "no map block");
    volume.write(file, 12, 8);
    volume.sync(file, "the first map block");
    volume.write(file, 20, 100);
    volume.sync(file, "a map block that exists");
    volume.write(file, 120, 3 << 10);
    volume.sync(file, "twelve map blocks, one of which exists");
    volume.write(file, 40 << 10, 5);
    volume.write(file, 100 << 10, 5);
    volume.sync(file, "a hole, and the third tree");
    volume.write(file, 100 << 10, 300);
    volume.write(file, 39 << 10, 2);
    volume.sync(file, "beside blocks that are mapped");
    volume.close();
}

#[test]
fn space_of_a_file_with_extents_is_shown_alike_before_and_after_an_fsync() {
    let Some(volume) = Volume::ext4() else { return };
    let file = volume.create("file");
    volume.write(file, 0, 1 << 10);
    for part in 1..4 {
        let sectors = volume.sectors(file);
        assert_eq!(sectors, part * 2048, "data only: the extents lie in the inode");
        volume.vfs.fsync(file, false).expect("the disk works");
        assert_eq!(volume.sectors(file), sectors);
        volume.write(file, part << 10, 1 << 10);
    }
    volume.close();
}

#[test]
fn the_journal_is_no_space_for_files() {
    let Some(image) = ext4_image() else { return };
    let volume = Volume::of(&image);
    assert_eq!(
        volume.vfs.stat_fs().blocks,
        shown(image.path(), "Block count") - shown(image.path(), "Overhead clusters")
    );
    volume.close();
}

#[test]
fn blocks_kept_for_nodes_of_extent_trees_are_free_and_not_available() {
    let Some(image) = ext4_image() else { return };
    let volume = Volume::of(&image);
    let space = volume.vfs.stat_fs();
    assert_eq!(space.free, shown(image.path(), "Free blocks"));
    assert!(space.available < space.free - shown(image.path(), "Reserved block count"));
    volume.close();
}

#[test]
fn a_full_volume_has_no_block_available_and_changes_what_needs_none() {
    for options in [["-t", "ext2", "-m", "0"], ["-t", "ext3", "-m", "0"], ["-t", "ext4", "-m", "0"]] {
        let Some(image) = image_of(&options) else { return };
        let volume = Volume::of(&image);
        let (vfs, root, family) = (&volume.vfs, Credentials::root(), options[1]);
        let set = |name: &[u8], bytes| vfs.set_xattr(&root, ROOT, name, &vec![b'v'; bytes], SetMode::Any);
        set(b"user.inside", 20).expect("there is space");
        set(b"user.outside", 500).expect("there is space");
        volume.fill();
        assert_eq!(vfs.stat_fs().available, 0, "{family}");
        vfs.sync().expect("what was taken finds its place");
        assert_eq!(vfs.stat_fs().available, 0, "{family}");
        let link = |name: &str, bytes| {
            let target = vec![b't'; bytes];
            let new = NewFile { kind: FileKind::Symlink, perm: 0o777, umask: 0, rdev: 0, target: Some(&target) };
            let made = vfs.create(&root, ROOT, Name::new(name.as_bytes()).expect("a legal name"), &new);
            made.map(|_| ()).map_err(|error| error.errno())
        };
        assert_eq!(link("short", 59), Ok(()), "{family}");
        assert_eq!(link("long", 60), Err(libc::ENOSPC), "{family}");
        vfs.remove_xattr(&root, ROOT, b"user.outside").unwrap_or_else(|error| panic!("{family}: {error}"));
        assert_eq!(vfs.list_xattr(&root, ROOT).expect("it is there").len(), 1, "{family}");
        volume.close();
    }
}

#[test]
fn flags_tell_how_a_file_is_stored_from_the_first() {
    let Some(volume) = Volume::ext4() else { return };
    let (extents, no_atime) = (0x8_0000, 0x80);
    let file = volume.create("file");
    let flags = |file| volume.vfs.stat(file).expect("it is there").attr.flags;
    let set = |flags| {
        let set = SetAttr { flags: Some(flags), ..SetAttr::default() };
        volume.vfs.set_attr(&Credentials::root(), file, &set).map(|_| ())
    };
    assert_eq!(flags(file), extents);
    set(extents | no_atime).expect("the way of chattr +A");
    assert_eq!(flags(file), extents | no_atime);
    set(0).expect("the way of chattr =");
    assert_eq!(flags(file), extents, "the file keeps its extents");
    let index = 0x1000;
    assert_eq!(set(extents | index).expect_err("a file has no index").errno(), libc::EOPNOTSUPP);
    assert_eq!(flags(file), extents);
    volume.close();
}

#[test]
fn a_truncation_to_the_same_size_frees_what_was_preallocated() {
    let Some(volume) = Volume::ext4() else { return };
    for (name, kibibytes) in [("empty", 0), ("full", 8), ("partial", 7)] {
        let file = volume.create(name);
        volume.write(file, 0, kibibytes);
        volume.vfs.sync().expect("the disk works");
        let (free, sectors) = (volume.vfs.stat_fs().free, volume.sectors(file));
        let how = Allocate::KeepSize;
        volume.vfs.allocate(&Credentials::root(), file, 0, 4 << 20, how).expect("there is space");
        assert_eq!(volume.sectors(file), 8192, "{name}");
        let size = SetAttr { size: Some((kibibytes as u64) << 10), ..SetAttr::default() };
        volume.vfs.set_attr(&Credentials::root(), file, &size).expect("a truncation");
        volume.vfs.sync().expect("the disk works");
        assert_eq!((volume.vfs.stat_fs().free, volume.sectors(file)), (free, sectors), "{name}");
        let mut bytes = vec![0; 16 << 10];
        assert_eq!(volume.vfs.read(file, 0, &mut bytes).expect("memory can be read"), kibibytes << 10);
        assert!(bytes[..kibibytes << 10].iter().all(|byte| *byte == 7));
    }
    volume.close();
}
