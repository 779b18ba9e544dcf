//! `moafs du`: shows the space that files of a volume take.

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use moafs_vfs::types::FileKind;
use serde::Serialize;

use super::existing;
use super::paths::{Going, Look, Paths, look_at_each};
use super::sizes::Sizes;
use super::tree::{FileId, Tree};
use super::visit::{Visit, visit};
use crate::error::Result;
use crate::output;
use crate::place::Inside;

/// Bytes in a unit of `Stat::sectors`.
const SECTOR_BYTES: u64 = 512;

/// Show the space that files of a volume take
///
/// Each directory has a line with the KiB that it takes with all below it. What is met again is counted once:
/// a file of several names, or a path that lies in one before it.
#[derive(Debug, Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  moafs du disk.img:/var
  moafs du -sh disk.img:/home/ann disk.img:/home/bob
  moafs du -h -d 1 disk.img:/usr
  moafs du --json disk.img | jq '.paths | max_by(.bytes)'

Exit code: 0 everything counted, 1 something was not (and said so), 130 interrupted."
)]
pub(crate) struct DuArgs {
    #[command(flatten)]
    paths: Paths,
    /// Only one line for each path that is given
    #[arg(short, long, conflicts_with = "max_depth")]
    summarize: bool,
    /// Only lines of directories that lie at most N levels below a path that is given
    #[arg(short = 'd', long, value_name = "N")]
    max_depth: Option<usize>,
    #[command(flatten)]
    sizes: Sizes,
}

/// The space of a file and all below it, as JSON shows it.
#[derive(Debug, Serialize)]
struct Row {
    image: String,
    /// The path, with U+FFFD for bytes that are not UTF-8.
    path: String,
    /// The bytes of a path that is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    bytes: u64,
}

impl DuArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let depth = if self.summarize { 0 } else { self.max_depth.unwrap_or(usize::MAX) };
        let mut work = Du { args: &self, depth, image: PathBuf::new(), counted: HashSet::new(), rows: Vec::new() };
        let code = look_at_each(self.paths.places(), &mut work)?;
        if self.sizes.json {
            output::json_list("paths", &work.rows)?;
        }
        Ok(code)
    }
}

struct Du<'a> {
    args: &'a DuArgs,
    /// Levels below a path that have lines.
    depth: usize,
    /// The image that is being looked at.
    image: PathBuf,
    /// Its directories and files of several names that were counted.
    counted: HashSet<FileId>,
    /// All that JSON shows.
    rows: Vec<Row>,
}

impl Look for Du<'_> {
    fn at<T: Tree>(&mut self, tree: &T, place: &Inside, going: &mut Going) -> Result<()> {
        let top = existing(tree, place)?;
        if self.image != place.image {
            self.image.clone_from(&place.image);
            self.counted.clear();
        }
        if self.counted.contains(&tree.meta(&top)?.id) {
            return Ok(());
        }
        // Sectors of each directory that was entered and not left; the first are those of the whole.
        let mut sums = vec![0];
        visit(tree, top, &place.path, going, |visit| match visit {
            Visit::Meets { node, kind, .. } => {
                let Some(sectors) = self.sectors(tree, node)? else { return Ok(false) };
                if kind == FileKind::Directory {
                    sums.push(0);
                }
                add(&mut sums, sectors);
                Ok(true)
            }
            Visit::Leaves { path, depth } => {
                let sectors = sums.pop().unwrap_or(0);
                add(&mut sums, sectors);
                if (1..=self.depth).contains(&depth) {
                    self.show(path, sectors)?;
                }
                Ok(true)
            }
        })?;
        self.show(&place.path, sums[0])
    }
}

/// Adds to the innermost sum.
fn add(sums: &mut [u64], sectors: u64) {
    if let Some(sum) = sums.last_mut() {
        *sum = sum.saturating_add(sectors);
    }
}

impl Du<'_> {
    /// Returns the sectors of a file; `None` if it was counted before.
    fn sectors<T: Tree>(&mut self, tree: &T, node: &T::Node) -> Result<Option<u64>> {
        let meta = tree.meta(node)?;
        let is_new = meta.nlink < 2 && meta.kind != FileKind::Directory || self.counted.insert(meta.id);
        Ok(is_new.then_some(meta.sectors))
    }

    fn show(&mut self, path: &[u8], sectors: u64) -> Result<()> {
        let bytes = sectors.saturating_mul(SECTOR_BYTES);
        if self.args.sizes.json {
            self.rows.push(Row {
                image: self.image.to_string_lossy().into_owned(),
                path: String::from_utf8_lossy(path).into_owned(),
                path_hex: output::hex_unless_text(path),
                bytes,
            });
            return Ok(());
        }
        let size = self.args.sizes.shown(bytes);
        output::print(format!("{size}\t{}:{}\n", output::path(&self.image), output::name(path)).as_bytes())
    }
}
