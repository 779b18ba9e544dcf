//! Checking F2FS volumes. Errors are repaired by fsck.f2fs, not here.

use indicatif::ProgressBar;
use moafs_disk::Disk;
use moafs_f2fs::check::{CheckError, CheckOptions, Finding, Severity, check};

use super::arguments::FsckArgs;
use super::checked::{Checked, show};

/// Names of the passes, for people.
const PASSES: [&str; 4] = ["tables and logs", "inodes and blocks", "names", "links and counts"];

pub(super) fn run(disk: &dyn Disk, bar: &ProgressBar) -> Result<Checked, CheckError> {
    let outcome = check(disk, &CheckOptions::default(), &mut |progress| {
        let pass = PASSES.get(usize::from(progress.pass).wrapping_sub(1)).unwrap_or(&"volume");
        show(bar, format!("pass {}: {pass}", progress.pass), progress.done, progress.total);
    })?;
    let note = |severity| if severity == Severity::Warning { " (harmless)" } else { "" };
    let told = |finding: &Finding| (finding.issue.to_string(), note(finding.severity));
    Ok(Checked {
        findings: outcome.findings.iter().map(told).collect(),
        more: outcome.more,
        skipped: false,
        modified: false,
        errors_left: outcome.errors_left(),
        inodes_used: outcome.inodes_used,
        blocks_used: outcome.blocks_used,
        exit_code: outcome.exit_code(),
        outcome: serde_json::to_value(outcome).unwrap_or_default(),
    })
}

/// Returns advice on the errors found.
pub(super) fn advice(args: &FsckArgs) -> String {
    format!("moafs does not repair F2FS volumes: repair it with `fsck.f2fs {}`", args.image.display())
}
