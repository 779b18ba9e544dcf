//! Undamaged images with something in every kind of structure, for mutators.

use std::sync::Arc;

use moafs_disk::mem::MemDisk;

use super::Layout;
use crate::drive::{Driver, Tolerance};
use crate::family::{self, Family};
use crate::image::Geometry;
use crate::ops::{Generator, Limits};
use crate::volume::OnDisk;

/// An undamaged image.
#[derive(Debug)]
pub struct Golden {
    /// Name of its geometry.
    pub name: &'static str,
    /// The image.
    pub disk: MemDisk,
    /// Its size.
    pub bytes: u64,
    /// The positions of its structures.
    pub layout: Layout,
}

/// Makes an image of each geometry whose images are damaged; none if the tool that makes them is missing.
pub fn all<F: Family>() -> Vec<Golden> {
    let make = |geometry: Geometry| {
        let disk = populated::<F>(&geometry)?.snapshot();
        let layout = F::layout(&disk, &geometry);
        Some(Golden { name: geometry.name, disk, bytes: geometry.bytes(), layout })
    };
    family::geometries::<F>(F::DAMAGED).into_iter().filter_map(make).collect()
}

/// Makes a volume with files of all kinds, unmounted cleanly; `None` if the tool for it is missing.
///
/// # Panics
/// If the volume does not work.
pub fn populated<F: Family>(geometry: &Geometry) -> Option<Arc<MemDisk>> {
    let disk = Arc::new(F::make(geometry)?);
    let block = u64::from(geometry.block_size);
    let mounter = F::mounter(0);
    let mount = OnDisk { mounter: &mounter, disk: disk.clone() };
    let mut driver = Driver::new(mount, Tolerance::default()).expect("a fresh volume mounts");
    let limits = Limits {
        block_size: block,
        file_bytes_max: 300 * block,
        total_bytes_max: 4 << 20,
        sparse_bytes_max: 80 << 20,
        nodes_max: 60,
        remounts: false,
        xattrs: true,
        symlink_bytes_max: 900,
        nanos: false,
    };
    let mut generator = Generator::new(4, limits);
    for _ in 0..400 {
        let op = generator.next(&driver.model);
        driver.step(&op).expect("the volume works while it is whole");
    }
    driver.unmount().expect("the volume unmounts");
    Some(disk)
}
