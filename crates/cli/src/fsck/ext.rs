//! Checking and repairing ext2, ext3 and ext4 volumes.

use indicatif::ProgressBar;
use moafs_disk::SharedDisk;
use moafs_ext::check::{CheckError, CheckOptions, Finding, Mode, check_volume};
use moafs_runtime::Live;

use super::arguments::FsckArgs;
use super::checked::{Checked, show};

/// Names of the passes, for people.
const PASSES: [&str; 5] = ["inodes and blocks", "directories", "connection to the root", "link counts", "free space"];

pub(super) fn run(args: &FsckArgs, disk: &SharedDisk, bar: &ProgressBar) -> Result<Checked, CheckError> {
    let mode = match (args.preen, args.yes) {
        (true, _) => Mode::Preen,
        (_, true) => Mode::Yes,
        _ => Mode::No,
    };
    let options = CheckOptions { mode, force: args.force, superblock: args.superblock, now: Live::new().timestamp() };
    let outcome = check_volume(disk, &options, &mut |progress| {
        let pass = PASSES.get(usize::from(progress.pass).wrapping_sub(1)).unwrap_or(&"volume");
        let what = format!("sweep {}, pass {}: {pass}", progress.sweep, progress.pass);
        show(bar, what, progress.done, progress.total);
    })?;
    if !args.only_looks() && outcome.transactions > 0 {
        bar.println(format!("{} transactions of the journal were replayed", outcome.transactions));
    }
    let told = |finding: &Finding| (finding.issue.to_string(), if finding.repaired { " (repaired)" } else { "" });
    Ok(Checked {
        findings: outcome.findings.iter().map(told).collect(),
        more: outcome.more,
        skipped: outcome.skipped,
        modified: outcome.modified,
        errors_left: outcome.errors_left,
        inodes_used: outcome.inodes_used,
        blocks_used: outcome.blocks_used,
        exit_code: outcome.exit_code(),
        outcome: serde_json::to_value(outcome).unwrap_or_default(),
    })
}

/// Returns advice on the errors found.
pub(super) fn advice(args: &FsckArgs) -> String {
    if args.only_looks() {
        format!("`moafs fsck -y {}` repairs them", args.image.display())
    } else {
        "`moafs fsck -y` or e2fsck may get further".to_owned()
    }
}
