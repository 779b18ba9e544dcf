//! Arguments of `moafs info`.

use std::path::PathBuf;

use clap::Args;

/// Show a volume: superblock, groups or segments, free space, layout score, most scattered files
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs info disk.img
  moafs info --groups disk.img
  moafs info --json disk.img | jq .layout.layout_score
  moafs info --json f2fs.img | jq .segments.counts

The layout score is the share of the files' blocks, from the second of each file on, that lie right behind their
predecessor: 1 is a volume without fragmentation. A piece is a run of blocks that are adjacent in a file and on the
volume (a data block group in papers about F2FS).")]
pub(crate) struct InfoArgs {
    /// Image file or block device
    pub(super) image: PathBuf,
    /// Also show the table of groups; for F2FS volumes, of segments in use
    #[arg(short, long)]
    pub(super) groups: bool,
    /// The superblock only (of F2FS volumes, with the checkpoint): does not read the rest of the volume
    #[arg(short = 'H', long, conflicts_with = "groups")]
    pub(super) header: bool,
    /// Number of the most scattered files to show
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    pub(super) scattered: usize,
    /// Print the facts as JSON
    #[arg(long)]
    pub(super) json: bool,
}
