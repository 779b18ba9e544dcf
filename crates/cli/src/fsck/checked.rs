//! The result of a check, and its progress.

use indicatif::ProgressBar;
use serde_json::Value;

/// The result of checking a volume of any format.
pub(super) struct Checked {
    /// Findings in words, each with its treatment.
    pub(super) findings: Vec<(String, &'static str)>,
    /// Number of findings that were only counted.
    pub(super) more: u64,
    /// True if the volume said that it was clean, and was not looked at.
    pub(super) skipped: bool,
    pub(super) modified: bool,
    pub(super) errors_left: bool,
    pub(super) inodes_used: u64,
    pub(super) blocks_used: u64,
    pub(super) exit_code: i32,
    /// Complete result of the format's checker.
    pub(super) outcome: Value,
}

/// Shows how far a check has got.
pub(super) fn show(bar: &ProgressBar, what: String, done: u64, total: u64) {
    bar.set_message(what);
    bar.set_length(total);
    bar.set_position(done);
}
