//! `moafs touch`: makes empty files, and sets times of files of a volume.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{ArgAction, Args};
use moafs_runtime::Timestamp;
use moafs_vfs::Format;
use moafs_vfs::api::SetTime;

use super::paths::{Going, Paths, Work};
use super::tree::{LastLink, Tree};
use super::volume_tree::VolumeTree;
use super::{make_empty, reference};
use crate::error::Result;
use crate::place::Inside;
use crate::time;
use crate::volume::Access;

/// Set the times of files of a volume to now; make those that do not exist
///
/// DATE is ISO 8601 (2026-03-01, '2026-03-01 12:30:00', of the local zone if it names none), RFC 3339, RFC 2822,
/// @SECONDS since 1970, or a span such as '2 days ago'.
#[derive(Debug, Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  moafs touch disk.img:/etc/machine-id
  moafs touch -c disk.img:/var/log/wtmp disk.img:/var/log/btmp
  moafs touch -d 2026-03-01T12:30:00Z disk.img:/boot/vmlinuz
  moafs touch -t 202603011230.00 disk.img:/boot/vmlinuz
  moafs touch -m -r rootfs/etc/passwd disk.img:/etc/passwd

Exit code: 0 done, 1 something was not (and said so)."
)]
pub(crate) struct TouchArgs {
    #[command(flatten)]
    paths: Paths,
    #[command(flatten)]
    times: Times,
    /// Make no files
    #[arg(short = 'c', long)]
    no_create: bool,
    /// Change symbolic links, not the files that they lead to; make no files
    #[arg(short = 'h', long = "no-dereference")]
    links: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

#[derive(Debug, Args)]
struct Times {
    /// Only the time of the last access
    #[arg(short)]
    access: bool,
    /// Only the time of the last change
    #[arg(short)]
    modification: bool,
    /// This date instead of now
    #[arg(short, long, value_parser = time::parse)]
    date: Option<Timestamp>,
    // Not a comment for rustdoc, which takes brackets for links.
    #[arg(help = "This local time instead of now: [[CC]YY]MMDDhhmm[.ss]")]
    #[arg(short = 't', value_name = "STAMP", value_parser = time::parse_stamp, conflicts_with = "date")]
    stamp: Option<Timestamp>,
    /// The times of this file instead of now: a path of the host, or IMAGE:PATH
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["date", "stamp"])]
    reference: Option<OsString>,
}

impl TouchArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let [atime, mtime] = self.times.get()?;
        let mut touch = Touch { atime, mtime, no_create: self.no_create || self.links, links: self.links };
        self.paths.each(&mut touch)
    }
}

impl Times {
    /// Returns the times of access and change that are set.
    fn get(&self) -> Result<[Option<SetTime>; 2]> {
        let [atime, mtime] = match (self.date.or(self.stamp), &self.reference) {
            (Some(date), _) => [SetTime::To(date); 2],
            (None, Some(reference)) => reference::times_of(reference)?.map(SetTime::To),
            (None, None) => [SetTime::Now; 2],
        };
        let sets_both = self.access == self.modification;
        Ok([Some(atime).filter(|_| sets_both || self.access), Some(mtime).filter(|_| sets_both || self.modification)])
    }
}

struct Touch {
    atime: Option<SetTime>,
    mtime: Option<SetTime>,
    no_create: bool,
    links: bool,
}

impl Work for Touch {
    const ACCESS: Access = Access::Write;

    fn on<F: Format>(&mut self, tree: &VolumeTree<'_, F>, place: &Inside, _going: &mut Going) -> Result<()> {
        let last = if self.links { LastLink::Kept } else { LastLink::Followed };
        let node = match tree.resolve(&place.path, last)? {
            Some(node) => node,
            None if self.no_create => return Ok(()),
            None => make_empty(tree, place)?,
        };
        tree.touch(&node, self.atime, self.mtime)
    }
}
