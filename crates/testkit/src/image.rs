//! Fresh volumes of every geometry, in memory: by the reference tools and by `moafs mkfs`.

pub mod ext;
pub mod f2fs;

use std::collections::BTreeMap;

use moafs_disk::mem::MemDisk;
use parking_lot::Mutex;

use crate::family::Family;

/// Returns a fresh volume of a geometry. It is made once, since the tools are slow.
pub fn fresh<F: Family>(geometry: &Geometry) -> Option<MemDisk> {
    static MADE: Mutex<BTreeMap<&'static str, MemDisk>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock();
    if !made.contains_key(geometry.name) {
        made.insert(geometry.name, F::make(geometry)?);
    }
    made.get(geometry.name).map(MemDisk::snapshot)
}

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
