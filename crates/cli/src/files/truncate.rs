//! `moafs truncate`: sets sizes of files of a volume.

use std::process::ExitCode;

use clap::Args;
use moafs_mount::size::{self, SizeError};
use moafs_vfs::Format;

use super::paths::{Going, Paths, Work};
use super::tree::{LastLink, Tree};
use super::volume_tree::VolumeTree;
use super::{failure, make_empty};
use crate::error::Result;
use crate::place::Inside;
use crate::volume::Access;

/// Set the sizes of files of a volume
///
/// A file that becomes longer gets a hole, which reads as zeros. One that does not exist is made.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs truncate -s 0 disk.img:/var/log/messages disk.img:/var/log/auth.log
  moafs truncate -s 1G disk.img:/swapfile
  moafs truncate -s -4K disk.img:/trailer

Exit code: 0 done, 1 something was not (and said so).")]
pub(crate) struct TruncateArgs {
    #[command(flatten)]
    paths: Paths,
    #[command(flatten)]
    truncate: Truncate,
}

#[derive(Debug, Args)]
struct Truncate {
    /// The size, such as 0, 512K, 1.5G or 100MB; +SIZE and -SIZE make longer and shorter
    #[arg(short, long, value_parser = NewSize::parse, allow_hyphen_values = true)]
    size: NewSize,
    /// Make no files
    #[arg(short = 'c', long)]
    no_create: bool,
}

/// A size, or a change of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NewSize {
    To(u64),
    Longer(u64),
    Shorter(u64),
}

impl NewSize {
    fn parse(text: &str) -> Result<NewSize, SizeError> {
        let (kind, bytes): (fn(u64) -> NewSize, &str) = match text.as_bytes().first() {
            Some(b'+') => (NewSize::Longer, &text[1..]),
            Some(b'-') => (NewSize::Shorter, &text[1..]),
            _ => (NewSize::To, text),
        };
        size::parse(bytes).map(kind)
    }

    /// Returns the size that a file of `size` bytes gets; `None` if there is none so large.
    fn of(self, size: u64) -> Option<u64> {
        match self {
            NewSize::To(size) => Some(size),
            NewSize::Longer(by) => size.checked_add(by),
            NewSize::Shorter(by) => Some(size.saturating_sub(by)),
        }
    }
}

impl TruncateArgs {
    pub(crate) fn run(mut self) -> Result<ExitCode> {
        self.paths.each(&mut self.truncate)
    }
}

impl Work for Truncate {
    const ACCESS: Access = Access::Write;

    fn on<F: Format>(&mut self, tree: &VolumeTree<'_, F>, place: &Inside, _going: &mut Going) -> Result<()> {
        let node = match tree.resolve(&place.path, LastLink::Followed)? {
            Some(node) => node,
            None if self.no_create => return Ok(()),
            None => make_empty(tree, place)?,
        };
        let too_large = || failure("resizing", place, libc::EFBIG);
        let size = self.size.of(tree.meta(&node)?.size).ok_or_else(too_large)?;
        tree.resize(&node, size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_absolute_or_relative() {
        let size = |text: &str, of: u64| NewSize::parse(text).unwrap().of(of);
        assert_eq!(size("1K", 5), Some(1024));
        assert_eq!(size("+1.5K", 5), Some(1541));
        assert_eq!(size("-3", 5), Some(2));
        assert_eq!(size("-1K", 5), Some(0));
        assert_eq!(size("+1", u64::MAX), None);
        for text in ["", "+", "x", "--1", "1X"] {
            assert!(NewSize::parse(text).is_err(), "{text}");
        }
    }
}
