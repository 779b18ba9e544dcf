//! The formats under test: their volumes, and how these are made, mounted, judged and damaged.
//!
//! Everything that runs a volume is generic over a [`Family`]; only the modules here name a format.

pub mod ext;
pub mod ext4;
pub mod f2fs;

use std::collections::BTreeMap;
use std::path::Path;

use moafs_disk::mem::MemDisk;
use moafs_vfs::format::Shape;
use moafs_vfs::types::Ino;
use parking_lot::Mutex;

pub use self::ext::Ext;
pub use self::ext4::Ext4;
pub use self::f2fs::F2fs;
use crate::history::Expectation;
use crate::image::Geometry;
use crate::judges::{Verdict, tools};
use crate::model::{Model, NodeId};
use crate::mutate::Layout;
use crate::volume::Mounter;
use crate::workloads::Workload;

/// Formats that share one engine and one set of judges.
pub trait Family: Send + Sync + 'static {
    /// Mounts its volumes.
    type Mounter: Mounter + Send + Sync + 'static;

    /// Name of the reference checker, for reports.
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
    /// Number of seeds in a row that give every mounter ([`Family::mounter`]).
    const POLICIES: u64;
    /// Workloads that run when the power fails.
    const WORKLOADS: &'static [&'static [Workload]];

    /// Makes a volume; `None` if the tool for it is missing.
    ///
    /// # Panics
    /// If it cannot be made: the geometry is wrong.
    fn make(geometry: &Geometry) -> Option<MemDisk>;

    /// Returns a mounter. The engine's policies differ from seed to seed, if it has some.
    fn mounter(seed: u64) -> Self::Mounter;

    /// Returns about how many bytes files can fill.
    fn room(geometry: &Geometry, _shape: &Shape) -> u64 {
        geometry.bytes()
    }

    /// Returns false for volumes without extended attributes.
    fn keeps_xattrs(_geometry: &Geometry) -> bool {
        true
    }

    /// Runs the reference checker, which changes nothing; `None` if it is missing.
    fn look(image: &Path) -> Option<Verdict>;

    /// Repairs the remaining faults of a volume that the checker accepted, and returns the checker's output.
    fn repair(image: &Path) -> String;

    /// Makes the safe repairs that scripts make at boot, on a volume with this verdict.
    ///
    /// # Errors
    /// If the checker's exit code is not the one that `docs/consistency.md` names.
    fn preen(_image: &Path, _said: &Verdict) -> Result<(), String> {
        Ok(())
    }

    /// Makes another implementation read the volume. Prints a message if none is installed.
    ///
    /// # Errors
    /// The differences between its tree and the model.
    fn witness(geometry: &Geometry, image: &Path, model: &Model, inos: &BTreeMap<NodeId, Ino>) -> Result<(), String>;

    /// Returns the positions of the structures of an undamaged image.
    fn layout(image: &MemDisk, geometry: &Geometry) -> Layout;

    /// Returns the findings of the checker of moafs that the reference tool does not make, on a volume that must be
    /// whole.
    fn complaints(_disk: &MemDisk) -> Vec<String> {
        Vec::new()
    }

    /// Returns all findings of the checker of moafs on a volume that was unmounted cleanly.
    fn findings(disk: &MemDisk) -> Vec<String>;

    /// Runs the checker of moafs and ignores its findings.
    fn check(disk: &MemDisk, repair: bool);
}

/// Returns a fresh volume of a geometry. It is made once, since the tools are slow.
pub fn fresh<F: Family>(geometry: &Geometry) -> Option<MemDisk> {
    static MADE: Mutex<BTreeMap<&'static str, MemDisk>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock();
    if !made.contains_key(geometry.name) {
        made.insert(geometry.name, F::make(geometry)?);
    }
    made.get(geometry.name).map(MemDisk::snapshot)
}

/// Adds to an expectation what a power cut may not do to names; `hurt`: the device has failed before. Inodes of 128
/// bytes have no room to tell of a rename across directories.
pub fn names_after_a_cut<'a, F: Family>(
    expectation: Expectation<'a>,
    geometry: &Geometry,
    hurt: bool,
) -> Expectation<'a> {
    if F::ONE_MOMENT {
        return if hurt { expectation } else { expectation.of_one_moment() };
    }
    if geometry.inode_size > 128 { expectation.with_whole_renames() } else { expectation }
}

/// Returns the geometry of a family with this name.
pub fn geometry<F: Family>(name: &str) -> Option<Geometry> {
    F::GEOMETRIES.iter().find(|geometry| geometry.name == name).copied()
}

/// Returns true if a replay line that names this geometry is for this family.
///
/// # Panics
/// If no family has the geometry.
pub fn is_for<F: Family>(name: &str) -> bool {
    let known = geometry::<Ext>(name).is_some() || geometry::<Ext4>(name).is_some() || geometry::<F2fs>(name).is_some();
    assert!(known, "no geometry {name}");
    geometry::<F>(name).is_some()
}

/// Returns the geometries with these names.
///
/// # Panics
/// If a name is unknown.
pub fn geometries<F: Family>(names: &[&str]) -> Vec<Geometry> {
    names.iter().map(|name| geometry::<F>(name).unwrap_or_else(|| panic!("no geometry {name}"))).collect()
}

/// Returns the reference checker's verdict on a disk in memory; `None` if the checker is missing.
///
/// # Errors
/// If no scratch image can be written.
pub fn look<F: Family>(disk: &MemDisk) -> Result<Option<Verdict>, String> {
    look_with(disk, F::look)
}

/// Returns the verdict of a judge of image files on a disk in memory.
///
/// # Errors
/// If no scratch image can be written.
pub fn look_with<V>(disk: &MemDisk, judge: impl Fn(&Path) -> V) -> Result<V, String> {
    let file = scratch_image(disk)?;
    Ok(judge(file.path()))
}

/// Fails if the checker of moafs reports anything.
///
/// # Errors
/// Its findings.
pub fn no_complaints<F: Family>(disk: &MemDisk) -> Result<(), String> {
    let said = F::complaints(disk);
    if said.is_empty() { Ok(()) } else { Err(format!("our checker: {}", said.join("; "))) }
}

/// Saves a disk as an image that is removed when dropped.
///
/// # Errors
/// If it cannot be written.
pub fn scratch_image(disk: &MemDisk) -> Result<tempfile::NamedTempFile, String> {
    let file = tempfile::NamedTempFile::new_in(tools::scratch()).map_err(|error| error.to_string())?;
    disk.write_to(file.path()).map_err(|error| error.to_string())?;
    Ok(file)
}

/// Makes tests of functions that are generic over a family, in a module of their own: `tests_of!(ext: Ext, this,
/// that)`. With several families, each gets the same tests: `tests_of!([ext: Ext, f2fs: F2fs] [this, that])`.
#[macro_export]
macro_rules! tests_of {
    ([$($module:ident: $family:ident),+] $tests:tt) => {
        $($crate::tests_of!(@list $module: $family, $tests);)+
    };
    (@list $module:ident: $family:ident, [$($tests:tt)+]) => {
        $crate::tests_of!($module: $family, $($tests)+);
    };
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
    fn every_ext4_geometry_is_sound_when_fresh() {
        fresh_volumes_are_sound::<Ext4>();
    }

    #[test]
    fn every_f2fs_geometry_is_sound_when_fresh() {
        fresh_volumes_are_sound::<F2fs>();
    }
}
