//! Fresh volumes of every geometry, in memory: by the reference tools and by `moafs mkfs`.

pub mod ext;
pub mod f2fs;

/// The program that makes the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Maker {
    /// `moafs mkfs`.
    Ours,
    /// The reference tool of the format.
    Theirs,
}

/// The shape of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Name, for reports and for choosing a geometry.
    pub name: &'static str,
    /// The program that makes it.
    pub maker: Maker,
    /// Bytes in a block.
    pub block_size: u32,
    /// Bytes in an inode.
    pub inode_size: u32,
    /// Size of the volume in KiB.
    pub kib: u64,
    /// Options of the maker beyond sizes.
    pub options: &'static [&'static str],
}

impl Geometry {
    /// Returns the size of the volume in bytes.
    pub fn bytes(&self) -> u64 {
        self.kib << 10
    }
}
