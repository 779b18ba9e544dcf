//! F2FS.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use moafs_disk::SharedDisk;
use moafs_disk::mem::MemDisk;
use moafs_f2fs::OpenOptions;
use moafs_f2fs::check::{self, CheckOptions, Severity};
use moafs_f2fs::clean::Cleaner;
use moafs_f2fs::place::{Recycling, Temperature};
use moafs_runtime::Rt;
use moafs_vfs::format::Shape;
use moafs_vfs::types::{FileKind, Ino};
use moafs_vfs::{Options, Result, Vfs};

use super::Family;
use crate::image::{self, Geometry};
use crate::judges::{Verdict, dump_f2fs, fsck_f2fs, missing};
use crate::model::{Model, NodeId};
use crate::mutate::{self, Layout};
use crate::tree;
use crate::volume::Mounter;
use crate::workloads::{self, Workload};

/// F2FS.
#[derive(Debug, Clone, Copy)]
pub struct F2fs;

/// Mounts F2FS volumes with the policies of a seed.
#[derive(Debug, Clone, Copy)]
pub struct F2fsMounter {
    /// Policy that chooses victims of cleaning.
    pub cleaner: Cleaner,
    /// Policy of recycling holes.
    pub recycling: Recycling,
    /// Policy that separates hot from cold data.
    pub temperature: Temperature,
}

/// Returns the value that a seed draws: seed 0 the default, those after it the others in their order.
fn draw<T: Copy + Default + PartialEq>(all: &[T], seed: u64) -> T {
    let others = all.iter().copied().filter(|value| *value != T::default());
    let at = (seed % all.len() as u64) as usize;
    std::iter::once(T::default()).chain(others).nth(at).unwrap_or_default()
}

impl F2fsMounter {
    /// Draws the policies of a seed. Seed 0 has the defaults. [`Family::POLICIES`] seeds in a row have all
    /// combinations, if the numbers of policies have no common divisor.
    pub fn new(seed: u64) -> F2fsMounter {
        F2fsMounter {
            cleaner: draw(&Cleaner::ALL, seed),
            recycling: draw(&Recycling::ALL, seed),
            temperature: draw(&Temperature::ALL, seed),
        }
    }
}

impl Mounter for F2fsMounter {
    type Format = moafs_f2fs::F2fs;

    fn mount_on(&self, disk: SharedDisk, rt: Rt, options: Options) -> Result<Vfs<moafs_f2fs::F2fs>> {
        let F2fsMounter { cleaner, recycling, temperature } = *self;
        let read_only = options.read_only;
        let open = OpenOptions { read_only, cleaner, recycling, temperature, ..OpenOptions::default() };
        let format = moafs_f2fs::F2fs::open(disk.clone(), rt.clone(), open)?;
        Ok(Vfs::new(format, disk, rt, options))
    }
}

impl Family for F2fs {
    type Mounter = F2fsMounter;

    const CHECKER: &'static str = "fsck.f2fs";
    const GEOMETRIES: &'static [Geometry] = &image::f2fs::ALL;
    const CRASH: &'static [&'static str] =
        &["f2fs-crash", "f2fs-crash-features", "f2fs-crash-sections", "f2fs-crash-ours", "f2fs-crash-extra"];
    const SIMULATED: &'static [&'static str] = &[
        "f2fs-crash",
        "f2fs-crash-features",
        "f2fs-crash-sections",
        "f2fs-crash-ours",
        "f2fs-64m",
        "f2fs-crash-extra",
    ];
    const AGED: &'static [&'static str] = &[
        "f2fs-ours",
        "f2fs-ours",
        "f2fs-crash-ours",
        "f2fs-ours-features",
        "f2fs-ours-sections-zones",
        "f2fs-ours-large-nat",
        "f2fs-crash",
        "f2fs-crash-features",
        "f2fs-crash-sections",
    ];
    const COUNTS_INODES: bool = false;
    const DAMAGED: &'static [&'static str] =
        &["f2fs-64m", "f2fs-ours-features", "f2fs-sections", "f2fs-ours-large-nat"];
    const FULL: &'static [Geometry] = &image::f2fs::FULL;
    const SPARSE: &'static [Geometry] = &image::f2fs::SPARSE;
    const ONE_MOMENT: bool = true;
    const CRASH_STATES: [usize; 2] = [3, 95];
    const POLICIES: u64 = (Cleaner::ALL.len() * Recycling::ALL.len() * Temperature::ALL.len()) as u64;
    const WORKLOADS: &'static [&'static [Workload]] = &[&workloads::ALL, &workloads::LOG, &workloads::SWAP];

    fn make(geometry: &Geometry) -> Option<MemDisk> {
        image::f2fs::make(geometry)
    }

    fn mounter(seed: u64) -> F2fsMounter {
        F2fsMounter::new(seed)
    }

    /// Returns the bytes of the volume without the segments that users do not see: on small volumes most of them.
    fn room(_: &Geometry, shape: &Shape) -> u64 {
        shape.blocks * u64::from(shape.block_size)
    }

    fn look(image: &Path) -> Option<Verdict> {
        fsck_f2fs::run(image).map(Verdict::from)
    }

    /// Repairs nothing: the checker's verdict is either clean or fatal.
    fn repair(_image: &Path) -> String {
        String::new()
    }

    /// Reads names with fsck.f2fs, and the contents of some files with dump.f2fs.
    fn witness(
        _: &Geometry,
        image: &Path,
        model: &Model,
        inos: &BTreeMap<NodeId, Ino>,
    ) -> std::result::Result<(), String> {
        let Some(names) = fsck_f2fs::names(image) else {
            missing("fsck.f2fs", "it is not installed");
            return Ok(());
        };
        same_names(&names, model, inos)?;
        let regular = model.living().filter(|(_, node)| node.kind == FileKind::Regular && node.nlink > 0);
        for (id, node) in regular.take(FILES_DUMPED) {
            let Some(content) = dump_f2fs::file(image, inos[&id].0) else {
                missing("dump.f2fs", "it is not installed");
                return Ok(());
            };
            let content = content.map_err(|error| format!("dump.f2fs of file #{}: {error}", id.0))?;
            if let Some(difference) = tree::first_difference(&node.content, &content) {
                return Err(format!("dump.f2fs sees in file #{}: {difference}", id.0));
            }
        }
        Ok(())
    }

    fn layout(image: &MemDisk, geometry: &Geometry) -> Layout {
        mutate::f2fs::layout(image, geometry.bytes())
    }

    /// Reports everything but warnings, which a power cut may leave. The tool does not check sizes, parents, names in
    /// inodes and footers.
    fn complaints(disk: &MemDisk) -> Vec<String> {
        match check::check(disk, &CheckOptions::default(), &mut |_| {}) {
            Ok(outcome) => {
                let bad = outcome.findings.iter().filter(|finding| finding.severity > Severity::Warning);
                bad.map(|finding| finding.issue.to_string()).collect()
            }
            Err(error) => vec![error.to_string()],
        }
    }

    fn findings(disk: &MemDisk) -> Vec<String> {
        match check::check(disk, &CheckOptions::default(), &mut |_| {}) {
            Ok(outcome) => {
                let bad = outcome.findings.iter().filter(|finding| finding.severity > Severity::Warning);
                bad.map(|finding| finding.issue.to_string()).collect()
            }
            Err(error) => vec![error.to_string()],
        }
    }

    /// Checks only: there is no repair.
    fn check(disk: &MemDisk, _repair: bool) {
        // A refusal is an allowed result as well.
        let _ = check::check(disk, &CheckOptions::default(), &mut |_| {});
    }
}

/// Files whose contents are compared per image: each takes a run of the tool.
const FILES_DUMPED: usize = 12;

fn same_names(
    names: &BTreeSet<fsck_f2fs::NamedInode>,
    model: &Model,
    inos: &BTreeMap<NodeId, Ino>,
) -> std::result::Result<(), String> {
    let mut should = BTreeSet::new();
    let mut todo = vec![(NodeId::ROOT, Vec::new())];
    while let Some((dir, path)) = todo.pop() {
        for (name, child) in &model.node(dir).entries {
            let mut path = path.clone();
            path.push(String::from_utf8_lossy(name).into_owned());
            if model.node(*child).is_dir() {
                todo.push((*child, path.clone()));
            }
            should.insert((path, inos[child].0));
        }
    }
    let is_checkers = |(path, _): &&fsck_f2fs::NamedInode| path[0].as_bytes() == tree::LOST_AND_FOUND;
    let is: BTreeSet<fsck_f2fs::NamedInode> = names.iter().filter(|place| !is_checkers(place)).cloned().collect();
    match should.symmetric_difference(&is).next() {
        None => Ok(()),
        Some((path, ino)) => Err(format!("fsck.f2fs and the model disagree about {} (inode {ino})", path.join("/"))),
    }
}
