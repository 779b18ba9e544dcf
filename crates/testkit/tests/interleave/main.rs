//! Small scenes of a few tasks on one volume, switched at every lock by a seed, with every policy.
//!
//! A seed of the simulation does much and may never come to the two steps between which a switch does harm. A scene
//! does one thing, so some hundred seeds reach every place of it.
//!
//! | module | question |
//! |---|---|
//! | `write_back` | does a file keep its contents when it changes beside its own write-back? |
//! | `attributes` | is what a task has seen durable after that task's own fsync? |
//! | `stale` | can a pointer reach the disk before its data? |
//! | `full_volume` | do several callers ever get more than the volume has? |
//! | `cleaning` | does what cleaning moves stay where others have removed it? |
//! | `removal` | does a removed file leave nothing when another task looks at it? |
//! | `renames` | do calls that lock several directories ever wait for each other? |

mod attributes;
mod cleaning;
mod full_volume;
mod removal;
mod renames;
mod stale;
mod write_back;

use std::sync::Arc;

use moafs_disk::SharedDisk;
use moafs_disk::mem::MemDisk;
use moafs_runtime::preempt::{Config, Strategy};
use moafs_runtime::{Preemptive, Rt};
use moafs_testkit::family::{self, Family};
use moafs_testkit::volume::{self, Mounter};
use moafs_vfs::api::{NewFile, Stat};
use moafs_vfs::types::{FileKind, Ino, Name};
use moafs_vfs::{Credentials, Format, Vfs};

/// Interleavings of each scene, unless `MOAFS_SEEDS` gives another number.
const SEEDS: u64 = 120;

type FormatOf<F> = <<F as Family>::Mounter as Mounter>::Format;

/// Plays a scene with each seed, and fails with the seeds at which it goes wrong.
fn each_seed(scene: impl Fn(u64) -> Result<(), String>) {
    let seeds = std::env::var("MOAFS_SEEDS").map_or(SEEDS, |seeds| seeds.parse().expect("a number"));
    let failures: Vec<String> =
        (0..seeds).filter_map(|seed| scene(seed).err().map(|said| format!("seed {seed}: {said}"))).collect();
    assert!(failures.is_empty(), "{} of {seeds} seeds fail:\n{}", failures.len(), failures.join("\n"));
}

/// Returns the volume that scenes begin with; `None` if the tool that makes it is missing.
fn volume<F: Family>() -> Option<MemDisk> {
    family::fresh::<F>(&family::geometry::<F>(F::SIMULATED[0]).expect("a known geometry"))
}

/// Returns the scheduler of a seed. A task is left alone for long, so the other comes far between two of its steps.
fn scheduler<F: Family>(seed: u64) -> Arc<Preemptive> {
    let strategy = Strategy::Priorities { one_in: [10, 30, 100][(seed / F::POLICIES % 3) as usize] };
    Preemptive::new(Config { seed, strategy, point_ns: 1000, points_max: 1 << 22 })
}

/// Mounts a disk with the policies of a seed and plays a scene on it, as the first task.
fn play<F: Family, R: Send + 'static>(
    seed: u64,
    runtime: &Arc<Preemptive>,
    disk: SharedDisk,
    scene: impl FnOnce(&Rt, Vfs<FormatOf<F>>) -> R + Send + 'static,
) -> R {
    let (mounter, rt) = (F::mounter(seed), runtime.rt());
    runtime.run(move || {
        let vfs = mounter.mount_on(disk, Arc::clone(&rt), volume::options(false)).expect("mount");
        scene(&rt, vfs)
    })
}

/// Makes a file in the root directory.
fn make_file<F: Format>(vfs: &Vfs<F>, name: &str) -> Ino {
    let new = NewFile { kind: FileKind::Regular, perm: 0o644, umask: 0, rdev: 0, target: None };
    vfs.create(&Credentials::root(), vfs.shape().root, name_of(name), &new).expect("create").ino
}

/// Returns what a file in the root directory shows of itself.
fn stat_of<F: Format>(vfs: &Vfs<F>, name: &str) -> Stat {
    vfs.lookup(&Credentials::root(), vfs.shape().root, name_of(name)).expect("lookup")
}

fn name_of(text: &str) -> &Name {
    Name::new(text.as_bytes()).expect("a legal name")
}

/// Runs the checker of moafs on a volume that was unmounted.
///
/// # Errors
/// Its findings.
fn check<F: Family>(disk: &MemDisk) -> Result<(), String> {
    let findings = F::findings(disk);
    if findings.is_empty() { Ok(()) } else { Err(findings.join("; ")) }
}
