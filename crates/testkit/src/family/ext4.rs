//! ext volumes with a journal: ext3, and ext4.
//!
//! The reference checker judges what a replay leaves: e2fsck replays the journal of a copy and finishes its orphans
//! first, and must then find nothing at all, whatever the power cut left.

use std::collections::BTreeMap;
use std::path::Path;

use moafs_disk::mem::MemDisk;
use moafs_vfs::types::Ino;

use super::ext::{ExtMounter, kernel_sees};
use super::{Ext, Family};
use crate::image::{self, Geometry};
use crate::judges::{Verdict, e2fsck};
use crate::model::{Model, NodeId};
use crate::mutate::Layout;
use crate::workloads::Workload;

/// The volumes of the ext family that have a journal.
#[derive(Debug, Clone, Copy)]
pub struct Ext4;

impl Family for Ext4 {
    type Mounter = ExtMounter;

    const CHECKER: &'static str = "e2fsck-journal";
    const GEOMETRIES: &'static [Geometry] = &image::ext::JOURNALED;
    const CRASH: &'static [&'static str] =
        &["crash-ext3-1k", "crash-extents-1k", "crash-sums-1k", "crash-ext4-1k", "crash-ext4-4k"];
    const SIMULATED: &'static [&'static str] = &[
        "crash-ext4-1k",
        "crash-ext4-4k",
        "crash-extents-1k",
        "crash-extents-4k",
        "extents-1k-groups",
        "crash-ext3-1k",
        "crash-ext3-4k",
        "ext3-1k-groups",
        "crash-sums-1k",
        "sums-1k-meta_bg",
        "uninit-1k",
        "ext4-1k-groups",
        "ext4-1k-uninit",
    ];
    const AGED: &'static [&'static str] =
        &["ext3-1k", "ext3-4k", "extents-1k", "extents-4k", "sums-1k", "uninit-1k", "ext4-1k-groups", "ext4-4k"];
    const COUNTS_INODES: bool = true;
    const DAMAGED: &'static [&'static str] = &["ext3-1k", "ext3-4k", "ext4-1k-groups", "ext4-1k-uninit", "ext4-4k"];
    const FULL: &'static [Geometry] = &image::ext::JOURNALED_FULL;
    const SPARSE: &'static [Geometry] = &image::ext::JOURNALED_SPARSE;
    const ONE_MOMENT: bool = true;
    const CRASH_STATES: [usize; 2] = [6, 190];
    const POLICIES: u64 = Ext::POLICIES;
    const WORKLOADS: &'static [&'static [Workload]] = Ext::WORKLOADS;

    fn make(geometry: &Geometry) -> Option<MemDisk> {
        Ext::make(geometry)
    }

    fn mounter(seed: u64) -> ExtMounter {
        Ext::mounter(seed)
    }

    fn look(image: &Path) -> Option<Verdict> {
        e2fsck::look_behind_replay(image)
    }

    fn repair(image: &Path) -> String {
        Ext::repair(image)
    }

    fn witness(geometry: &Geometry, image: &Path, model: &Model, _: &BTreeMap<NodeId, Ino>) -> Result<(), String> {
        kernel_sees("ext4", geometry, image, model)
    }

    fn layout(image: &MemDisk, geometry: &Geometry) -> Layout {
        Ext::layout(image, geometry)
    }

    fn findings(disk: &MemDisk) -> Vec<String> {
        Ext::findings(disk)
    }

    fn check(disk: &MemDisk, repair: bool) {
        Ext::check(disk, repair);
    }
}
