//! F2FS volumes, by `mkfs.f2fs` and by `moafs mkfs`, which take the same options.
//!
//! The smallest volumes have so few segments that cleaning and reuse of holes run from the start.

use moafs_disk::mem::MemDisk;
use moafs_f2fs::format::superblock::Features;
use moafs_f2fs::mkfs::{MkfsOptions, mkfs};
use moafs_runtime::Timestamp;

use super::{Geometry, Maker};
use crate::judges::tools;

const fn geometry(name: &'static str, maker: Maker, mib: u64, options: &'static [&'static str]) -> Geometry {
    Geometry { name, maker, block_size: 4096, inode_size: 4096, kib: mib << 10, options }
}

/// All optional parts of inodes and all checksums that moafs writes.
const FEATURES: &str = "extra_attr,inode_checksum,sb_checksum,flexible_inline_xattr,inode_crtime,lost_found";

/// All geometries under test: sizes, sections, zones, features, bitmaps, makers.
pub const ALL: [Geometry; 23] = [
    geometry("f2fs-crash", Maker::Theirs, 52, &[]),
    geometry("f2fs-crash-features", Maker::Theirs, 56, &["-O", FEATURES]),
    geometry("f2fs-crash-sections", Maker::Theirs, 80, &["-s", "2"]),
    geometry("f2fs-64m", Maker::Theirs, 64, &[]),
    geometry("f2fs-128m", Maker::Theirs, 128, &[]),
    geometry("f2fs-o20", Maker::Theirs, 128, &["-o", "20"]),
    geometry("f2fs-sections", Maker::Theirs, 112, &["-s", "2"]),
    geometry("f2fs-zones", Maker::Theirs, 96, &["-z", "2"]),
    geometry("f2fs-sections-zones", Maker::Theirs, 128, &["-s", "2", "-z", "2"]),
    geometry("f2fs-features", Maker::Theirs, 64, &["-O", FEATURES]),
    geometry("f2fs-extra-attr", Maker::Theirs, 64, &["-O", "extra_attr"]),
    geometry("f2fs-lost-found", Maker::Theirs, 64, &["-O", "lost_found"]),
    geometry("f2fs-large-nat", Maker::Theirs, 64, &["-i"]),
    geometry("f2fs-heap", Maker::Theirs, 64, &["-a", "1"]),
    geometry("f2fs-untrimmed", Maker::Theirs, 64, &["-t", "0"]),
    geometry("f2fs-1g", Maker::Theirs, 1024, &[]),
    geometry("f2fs-crash-ours", Maker::Ours, 54, &["-O", FEATURES]),
    geometry("f2fs-crash-extra", Maker::Ours, 54, &["-O", "extra_attr,inode_crtime"]),
    geometry("f2fs-ours", Maker::Ours, 64, &[]),
    geometry("f2fs-ours-features", Maker::Ours, 80, &["-O", FEATURES]),
    geometry("f2fs-ours-sections-zones", Maker::Ours, 131, &["-s", "2", "-z", "2"]),
    geometry("f2fs-ours-large-nat", Maker::Ours, 64, &["-i", "-O", "extra_attr,inode_crtime"]),
    // This volume is so large that the version bitmaps need blocks of their own.
    geometry("f2fs-ours-400g", Maker::Ours, 400 << 10, &["-i"]),
];

/// Volumes that random writes into a sparse file fill.
pub const SPARSE: [Geometry; 2] = [
    geometry("f2fs-sparse-64m", Maker::Ours, 64, &[]),
    geometry("f2fs-sparse-128m", Maker::Ours, 128, &["-O", FEATURES]),
];

/// Volumes that are full all the time.
pub const FULL: [Geometry; 3] = [
    geometry("f2fs-full-2m", Maker::Theirs, 52, &["-o", "90"]),
    geometry("f2fs-full-8m", Maker::Theirs, 52, &[]),
    geometry("f2fs-full-sections", Maker::Theirs, 80, &["-s", "2", "-O", FEATURES]),
];

/// Makes the volume; `None` if the tool is missing.
///
/// # Panics
/// If it cannot be made: the geometry is wrong.
pub fn make(geometry: &Geometry) -> Option<MemDisk> {
    match geometry.maker {
        Maker::Ours => Some(make_ours(geometry)),
        Maker::Theirs => make_theirs(geometry),
    }
}

fn make_theirs(geometry: &Geometry) -> Option<MemDisk> {
    let file = tempfile::NamedTempFile::new_in(tools::scratch()).expect("a scratch file");
    let made = tools::mkfs_f2fs(file.path(), geometry.options, geometry.bytes());
    made.then(|| MemDisk::read_from(file.path()).expect("the image can be read"))
}

fn make_ours(geometry: &Geometry) -> MemDisk {
    let disk = MemDisk::new(geometry.kib * 2);
    let mut options = MkfsOptions::new([7; 16], Timestamp { secs: 1_700_000_000, nanos: 0 });
    let mut words = geometry.options.iter();
    while let Some(option) = words.next() {
        let mut value = || *words.next().expect("the option has a value");
        let number = |text: &str| text.parse().expect("a number");
        match *option {
            "-s" => options.segs_per_sec = number(value()),
            "-z" => options.secs_per_zone = number(value()),
            "-i" => options.large_nat_bitmap = true,
            "-O" => options.features = features(value()),
            other => panic!("{}: no option {other}", geometry.name),
        }
    }
    mkfs(&disk, &options).unwrap_or_else(|error| panic!("{}: {error}", geometry.name));
    disk
}

fn features(names: &str) -> Features {
    names.split(',').map(|name| Features::from_name(&name.to_uppercase()).expect("a known feature")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::look_with;
    use crate::judges::fsck_f2fs;

    #[test]
    fn the_largest_volumes_take_little_memory() {
        for geometry in ALL.iter().chain(&FULL) {
            let Some(disk) = make(geometry) else { return };
            let Some(verdict) = look_with(&disk, fsck_f2fs::run).unwrap() else { return };
            assert!(verdict.spotless(), "{}: {}", geometry.name, verdict.text);
            assert!(disk.resident_bytes() < 16 << 20, "{}: {} bytes", geometry.name, disk.resident_bytes());
        }
    }
}
