//! The outcome of a check: what was found, or why the volume cannot be checked.

use moafs_disk::DiskError;
use serde::Serialize;

use super::issue::{Issue, Severity};
use crate::format::Damage;

/// Findings that are kept one by one; more are only counted.
const FINDINGS_MAX: usize = 10_000;

/// An issue with its severity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The structure that is wrong, with the values found and expected.
    #[serde(flatten)]
    pub issue: Issue,
    /// The issue's severity, from [`Issue::severity`].
    pub severity: Severity,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Outcome {
    /// Everything found, in the order of the passes; the first ten thousand.
    pub findings: Vec<Finding>,
    /// Findings that were only counted.
    pub more: u64,
    /// The severity of the worst finding, those that were only counted included.
    pub worst: Option<Severity>,
    /// Inodes in use, the root included.
    pub inodes_used: u64,
    /// Blocks of the main area in use, and blocks reserved for files without an address.
    pub blocks_used: u64,
}

impl Outcome {
    /// True if something is wrong that a repair would have to mend: space is lost, or worse.
    pub fn errors_left(&self) -> bool {
        self.worst > Some(Severity::Warning)
    }

    /// True if nothing worse was found than space that is lost or counted wrongly.
    pub fn is_leak_only(&self) -> bool {
        self.worst <= Some(Severity::Leak)
    }

    /// Returns the exit code of fsck(8): 4 if errors are left.
    pub fn exit_code(&self) -> i32 {
        i32::from(self.errors_left()) << 2
    }

    /// Records an issue with its severity; beyond [`FINDINGS_MAX`] it is only counted.
    pub(super) fn found(&mut self, issue: Issue) {
        let severity = issue.severity();
        self.worst = self.worst.max(Some(severity));
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding { issue, severity });
        } else {
            self.more += 1;
        }
    }
}

/// Reasons why a volume cannot be checked; fsck(8) exits with code 8.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// A request to the device failed.
    #[error("cannot {doing}: {source}")]
    Disk {
        /// The action that failed, as a verb phrase ("read the superblock").
        doing: &'static str,
        /// The error that the device returned.
        source: DiskError,
    },
    /// There is no usable superblock.
    #[error("{0}")]
    Damaged(#[from] Damage),
    /// The volume has features that this checker does not know: half a check would say too little.
    #[error("the volume cannot be checked: {0}")]
    Unsupported(String),
}
