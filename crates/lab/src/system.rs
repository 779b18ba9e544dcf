//! The systems that are compared, by name.

use std::fmt;

use moafs_disk::SharedDisk;
use moafs_ext::place::{Directories, Policy};
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::Rt;

use crate::machine::Mount;

/// A file system with its way of placing data, and the queue below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct System {
    name: &'static str,
    policy: Policy,
    /// True if its queue merges adjacent requests, of different files as well. BSD's disksort, the queue of the paper's
    /// systems, sorts and does not merge.
    merges: bool,
    /// True if a miss of a small file brings its neighbours.
    co_reads: bool,
    /// The rule for new directories; `None`: that of the comparison, the same for all its systems.
    directories: Option<Directories>,
}

/// A step of the ablation: what a system has that the system of the step before lacks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AblationStep {
    pub(crate) from: System,
    pub(crate) to: System,
    pub(crate) adds: &'static str,
}

impl System {
    /// The paper's baseline: addresses at `write()`, file by file, a queue that does not merge.
    pub const FFS_PAPER: System = System::of(Policy::FfsPaper);
    /// The best FFS we can build: addresses when data leave, and a queue that merges.
    pub const FFS: System = System::of(Policy::Ffs);
    /// The paper's co-writing, over the same queue as [`System::FFS_PAPER`].
    pub const COWRITE_PAPER: System = System::of(Policy::CowritePaper);
    /// Our co-writing with co-reading, over the same queue as [`System::FFS`].
    pub const COWRITE: System = System::of(Policy::Cowrite);
    /// The paper's co-writing, over the same queue as [`System::FFS`].
    const COWRITE_PAPER_MERGED: System = System { name: "cowrite-paper-merged", merges: true, ..System::COWRITE_PAPER };
    /// Our co-writing over the paper's queue: what placement alone gives against [`System::FFS_PAPER`].
    const COWRITE_DISKSORT: System = System { name: "cowrite-disksort", merges: false, ..System::COWRITE };
    /// Our co-writing without co-reading.
    const COWRITE_ALONE: System = System { name: "cowrite-alone", co_reads: false, ..System::COWRITE };
    /// The same with directories near their parents, as mounts place them.
    const COWRITE_NEAR: System =
        System { name: "cowrite-near", directories: Some(Directories::Near), ..System::COWRITE_ALONE };
    /// All of it, as a mount has it.
    const COWRITE_MOUNT: System = System { name: "cowrite-mount", co_reads: true, ..System::COWRITE_NEAR };

    const MORE: [System; 5] = [
        System::COWRITE_PAPER_MERGED,
        System::COWRITE_DISKSORT,
        System::COWRITE_ALONE,
        System::COWRITE_NEAR,
        System::COWRITE_MOUNT,
    ];

    /// All systems of the comparison: every placement policy, and co-writing over the other queue and in steps.
    pub const ALL: [System; Policy::ALL.len() + System::MORE.len()] = {
        let mut all = [System::FFS; Policy::ALL.len() + System::MORE.len()];
        let mut at = 0;
        while at < all.len() {
            let policies = Policy::ALL.len();
            all[at] = if at < policies { System::of(Policy::ALL[at]) } else { System::MORE[at - policies] };
            at += 1;
        }
        all
    };

    /// Those that only the ablation needs: they are not shown in pictures.
    pub(crate) const STEPS_ONLY: [System; 4] =
        [System::COWRITE_PAPER_MERGED, System::COWRITE_ALONE, System::COWRITE_NEAR, System::COWRITE_MOUNT];

    /// The systems of the tables, unless others are asked for.
    pub const DEFAULT: [System; 8] = {
        let [merged, alone, near, mount] = System::STEPS_ONLY;
        [System::FFS_PAPER, System::FFS, System::COWRITE_PAPER, System::COWRITE, merged, alone, near, mount]
    };

    /// The way from the paper's baseline to what a mount does, one thing at a time.
    pub(crate) const ABLATION: [AblationStep; 5] = {
        const fn step(from: System, to: System, adds: &'static str) -> AblationStep {
            AblationStep { from, to, adds }
        }
        [
            step(System::FFS_PAPER, System::FFS, "1 + delayed allocation and merging"),
            step(System::FFS, System::COWRITE_PAPER_MERGED, "2 + co-writing as published"),
            step(System::COWRITE_PAPER_MERGED, System::COWRITE_ALONE, "3 + longer runs and windows"),
            step(System::COWRITE_ALONE, System::COWRITE_NEAR, "4 + near directories"),
            step(System::COWRITE_NEAR, System::COWRITE_MOUNT, "5 + co-reading"),
        ]
    };

    /// Returns the system of a policy: those as published have the paper's queue and read file by file.
    const fn of(policy: Policy) -> System {
        let is_published = matches!(policy, Policy::FfsPaper | Policy::CowritePaper);
        let co_reads = matches!(policy, Policy::Cowrite);
        System { name: policy.name(), policy, merges: !is_published, co_reads, directories: None }
    }

    /// Returns its name in tables and in JSON.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Returns true if its queue merges adjacent requests, of different files as well.
    pub fn merges(self) -> bool {
        self.merges
    }

    /// Returns true for the systems that co-write.
    pub fn co_writes(self) -> bool {
        self.policy.co_writes()
    }

    /// Returns true for the systems in which a miss of a small file brings its neighbours.
    pub fn co_reads(self) -> bool {
        self.co_reads
    }

    /// Returns true if it places directories as the other systems of the comparison do.
    pub(crate) fn has_common_directories(self) -> bool {
        self.directories.is_none()
    }

    /// Returns the system with this rule for new directories, unless it has one of its own.
    pub(crate) fn with_directories(self, common: Directories) -> System {
        System { directories: self.directories.or(Some(common)), ..self }
    }
}

impl Mount for System {
    type Format = Ext;

    fn open(&self, disk: SharedDisk, rt: Rt, transfer_bytes_max: usize) -> moafs_vfs::Result<Ext> {
        let (place, directories) = (self.policy, self.directories);
        Ext::open(disk, rt, OpenOptions { transfer_bytes_max, place, directories, ..OpenOptions::default() })
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_of_the_ablation_changes_what_it_says_and_leads_to_the_next() {
        for pair in System::ABLATION.windows(2) {
            assert_eq!(pair[0].to, pair[1].from);
        }
        let differences = |one: System, other: System| {
            [
                one.policy != other.policy,
                one.merges != other.merges,
                one.directories != other.directories,
                one.co_reads != other.co_reads,
            ]
        };
        let all: Vec<[bool; 4]> = System::ABLATION.iter().map(|step| differences(step.from, step.to)).collect();
        assert_eq!(all[0], [true, true, false, false]);
        assert_eq!(all[1..3], [[true, false, false, false]; 2]);
        assert_eq!(all[3..], [[false, false, true, false], [false, false, false, true]]);
    }

    #[test]
    fn the_published_systems_differ_in_their_policy_alone() {
        let (paper, baseline) = (System::COWRITE_PAPER, System::FFS_PAPER);
        assert_eq!(System { name: baseline.name, policy: baseline.policy, ..paper }, baseline);
    }
}
