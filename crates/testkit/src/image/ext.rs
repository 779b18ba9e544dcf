//! Volumes of the ext family, by `mke2fs` and by `moafs mkfs`.

use moafs_disk::mem::MemDisk;
use moafs_ext::mkfs::{MkfsOptions, mkfs};
use moafs_runtime::Timestamp;

use super::{Geometry, Maker};
use crate::judges::tools;

/// Returns the geometry with these fields, in their order.
const fn geometry(
    name: &'static str,
    maker: Maker,
    block_size: u32,
    inode_size: u32,
    kib: u64,
    options: &'static [&'static str],
) -> Geometry {
    Geometry { name, maker, block_size, inode_size, kib, options }
}

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

fn make_ours(geometry: &Geometry) -> MemDisk {
    let disk = MemDisk::new(geometry.kib * 2);
    let mut options = MkfsOptions::new([7; 16], [9; 16], Timestamp { secs: 1_700_000_000, nanos: 0 });
    options.block_size = Some(geometry.block_size);
    options.inode_size = geometry.inode_size;
    mkfs(&disk, &options).unwrap_or_else(|error| panic!("{}: {error}", geometry.name));
    disk
}

fn make_theirs(geometry: &Geometry) -> Option<MemDisk> {
    let file = tempfile::NamedTempFile::new_in(tools::scratch()).expect("a scratch file");
    let (block, inode) = (geometry.block_size.to_string(), geometry.inode_size.to_string());
    let mut args = vec!["-b", &block, "-I", &inode];
    args.extend(geometry.options);
    let made = tools::mke2fs(file.path(), &args, &format!("{}k", geometry.kib));
    made.then(|| MemDisk::read_from(file.path()).expect("the image can be read"))
}

/// All geometries under test: block sizes, inode sizes, revisions, features, makers.
pub const ALL: [Geometry; 23] = [
    geometry("ours-1k", Maker::Ours, 1024, 256, 16 << 10, &[]),
    geometry("ours-1k-128", Maker::Ours, 1024, 128, 16 << 10, &[]),
    geometry("ours-2k", Maker::Ours, 2048, 256, 24 << 10, &[]),
    geometry("ours-4k", Maker::Ours, 4096, 256, 32 << 10, &[]),
    geometry("ours-8k", Maker::Ours, 8192, 256, 48 << 10, &[]),
    geometry("ours-16k", Maker::Ours, 16384, 256, 64 << 10, &[]),
    geometry("ours-64k", Maker::Ours, 65536, 256, 128 << 10, &[]),
    geometry("1k", Maker::Theirs, 1024, 256, 16 << 10, &["-t", "ext2"]),
    geometry("1k-128", Maker::Theirs, 1024, 128, 16 << 10, &["-t", "ext2"]),
    geometry("1k-rev0", Maker::Theirs, 1024, 128, 16 << 10, &["-r", "0", "-O", "none"]),
    geometry("1k-plain", Maker::Theirs, 1024, 128, 16 << 10, &["-t", "ext2", "-O", "none,filetype"]),
    geometry("1k-nofiletype", Maker::Theirs, 1024, 256, 16 << 10, &["-t", "ext2", "-O", "^filetype"]),
    geometry("1k-groups", Maker::Theirs, 1024, 256, 16 << 10, &["-t", "ext2", "-g", "1024"]),
    geometry("2k", Maker::Theirs, 2048, 256, 24 << 10, &["-t", "ext2"]),
    geometry("4k", Maker::Theirs, 4096, 256, 32 << 10, &["-t", "ext2"]),
    geometry(
        "4k-sparse2",
        Maker::Theirs,
        4096,
        256,
        32 << 10,
        &["-t", "ext2", "-g", "2048", "-O", "sparse_super2,^resize_inode"],
    ),
    geometry("4k-ext3", Maker::Theirs, 4096, 256, 32 << 10, &["-t", "ext3", "-J", "size=4"]),
    geometry("4k-1024", Maker::Theirs, 4096, 1024, 32 << 10, &["-t", "ext2"]),
    geometry("16k", Maker::Theirs, 16384, 256, 64 << 10, &["-t", "ext2"]),
    geometry("crash-1k", Maker::Theirs, 1024, 256, 6 << 10, &["-t", "ext2", "-g", "2048", "-N", "256"]),
    geometry("crash-1k-128", Maker::Ours, 1024, 128, 4 << 10, &[]),
    geometry("crash-4k", Maker::Ours, 4096, 256, 16 << 10, &[]),
    geometry("64k", Maker::Theirs, 65536, 256, 128 << 10, &["-t", "ext2"]),
];

/// Volumes that random writes into a sparse file fill.
pub const SPARSE: [Geometry; 2] = [
    geometry("sparse-1k", Maker::Ours, 1024, 256, 32 << 10, &[]),
    geometry("sparse-4k", Maker::Ours, 4096, 256, 64 << 10, &[]),
];

/// Volumes that are full all the time.
pub const FULL: [Geometry; 3] = [
    geometry("tiny-1k", Maker::Ours, 1024, 128, 512, &[]),
    geometry("tiny-1k-theirs", Maker::Theirs, 1024, 256, 700, &["-t", "ext2", "-N", "64"]),
    geometry("tiny-4k", Maker::Ours, 4096, 256, 2048, &[]),
];

/// Volumes with a journal, those with extents or checksums among them.
pub const JOURNALED: [Geometry; 22] = [
    geometry("ext3-1k", Maker::Theirs, 1024, 256, 16 << 10, &["-t", "ext3", "-J", "size=1"]),
    geometry("ext3-1k-groups", Maker::Theirs, 1024, 128, 16 << 10, &["-t", "ext3", "-g", "2048", "-J", "size=1"]),
    geometry("ext3-4k", Maker::Theirs, 4096, 256, 40 << 10, &["-t", "ext3", "-J", "size=4"]),
    geometry("crash-ext3-1k", Maker::Theirs, 1024, 256, 7 << 10, &["-t", "ext3", "-N", "256", "-J", "size=1"]),
    geometry("crash-ext3-4k", Maker::Theirs, 4096, 256, 20 << 10, &["-t", "ext3", "-N", "256", "-J", "size=4"]),
    geometry("extents-1k", Maker::Theirs, 1024, 256, 16 << 10, &["-t", "ext3", "-O", "extent", "-J", "size=1"]),
    geometry(
        "extents-1k-groups",
        Maker::Theirs,
        1024,
        128,
        16 << 10,
        &["-t", "ext3", "-O", "extent", "-g", "2048", "-J", "size=1"],
    ),
    geometry("extents-4k", Maker::Theirs, 4096, 256, 40 << 10, &["-t", "ext3", "-O", "extent", "-J", "size=4"]),
    geometry(
        "ext4-4k-sums-off",
        Maker::Theirs,
        4096,
        256,
        40 << 10,
        &["-t", "ext4", "-O", "^metadata_csum,^64bit", "-g", "4096", "-J", "size=4"],
    ),
    geometry(
        "crash-extents-1k",
        Maker::Theirs,
        1024,
        256,
        7 << 10,
        &["-t", "ext3", "-O", "extent", "-N", "256", "-J", "size=1"],
    ),
    geometry(
        "crash-extents-4k",
        Maker::Theirs,
        4096,
        256,
        20 << 10,
        &["-t", "ext3", "-O", "extent", "-N", "256", "-J", "size=4"],
    ),
    geometry("sums-1k", Maker::Theirs, 1024, 256, 16 << 10, &["-t", "ext4", "-O", MAPS, "-g", "2048", "-J", "size=1"]),
    geometry(
        "sums-1k-meta_bg",
        Maker::Theirs,
        1024,
        128,
        16 << 10,
        &["-t", "ext4", "-O", "^extent,^64bit,meta_bg,^resize_inode", "-g", "1024", "-J", "size=1"],
    ),
    geometry(
        "uninit-1k",
        Maker::Theirs,
        1024,
        256,
        16 << 10,
        &["-t", "ext3", "-O", "uninit_bg,flex_bg", "-g", "2048", "-J", "size=1", "-E", "nodiscard"],
    ),
    geometry(
        "crash-sums-1k",
        Maker::Theirs,
        1024,
        256,
        7 << 10,
        &["-t", "ext4", "-O", MAPS, "-g", "1024", "-N", "256", "-J", "size=1", "-E", "nodiscard"],
    ),
    geometry("ext4-1k", Maker::Theirs, 1024, 256, 16 << 10, &["-t", "ext4", "-J", "size=1"]),
    geometry(
        "ext4-1k-groups",
        Maker::Theirs,
        1024,
        256,
        16 << 10,
        &["-t", "ext4", "-g", "1024", "-J", "size=1", "-E", "nodiscard"],
    ),
    geometry(
        "ext4-1k-uninit",
        Maker::Theirs,
        1024,
        256,
        16 << 10,
        &["-t", "ext4", "-O", "^metadata_csum,uninit_bg", "-g", "2048", "-J", "size=1", "-E", "nodiscard"],
    ),
    geometry(
        "ext4-2k-32bit",
        Maker::Theirs,
        2048,
        128,
        24 << 10,
        &["-t", "ext4", "-O", "^64bit,large_dir", "-g", "2048", "-J", "size=2"],
    ),
    geometry("ext4-4k", Maker::Theirs, 4096, 256, 40 << 10, &["-t", "ext4", "-O", NEWER, "-J", "size=4"]),
    geometry(
        "crash-ext4-1k",
        Maker::Theirs,
        1024,
        256,
        7 << 10,
        &["-t", "ext4", "-O", NEWER, "-g", "1024", "-N", "256", "-J", "size=1", "-E", "nodiscard"],
    ),
    geometry("crash-ext4-4k", Maker::Theirs, 4096, 256, 20 << 10, &["-t", "ext4", "-N", "256", "-J", "size=4"]),
];

/// Features of volumes with checksums of all metadata that map files by pointers.
const MAPS: &str = "^extent,^64bit";
/// Features that newer versions of `mke2fs -t ext4` add.
const NEWER: &str = "metadata_csum_seed,orphan_file";

/// Volumes with a journal that random writes into a sparse file fill.
pub const JOURNALED_SPARSE: [Geometry; 3] = [
    geometry("sparse-ext3-4k", Maker::Theirs, 4096, 256, 64 << 10, &["-t", "ext3", "-J", "size=4"]),
    geometry("sparse-extents-1k", Maker::Theirs, 1024, 256, 32 << 10, &["-t", "ext3", "-O", "extent", "-J", "size=1"]),
    geometry("sparse-extents-4k", Maker::Theirs, 4096, 256, 64 << 10, &["-t", "ext3", "-O", "extent", "-J", "size=4"]),
];

/// Volumes with a journal that are full all the time.
pub const JOURNALED_FULL: [Geometry; 2] = [
    geometry("tiny-ext3-1k", Maker::Theirs, 1024, 256, 2500, &["-t", "ext3", "-N", "64", "-J", "size=1"]),
    geometry(
        "tiny-extents-1k",
        Maker::Theirs,
        1024,
        256,
        2500,
        &["-t", "ext3", "-O", "extent", "-N", "64", "-J", "size=1"],
    ),
];
