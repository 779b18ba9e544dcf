//! Options of a check, and the collection of what it finds.

use moafs_runtime::Timestamp;
use serde::Serialize;

use super::issue::{Issue, Severity};

/// Findings that are kept one by one; more are only counted.
const FINDINGS_MAX: usize = 10_000;

/// The changes that a check may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// No changes (`fsck -n`).
    No,
    /// Repairs that cannot lose anything; none at all if they are not enough (`fsck -p`).
    Preen,
    /// Every repair (`fsck -y`).
    Yes,
}

/// Options of a check.
#[derive(Debug, Clone, Copy)]
pub struct CheckOptions {
    /// The changes that the check may make.
    pub mode: Mode,
    /// Check even if the volume says that it is clean.
    pub force: bool,
    /// The block that holds the copy of the superblock to use instead of the primary one.
    pub superblock: Option<u64>,
    /// The current time, for deletion times and the superblock.
    pub now: Timestamp,
}

/// The progress of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The sweep over the volume, from 1.
    pub sweep: u32,
    /// The pass, from 1 to 5.
    pub pass: u8,
    /// Steps of the pass that are done.
    pub done: u64,
    /// All steps of the pass.
    pub total: u64,
}

/// An issue, and whether it was repaired.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The error that was found.
    #[serde(flatten)]
    pub issue: Issue,
    /// The severity of the issue.
    pub severity: Severity,
    /// True if it was repaired.
    pub repaired: bool,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Outcome {
    /// The issues found, in the order of the passes; the first ten thousand.
    pub findings: Vec<Finding>,
    /// Findings that were only counted.
    pub more: u64,
    /// True if the volume said that it was clean, and was not checked.
    pub skipped: bool,
    /// Transactions of the journal that were replayed, or that the check showed as if they were.
    pub transactions: u32,
    /// True if a repair changed the volume.
    pub modified: bool,
    /// True if errors are left.
    pub errors_left: bool,
    /// Number of inodes in use.
    pub inodes_used: u64,
    /// Number of blocks in use.
    pub blocks_used: u64,
}

impl Outcome {
    /// Returns the exit code of fsck(8): 1 if the volume was repaired, 4 if errors are left.
    pub fn exit_code(&self) -> i32 {
        i32::from(self.modified) | i32::from(self.errors_left) << 2
    }

    pub(super) fn add(&mut self, log: Log) {
        self.modified |= log.modified;
        self.more += log.more;
        for finding in log.findings {
            if self.findings.len() < FINDINGS_MAX {
                self.findings.push(finding);
            } else {
                self.more += 1;
            }
        }
    }
}

/// Collects issues, and decides which of them are to be repaired.
#[derive(Default)]
pub(super) struct Log {
    pub(super) findings: Vec<Finding>,
    pub(super) more: u64,
    pub(super) modified: bool,
    pub(super) may_fix_safe: bool,
    pub(super) may_fix_all: bool,
}

impl Log {
    /// Notes an issue. Returns true if the caller is to repair it now.
    pub(super) fn found(&mut self, issue: Issue) -> bool {
        let fatal = issue.severity() == Severity::Fatal;
        let fix = !fatal && (self.may_fix_all || (self.may_fix_safe && issue.is_safe_to_repair()));
        self.note(issue, fix);
        fix
    }

    /// Returns true if a repair of this issue may be tried; the caller then [notes](Self::note) the
    /// result.
    pub(super) fn may_fix(&self, issue: &Issue) -> bool {
        self.may_fix_all || (self.may_fix_safe && issue.is_safe_to_repair())
    }

    pub(super) fn has_errors_left(&self) -> bool {
        self.more > 0 || self.findings.iter().any(|f| !f.repaired && f.severity > Severity::Warning)
    }

    /// Notes an issue that is beyond repair in this sweep.
    pub(super) fn note(&mut self, issue: Issue, repaired: bool) {
        self.modified |= repaired;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding { severity: issue.severity(), issue, repaired });
        } else {
            self.more += 1;
        }
    }
}
