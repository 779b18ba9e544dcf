//! Fresh volumes of every geometry, by `mke2fs` and by our own mkfs, in memory.

use moafs_disk::mem::MemDisk;
use moafs_ext::mkfs::{MkfsOptions, mkfs};
use moafs_runtime::Timestamp;

use crate::judges::tools;

/// Who makes the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Maker {
    /// `moafs mkfs`.
    Ours,
    /// The reference tool.
    Mke2fs,
}

/// The shape of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// For reports and for choosing one by name.
    pub name: &'static str,
    /// Who makes it.
    pub maker: Maker,
    /// Bytes in a block.
    pub block_size: u32,
    /// Bytes in an inode.
    pub inode_size: u32,
    /// Size of the volume.
    pub kib: u64,
    /// What `mke2fs` is told beyond sizes.
    pub options: &'static [&'static str],
}

impl Geometry {
    const fn new(
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
    pub fn make(&self) -> Option<MemDisk> {
        match self.maker {
            Maker::Ours => Some(self.make_ours()),
            Maker::Mke2fs => self.make_theirs(),
        }
    }

    /// False for revision 0 and volumes made without the attribute feature.
    pub fn keeps_xattrs(&self) -> bool {
        !self.options.iter().any(|option| option.starts_with("none"))
    }

    fn make_ours(&self) -> MemDisk {
        let disk = MemDisk::new(self.kib * 2);
        let mut options = MkfsOptions::new([7; 16], [9; 16], Timestamp { secs: 1_700_000_000, nanos: 0 });
        options.block_size = Some(self.block_size);
        options.inode_size = self.inode_size;
        mkfs(&disk, &options).unwrap_or_else(|error| panic!("{}: {error}", self.name));
        disk
    }

    fn make_theirs(&self) -> Option<MemDisk> {
        let file = tempfile::NamedTempFile::new_in(tools::scratch()).expect("a scratch file");
        let (block, inode) = (self.block_size.to_string(), self.inode_size.to_string());
        let mut args = vec!["-b", &block, "-I", &inode];
        args.extend(self.options);
        let made = tools::mke2fs(file.path(), &args, &format!("{}k", self.kib));
        made.then(|| MemDisk::read_from(file.path()).expect("the image can be read"))
    }
}

/// Every geometry that matters: block sizes, inode sizes, revisions, features, makers.
pub const ALL: [Geometry; 23] = [
    Geometry::new("ours-1k", Maker::Ours, 1024, 256, 16 << 10, &[]),
    Geometry::new("ours-1k-128", Maker::Ours, 1024, 128, 16 << 10, &[]),
    Geometry::new("ours-2k", Maker::Ours, 2048, 256, 24 << 10, &[]),
    Geometry::new("ours-4k", Maker::Ours, 4096, 256, 32 << 10, &[]),
    Geometry::new("ours-8k", Maker::Ours, 8192, 256, 48 << 10, &[]),
    Geometry::new("ours-16k", Maker::Ours, 16384, 256, 64 << 10, &[]),
    Geometry::new("ours-64k", Maker::Ours, 65536, 256, 128 << 10, &[]),
    Geometry::new("1k", Maker::Mke2fs, 1024, 256, 16 << 10, &["-t", "ext2"]),
    Geometry::new("1k-128", Maker::Mke2fs, 1024, 128, 16 << 10, &["-t", "ext2"]),
    Geometry::new("1k-rev0", Maker::Mke2fs, 1024, 128, 16 << 10, &["-r", "0", "-O", "none"]),
    Geometry::new("1k-plain", Maker::Mke2fs, 1024, 128, 16 << 10, &["-t", "ext2", "-O", "none,filetype"]),
    Geometry::new("1k-nofiletype", Maker::Mke2fs, 1024, 256, 16 << 10, &["-t", "ext2", "-O", "^filetype"]),
    Geometry::new("1k-groups", Maker::Mke2fs, 1024, 256, 16 << 10, &["-t", "ext2", "-g", "1024"]),
    Geometry::new("2k", Maker::Mke2fs, 2048, 256, 24 << 10, &["-t", "ext2"]),
    Geometry::new("4k", Maker::Mke2fs, 4096, 256, 32 << 10, &["-t", "ext2"]),
    Geometry::new(
        "4k-sparse2",
        Maker::Mke2fs,
        4096,
        256,
        32 << 10,
        &["-t", "ext2", "-g", "2048", "-O", "sparse_super2,^resize_inode"],
    ),
    Geometry::new("4k-ext3", Maker::Mke2fs, 4096, 256, 32 << 10, &["-t", "ext3", "-J", "size=4"]),
    Geometry::new("4k-1024", Maker::Mke2fs, 4096, 1024, 32 << 10, &["-t", "ext2"]),
    Geometry::new("16k", Maker::Mke2fs, 16384, 256, 64 << 10, &["-t", "ext2"]),
    Geometry::new("crash-1k", Maker::Mke2fs, 1024, 256, 6 << 10, &["-t", "ext2", "-g", "2048", "-N", "256"]),
    Geometry::new("crash-1k-128", Maker::Ours, 1024, 128, 4 << 10, &[]),
    Geometry::new("crash-4k", Maker::Ours, 4096, 256, 16 << 10, &[]),
    Geometry::new("64k", Maker::Mke2fs, 65536, 256, 128 << 10, &["-t", "ext2"]),
];

/// The geometry with this name.
pub fn by_name(name: &str) -> Option<Geometry> {
    ALL.into_iter().find(|geometry| geometry.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judges::{e2fsck, missing};

    #[test]
    fn every_geometry_is_sound_when_fresh() {
        for geometry in ALL {
            let Some(disk) = geometry.make() else {
                missing("mke2fs", "it is not installed");
                return;
            };
            let file = tempfile::NamedTempFile::new_in(tools::scratch()).unwrap();
            disk.write_to(file.path()).unwrap();
            if let Some(verdict) = e2fsck::run(file.path(), e2fsck::Mode::Look) {
                assert!(verdict.spotless(), "{}: {}", geometry.name, verdict.text);
            }
        }
    }
}
