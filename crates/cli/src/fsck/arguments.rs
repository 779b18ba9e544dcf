//! Arguments of `moafs fsck`.

use std::path::PathBuf;

use clap::Args;

/// Check a volume, and repair it
///
/// Without -n, -p or -y it only looks (as -n): nothing is changed that was not asked for. The
/// volume must not be mounted. The journal of ext3 and ext4 is replayed first; -n looks at the
/// volume as a replay would leave it. F2FS volumes are checked and not repaired: even with -p or
/// -y, errors are reported and left to fsck.f2fs.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs fsck -n disk.img        look, change nothing
  moafs fsck -p disk.img        repair what cannot lose anything; stop if that is not enough
  moafs fsck -y disk.img        repair everything

`fsck -t moafs` of util-linux goes by the type that a volume has, and checks nothing: use this, or fsck.moafs.

Exit code, as fsck(8): 0 no errors, 1 errors repaired, 4 errors left, 5 some repaired and others left, 8 the check
could not be done, 16 arguments that are not understood.")]
pub(crate) struct FsckArgs {
    /// Change nothing on the volume
    #[arg(short = 'n', conflicts_with_all = ["preen", "yes"])]
    pub(super) no: bool,
    /// Repair errors whose repair cannot lose anything (also -a)
    #[arg(short = 'p', short_alias = 'a', conflicts_with = "yes")]
    pub(super) preen: bool,
    /// Repair everything
    #[arg(short = 'y')]
    pub(super) yes: bool,
    /// Use the copy of the superblock in this block, and repair the first one from it (also -b; ext2)
    ///
    /// mkfs tells where the copies are. Without this option the first copy is used if the superblock itself cannot be.
    #[arg(short = 'b', long, value_name = "BLOCK", conflicts_with = "preen")]
    pub(super) superblock: Option<u64>,
    /// Check even if the volume says that it is clean
    #[arg(short, long)]
    pub(super) force: bool,
    /// Show findings as JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Show no progress (also -T, for fsck(8))
    #[arg(short, long, short_alias = 'T')]
    pub(super) quiet: bool,
    /// Show progress even where it is not seen on a terminal (for fsck(8))
    #[arg(short = 'C', hide = true, num_args = 0..=1, require_equals = true)]
    pub(super) _progress_fd: Option<Option<i32>>,
    /// Image file or block device
    pub(super) image: PathBuf,
}

impl FsckArgs {
    /// Returns true if nothing may be changed.
    pub(super) fn only_looks(&self) -> bool {
        !self.preen && !self.yes
    }
}
