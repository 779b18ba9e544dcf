//! Fresh volumes of every geometry, in memory: by the reference tools and by our own mkfs.

pub mod ext;
pub mod f2fs;

use std::collections::BTreeMap;

use moafs_disk::mem::MemDisk;
use parking_lot::Mutex;

use crate::family::Family;

/// A fresh volume of a geometry; made once, since the tools that make it are slow.
pub fn fresh<F: Family>(geometry: &Geometry) -> Option<MemDisk> {
    static MADE: Mutex<BTreeMap<&'static str, MemDisk>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock();
    if !made.contains_key(geometry.name) {
        made.insert(geometry.name, F::make(geometry)?);
    }
    made.get(geometry.name).map(MemDisk::snapshot)
}

/// Who makes the volume.
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
    /// What the maker is told beyond sizes.
    pub options: &'static [&'static str],
}

impl Geometry {
    /// Size of the volume in bytes.
    pub fn bytes(&self) -> u64 {
        self.kib << 10
    }
}
