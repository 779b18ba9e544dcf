//! The formats under test: what their volumes look like, and who makes, mounts, judges and damages them.
//!
//! Everything that runs a volume is generic over a [`Family`]; beside the modules here nothing names a format.

pub mod ext;
pub mod f2fs;

use std::collections::BTreeMap;
use std::path::Path;

use moafs_disk::mem::MemDisk;
use moafs_vfs::format::Shape;
use moafs_vfs::types::Ino;

pub use self::ext::Ext;
pub use self::f2fs::F2fs;
use crate::image::Geometry;
use crate::judges::{Verdict, tools};
use crate::model::{Model, NodeId};
use crate::mutate::Layout;
use crate::volume::Mounter;
use crate::workloads::Workload;

/// Formats that share one engine and one set of judges.
pub trait Family: Send + Sync + 'static {
    /// How its volumes are mounted.
    type Mounter: Mounter + Send + Sync + 'static;

    /// The reference checker, for reports.
    const CHECKER: &'static str;
    /// Every geometry that matters.
    const GEOMETRIES: &'static [Geometry];
    /// Names of geometries small enough that their images can be written thousands of times.
    const CRASH: &'static [&'static str];
    /// Names of geometries that simulations use.
    const SIMULATED: &'static [&'static str];
    /// Names of geometries that age, at sizes of their own.
    const AGED: &'static [&'static str];
    /// True if the number of free inodes depends on nothing but the number of inodes.
    const COUNTS_INODES: bool;
    /// Names of geometries whose images are damaged.
    const DAMAGED: &'static [&'static str];
    /// Volumes that are full all the time.
    const FULL: &'static [Geometry];
    /// Volumes that random writes into a sparse file fill.
    const SPARSE: &'static [Geometry];
    /// True if a power cut leaves all names as they were at one moment: see [`crate::history`].
    const ONE_MOMENT: bool;
    /// States judged of each workload on each geometry: in a short run, and in the full one.
    const CRASH_STATES: [usize; 2];
    /// So many seeds in a row give every mounter ([`Family::mounter`]) there is.
    const POLICIES: u64;
    /// What is going on when the power fails.
    const WORKLOADS: &'static [&'static [Workload]];

    /// Makes a volume; `None` if the tool for it is missing.
    ///
    /// # Panics
    /// If it cannot be made: the geometry is wrong.
    fn make(geometry: &Geometry) -> Option<MemDisk>;

    /// Mounts volumes. The engine's policies differ from seed to seed, where it has some.
    fn mounter(seed: u64) -> Self::Mounter;

    /// About how many bytes files can fill.
    fn room(geometry: &Geometry, _shape: &Shape) -> u64 {
        geometry.bytes()
    }

    /// False for volumes without extended attributes.
    fn keeps_xattrs(_geometry: &Geometry) -> bool {
        true
    }

    /// Runs the reference checker, which changes nothing; `None` if it is missing.
    fn look(image: &Path) -> Option<Verdict>;

    /// Repairs what the checker still had to say of a volume that it did not condemn; its words.
    fn repair(image: &Path) -> String;

    /// Repairs what is safe, as scripts do at boot, on a volume of which the checker said this.
    ///
    /// # Errors
    /// If the checker's exit code is not the one that `docs/consistency.md` names.
    fn preen(_image: &Path, _said: &Verdict) -> Result<(), String> {
        Ok(())
    }

    /// Has another implementation read the volume. Says loudly if there is none here.
    ///
    /// # Errors
    /// How what it sees differs from the model.
    fn witness(geometry: &Geometry, image: &Path, model: &Model, inos: &BTreeMap<NodeId, Ino>) -> Result<(), String>;

    /// Where the structures of an undamaged image are.
    fn layout(image: &MemDisk, geometry: &Geometry) -> Layout;

    /// What our own checker says beyond the reference tool of a volume that must be whole.
    fn complaints(_disk: &MemDisk) -> Vec<String> {
        Vec::new()
    }

    /// Everything our own checker says of a volume that was unmounted cleanly.
    fn findings(disk: &MemDisk) -> Vec<String>;

    /// Runs our own checker, whatever it says.
    fn check(disk: &MemDisk, repair: bool);
}

/// The geometry of a family with this name.
pub fn geometry<F: Family>(name: &str) -> Option<Geometry> {
    F::GEOMETRIES.iter().find(|geometry| geometry.name == name).copied()
}

/// True if a replay line that names this geometry is for this family.
///
/// # Panics
/// If it is for none.
pub fn is_for<F: Family>(name: &str) -> bool {
    let known = geometry::<Ext>(name).is_some() || geometry::<F2fs>(name).is_some();
    assert!(known, "no geometry {name}");
    geometry::<F>(name).is_some()
}

/// The geometries with these names.
///
/// # Panics
/// If there is none.
pub fn geometries<F: Family>(names: &[&str]) -> Vec<Geometry> {
    names.iter().map(|name| geometry::<F>(name).unwrap_or_else(|| panic!("no geometry {name}"))).collect()
}

/// The reference checker's verdict on a disk in memory; `None` if the checker is missing.
///
/// # Errors
/// If no scratch image can be written.
pub fn look<F: Family>(disk: &MemDisk) -> Result<Option<Verdict>, String> {
    look_with(disk, F::look)
}

/// What a judge of image files says of a disk in memory.
///
/// # Errors
/// If no scratch image can be written.
pub fn look_with<V>(disk: &MemDisk, judge: impl Fn(&Path) -> V) -> Result<V, String> {
    let file = scratch_image(disk)?;
    Ok(judge(file.path()))
}

/// Fails if our own checker has anything to say.
///
/// # Errors
/// What it says.
pub fn no_complaints<F: Family>(disk: &MemDisk) -> Result<(), String> {
    let said = F::complaints(disk);
    if said.is_empty() { Ok(()) } else { Err(format!("our checker: {}", said.join("; "))) }
}

/// Saves a disk as an image that goes away by itself.
///
/// # Errors
/// If it cannot be written.
pub fn scratch_image(disk: &MemDisk) -> Result<tempfile::NamedTempFile, String> {
    let file = tempfile::NamedTempFile::new_in(tools::scratch()).map_err(|error| error.to_string())?;
    disk.write_to(file.path()).map_err(|error| error.to_string())?;
    Ok(file)
}

/// Makes tests of functions that are generic over a family, in a module of their own: `tests_of!(ext: Ext, this, that)`.
#[macro_export]
macro_rules! tests_of {
    ($module:ident: $family:ident, $($(#[$attribute:meta])* $test:ident),+ $(,)?) => {
        mod $module {
            $(
                #[test]
                $(#[$attribute])*
                fn $test() {
                    super::$test::<super::$family>();
                }
            )+
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judges::missing;

    fn fresh_volumes_are_sound<F: Family>() {
        for geometry in F::GEOMETRIES.iter().chain(F::FULL) {
            let Some(disk) = F::make(geometry) else {
                missing(geometry.name, "the tool that makes it is not installed");
                continue;
            };
            if let Some(verdict) = look::<F>(&disk).unwrap() {
                assert!(verdict.spotless, "{}: {}", geometry.name, verdict.text);
            }
        }
        assert!(geometries::<F>(F::CRASH).len() >= 2 && !geometries::<F>(F::DAMAGED).is_empty());
    }

    #[test]
    fn every_ext_geometry_is_sound_when_fresh() {
        fresh_volumes_are_sound::<Ext>();
    }

    #[test]
    fn every_f2fs_geometry_is_sound_when_fresh() {
        fresh_volumes_are_sound::<F2fs>();
    }
}
