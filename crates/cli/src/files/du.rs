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
  moafs du --json disk.img | jq 'max_by(.bytes)'

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
            output::json(&work.rows)?;
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
        let mut sums = Sums::new(&place.path);
        visit(tree, top, going, |visit| match visit {
            Visit::Meets { node, name, kind } => {
                let Some(sectors) = self.sectors(tree, node)? else { return Ok(false) };
                if kind == FileKind::Directory {
                    sums.enter(name);
                }
                sums.add(sectors);
                Ok(true)
            }
            Visit::Leaves => {
                let (path, sectors) = sums.innermost();
                if (1..=self.depth).contains(&sums.depth()) {
                    self.show(path, sectors)?;
                }
                sums.leave();
                Ok(true)
            }
        })?;
        let (path, sectors) = sums.innermost();
        self.show(path, sectors)
    }
}

/// The sums of the directories that were entered and not left.
struct Sums {
    /// Path of the innermost one.
    path: Vec<u8>,
    /// Sectors of each, and the length of the path above it; the first are those of the whole.
    open: Vec<(u64, usize)>,
}

impl Sums {
    fn new(path: &[u8]) -> Sums {
        Sums { path: path.to_vec(), open: vec![(0, path.len())] }
    }

    /// Enters a directory; the first one has no name.
    fn enter(&mut self, name: &[u8]) {
        self.open.push((0, self.path.len()));
        if !self.path.ends_with(b"/") && !name.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name);
    }

    fn add(&mut self, sectors: u64) {
        if let Some((sum, _)) = self.open.last_mut() {
            *sum = sum.saturating_add(sectors);
        }
    }

    /// Returns path and sum of the innermost directory.
    fn innermost(&self) -> (&[u8], u64) {
        (&self.path, self.open.last().map_or(0, |(sum, _)| *sum))
    }

    /// Returns the levels between the first directory and the innermost one.
    fn depth(&self) -> usize {
        self.open.len().saturating_sub(2)
    }

    /// Leaves a directory, whose sum becomes part of that above.
    fn leave(&mut self) {
        if let Some((sum, above)) = self.open.pop() {
            self.path.truncate(above);
            self.add(sum);
        }
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
