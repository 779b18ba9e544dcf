//! ext2 and ext3.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use moafs_disk::SharedDisk;
use moafs_disk::mem::MemDisk;
use moafs_ext::OpenOptions;
use moafs_ext::check::{self, CheckError, CheckOptions, Mode, Outcome};
use moafs_ext::place::Policy;
use moafs_runtime::{Rt, Timestamp};
use moafs_vfs::types::Ino;
use moafs_vfs::{Options, Result, Vfs};

use super::Family;
use crate::image::{self, Geometry};
use crate::judges::kernel::{self, KernelMount};
use crate::judges::{Verdict, e2fsck, missing};
use crate::model::{Model, NodeId};
use crate::mutate::{self, Layout};
use crate::tree;
use crate::volume::Mounter;
use crate::workloads::{self, Workload};

/// The ext family.
#[derive(Debug, Clone, Copy)]
pub struct Ext;

/// Mounts ext volumes.
#[derive(Debug, Clone, Copy)]
pub struct ExtMounter {
    place: Policy,
    log_small_writes: bool,
}

impl Mounter for ExtMounter {
    type Format = moafs_ext::Ext;

    fn mount_on(&self, disk: SharedDisk, rt: Rt, options: Options) -> Result<Vfs<moafs_ext::Ext>> {
        let ExtMounter { place, log_small_writes } = *self;
        let open = OpenOptions { read_only: options.read_only, place, log_small_writes, ..OpenOptions::default() };
        let format = moafs_ext::Ext::open(disk.clone(), rt.clone(), open)?;
        Ok(Vfs::new(format, disk, rt, options))
    }
}

/// Compares what the kernel's driver of this name reads from the volume with the model.
pub(super) fn kernel_sees(
    driver: &str,
    geometry: &Geometry,
    image: &Path,
    model: &Model,
) -> std::result::Result<(), String> {
    if geometry.block_size > kernel::BLOCK_BYTES_MAX {
        return Ok(());
    }
    let in_words = |error: std::io::Error| format!("kernel: {error}");
    let Some(mount) = KernelMount::new(image, driver, "ro,user_xattr").map_err(in_words)? else {
        missing("the kernel", "mounting needs root and loop devices");
        return Ok(());
    };
    let seen = tree::of_dir(mount.path()).map_err(in_words)?;
    let differences = tree::differences(model, &seen);
    mount.unmount().map_err(in_words)?;
    if differences.is_empty() { Ok(()) } else { Err(format!("the kernel sees: {}", differences.join("\n"))) }
}

impl Family for Ext {
    type Mounter = ExtMounter;

    const CHECKER: &'static str = "e2fsck";
    const GEOMETRIES: &'static [Geometry] = &image::ext::ALL;
    const CRASH: &'static [&'static str] = &["crash-1k", "crash-4k", "crash-1k-128"];
    const SIMULATED: &'static [&'static str] =
        &["crash-1k", "crash-1k-128", "crash-4k", "ours-1k", "ours-2k", "1k-groups"];
    const AGED: &'static [&'static str] = &[
        "ours-1k",
        "ours-1k",
        "ours-1k-128",
        "ours-2k",
        "ours-4k",
        "ours-4k",
        "ours-8k",
        "ours-64k",
        "1k-rev0",
        "1k-groups",
        "2k",
        "4k-sparse2",
        "4k-1024",
    ];
    const COUNTS_INODES: bool = true;
    const DAMAGED: &'static [&'static str] = &["ours-1k", "1k-128", "1k-groups", "4k", "4k-ext3"];
    const FULL: &'static [Geometry] = &image::ext::FULL;
    const SPARSE: &'static [Geometry] = &image::ext::SPARSE;
    const ONE_MOMENT: bool = false;
    const CRASH_STATES: [usize; 2] = [12, 190];
    const POLICIES: u64 = 2 * (Policy::ALL.len() as u64 - 1);
    const WORKLOADS: &'static [&'static [Workload]] = &[&workloads::ALL, &workloads::SWAP];

    fn make(geometry: &Geometry) -> Option<MemDisk> {
        image::ext::make(geometry)
    }

    /// Draws the policy of a seed: the default for even ones, the others by turns for odd ones. Two of three log small
    /// writes, if they have a journal.
    fn mounter(seed: u64) -> ExtMounter {
        let default = Policy::default();
        let mut others = Policy::ALL.into_iter().rev().filter(|policy| *policy != default);
        let turn = (seed % Self::POLICIES / 2) as usize;
        let place = if seed.is_multiple_of(2) { default } else { others.nth(turn).unwrap_or(default) };
        ExtMounter { place, log_small_writes: !seed.is_multiple_of(3) }
    }

    /// Returns false for revision 0 and volumes made without the attribute feature.
    fn keeps_xattrs(geometry: &Geometry) -> bool {
        !geometry.options.iter().any(|option| option.starts_with("none"))
    }

    fn look(image: &Path) -> Option<Verdict> {
        if e2fsck::needs_replay(image) {
            return e2fsck::look_behind_replay(image);
        }
        e2fsck::run(image, e2fsck::Mode::Look).map(Verdict::from)
    }

    fn repair(image: &Path) -> String {
        e2fsck::run(image, e2fsck::Mode::Repair).map_or_else(String::new, |verdict| verdict.text)
    }

    fn preen(image: &Path, said: &Verdict) -> std::result::Result<(), String> {
        let expected = e2fsck::preen_exits(&e2fsck::parse(&said.text));
        match e2fsck::run(image, e2fsck::Mode::Preen) {
            Some(verdict) if !expected.contains(&verdict.exit) => Err(format!(
                "e2fsck -p ends with {}, not {expected:?}: {}\n-fn said: {}",
                verdict.exit, verdict.text, said.text
            )),
            _ => Ok(()),
        }
    }

    fn witness(
        geometry: &Geometry,
        image: &Path,
        model: &Model,
        _: &BTreeMap<NodeId, Ino>,
    ) -> std::result::Result<(), String> {
        kernel_sees("ext2", geometry, image, model)
    }

    fn layout(image: &MemDisk, geometry: &Geometry) -> Layout {
        mutate::ext::layout(image, geometry.bytes())
    }

    fn findings(disk: &MemDisk) -> Vec<String> {
        Ext::findings_of(Ext::outcome(disk))
    }

    fn check(disk: &MemDisk, repair: bool) {
        let mode = if repair { Mode::Yes } else { Mode::No };
        let options =
            CheckOptions { mode, force: true, superblock: None, now: Timestamp { secs: 1_700_000_000, nanos: 0 } };
        let copy: SharedDisk = Arc::new(disk.snapshot());
        // A refusal is an allowed result as well.
        let _ = check::check_volume(&copy, &options, &mut |_| {});
    }
}

impl Ext {
    /// Has the checker of moafs look at a volume.
    pub(super) fn outcome(disk: &MemDisk) -> std::result::Result<Outcome, CheckError> {
        let now = Timestamp { secs: 1_700_000_000, nanos: 0 };
        let options = CheckOptions { mode: Mode::No, force: true, now, superblock: None };
        check::check(disk, &options, &mut |_| {})
    }

    /// Returns what the checker has found, in words.
    pub(super) fn findings_of(outcome: std::result::Result<Outcome, CheckError>) -> Vec<String> {
        match outcome {
            Ok(outcome) => outcome.findings.iter().map(|finding| finding.issue.to_string()).collect(),
            Err(error) => vec![error.to_string()],
        }
    }
}
