//! Checking and repairing ext2 volumes.

use indicatif::ProgressBar;
use moafs_disk::SharedDisk;
use moafs_ext::check::{CheckError, CheckOptions, Finding, Mode, check};
use moafs_ext::journal;
use moafs_runtime::Live;

use super::arguments::FsckArgs;
use super::checked::{Checked, show};

/// Names of the passes, for people.
const PASSES: [&str; 5] = ["inodes and blocks", "directories", "connection to the root", "link counts", "free space"];

pub(super) fn run(args: &FsckArgs, disk: &SharedDisk, bar: &ProgressBar) -> std::result::Result<Checked, Failed> {
    let replayed = if args.only_looks() { None } else { journal::replay(disk)? };
    if let Some(replay) = &replayed {
        bar.println(format!("{} transactions of the journal were replayed", replay.transactions));
    }
    let mode = match (args.preen, args.yes) {
        (true, _) => Mode::Preen,
        (_, true) => Mode::Yes,
        _ => Mode::No,
    };
    let options = CheckOptions { mode, force: args.force, superblock: args.superblock, now: Live::new().timestamp() };
    let mut outcome = check(&**disk, &options, &mut |progress| {
        let pass = PASSES.get(usize::from(progress.pass).wrapping_sub(1)).unwrap_or(&"volume");
        let what = format!("sweep {}, pass {}: {pass}", progress.sweep, progress.pass);
        show(bar, what, progress.done, progress.total);
    })?;
    outcome.modified |= replayed.is_some();
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

/// The reason for which a volume could not be checked.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    /// The journal could not be replayed.
    #[error(transparent)]
    Journal(#[from] moafs_vfs::Error),
    /// The volume itself could not be checked.
    #[error(transparent)]
    Check(#[from] CheckError),
}

/// Returns advice on the errors found.
pub(super) fn advice(args: &FsckArgs) -> String {
    if args.only_looks() {
        format!("`moafs fsck -y {}` repairs them", args.image.display())
    } else {
        "`moafs fsck -y` or e2fsck may get further".to_owned()
    }
}
