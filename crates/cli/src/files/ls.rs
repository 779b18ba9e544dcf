//! `moafs ls`: lists files of a volume.

use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::process::ExitCode;

use clap::{ArgAction, Args};
use moafs_vfs::types::FileKind;
use serde::Serialize;

use super::color::{ColorWhen, Colors};
use super::file_facts::{FileFacts, Rdev, mode_text};
use super::order::Order;
use super::paths::{Going, Look, Paths, look_at_each};
use super::tree::{LastLink, Meta, Tree};
use super::walk::{Step, Walk};
use super::{existing, found};
use crate::error::{CliError, Result};
use crate::output;
use crate::place::Inside;
use crate::time::{Reported, TimeStyle};

/// List files of a volume
///
/// As with ls(1), files that are given come first, then directories, each below its path if there are several; a
/// symbolic link to a directory is followed where it is given, except with -l or -d. There is one name on a line.
#[derive(Debug, Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  moafs ls disk.img:/
  moafs ls -lh disk.img:/boot disk.img:/etc/fstab
  moafs ls -lR --time-style=full-iso disk.img /home
  moafs ls -R --json disk.img:/etc

Exit code: 0 everything listed, 1 something was not (and said so)."
)]
pub(crate) struct LsArgs {
    #[command(flatten)]
    paths: Paths,
    #[command(flatten)]
    ls: Ls,
}

#[derive(Debug, Args)]
struct Ls {
    /// Mode, names, owner, group, size, time of last change
    #[arg(short)]
    long: bool,
    /// Also list directories within directories
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Also list names that begin with a dot
    #[arg(short, long)]
    all: bool,
    /// List directories themselves, not what is in them
    #[arg(short, long)]
    directory: bool,
    /// Show inode numbers
    #[arg(short, long)]
    inode: bool,
    #[command(flatten)]
    order: Order,
    /// With -l: sizes for people, with units
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// One name on a line, as always
    #[arg(short = '1')]
    _one: bool,
    /// Show ? for control characters in names, as on terminals; elsewhere names are shown as they are
    #[arg(short = 'q', long)]
    hide_control_chars: bool,
    /// Colour names by kind, as LS_COLORS says
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        num_args = 0..=1,
        require_equals = true,
        default_value = "never",
        default_missing_value = "always"
    )]
    color: ColorWhen,
    /// With -l: zoned (local time with its zone), full-iso (also nanoseconds), long-iso, iso, +FORMAT of date(1)
    #[arg(long, value_name = "STYLE", default_value = "zoned")]
    time_style: TimeStyle,
    /// Print the list as JSON
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// A listed file, as JSON shows it.
#[derive(Debug, Serialize)]
struct Entry {
    #[serde(flatten)]
    facts: FileFacts,
    mtime: Reported,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_hex: Option<String>,
}

impl LsArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let places = self.paths.places();
        let images = || places.iter().flatten().map(|place| &place.image);
        let mut listing = Listing {
            args: &self.ls,
            hides: self.ls.hide_control_chars || io::stdout().is_terminal(),
            colors: self.ls.color.colors(),
            has_heads: self.ls.recursive || places.len() > 1,
            has_images: images().any(|image| images().next() != Some(image)),
            out: BufWriter::new(io::stdout().lock()),
            blocks: 0,
            entries: 0,
        };
        if self.ls.json {
            listing.write(format!("{{\n  \"schema\": {},\n  \"files\": [", output::SCHEMA).as_bytes())?;
        }
        let listed = look_at_each(places, &mut listing);
        // Entries listed before a failure are shown, and JSON is complete.
        let ended = listing.end();
        listed.and_then(|code| ended.map(|()| code))
    }
}

struct Listing<'a> {
    args: &'a Ls,
    /// True if names are shown as plain text.
    hides: bool,
    colors: Option<Colors>,
    /// True if a line before each directory says which it is.
    has_heads: bool,
    /// True if such lines, and files that were given, are shown with their image: there are several.
    has_images: bool,
    out: BufWriter<StdoutLock<'a>>,
    /// Number of directories and runs of files written, with an empty line between them.
    blocks: u64,
    /// Number of entries written as JSON.
    entries: u64,
}

impl Look for Listing<'_> {
    fn at<T: Tree>(&mut self, tree: &T, place: &Inside, going: &mut Going) -> Result<()> {
        let node = self.given(tree, place)?;
        if self.args.directory || tree.meta(&node)?.kind != FileKind::Directory {
            self.blocks = 1;
            let name = self.with_image(place, &place.path);
            return self.show(tree, &node, &name, place, &place.path);
        }
        let end = place.path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
        self.tree_below(tree, node, place, going, place.path[..end].to_vec())
    }

    /// Returns files before directories, both in the order that is asked for.
    fn ordered<'p, T: Tree>(&self, tree: &T, places: &'p [Inside]) -> Vec<&'p Inside> {
        let meta = |place: &Inside| self.given(tree, place).and_then(|node| tree.meta(&node)).ok();
        let is_directory =
            |place: &&Inside| !self.args.directory && meta(place).is_some_and(|meta| meta.kind == FileKind::Directory);
        let (directories, files): (Vec<_>, Vec<_>) = places.iter().partition(is_directory);
        let arranged = |places| self.args.order.arrange(places, |place: &&'p Inside| &place.path, |place| meta(place));
        [arranged(files), arranged(directories)].concat()
    }
}

impl Listing<'_> {
    /// Returns the file that is given: a symbolic link to a directory is followed, if links are not to be shown.
    fn given<T: Tree>(&self, tree: &T, place: &Inside) -> Result<T::Node> {
        let node = existing(tree, place)?;
        let leads_on = !self.args.long && !self.args.directory && tree.meta(&node)?.kind == FileKind::Symlink;
        match leads_on.then(|| tree.leads_to(&node)).transpose()?.flatten() {
            Some((_, FileKind::Directory)) => found(tree, place, LastLink::Followed),
            _ => Ok(node),
        }
    }

    fn with_image(&self, place: &Inside, path: &[u8]) -> Vec<u8> {
        if !self.has_images {
            return path.to_vec();
        }
        [place.image.as_os_str().as_encoded_bytes(), b":", path].concat()
    }

    /// Lists a directory, and with `-R` all below it.
    fn tree_below<T: Tree>(
        &mut self,
        tree: &T,
        top: T::Node,
        place: &Inside,
        going: &mut Going,
        mut path: Vec<u8>,
    ) -> Result<()> {
        let mut walk = Walk::new(tree);
        let id = tree.meta(&top)?.id;
        walk.meet(&top, id)?;
        let below = self.directory(tree, &top, place, going, &path)?;
        walk.enter(b"", top, id, below);
        loop {
            match walk.step()? {
                Step::Entry { name, node } => {
                    let len = path.len();
                    path.push(b'/');
                    path.extend_from_slice(&name);
                    let entered = self.enter(&mut walk, tree, (name, node), place, going, &path);
                    if entered.is_err() {
                        path.truncate(len);
                    }
                    going.after(entered)?;
                }
                Step::Failed(error) => going.after(Err(error))?,
                Step::Leave { name, .. } => path.truncate(path.len().saturating_sub(name.len() + 1)),
                Step::End => return Ok(()),
            }
        }
    }

    fn enter<'t, T: Tree>(
        &mut self,
        walk: &mut Walk<'t, T>,
        tree: &'t T,
        (name, dir): (Vec<u8>, T::Node),
        place: &Inside,
        going: &mut Going,
        path: &[u8],
    ) -> Result<()> {
        let id = tree.meta(&dir)?.id;
        walk.meet(&dir, id)?;
        let below = self.directory(tree, &dir, place, going, path)?;
        walk.enter(&name, dir, id, below);
        Ok(())
    }

    /// Lists the entries of one directory. Returns the names of the directories in it that are also
    /// to be listed.
    fn directory<T: Tree>(
        &mut self,
        tree: &T,
        dir: &T::Node,
        place: &Inside,
        going: &mut Going,
        path: &[u8],
    ) -> Result<Vec<Vec<u8>>> {
        let names = self.args.order.arrange(
            tree.names(dir)?,
            |name| name,
            |name| tree.meta(&tree.child(dir, name).ok()??).ok(),
        );
        if self.has_heads && !self.args.json {
            let head = self.with_image(place, if path.is_empty() { b"/" } else { path });
            let before: &[u8] = if self.blocks > 0 { b"\n" } else { b"" };
            self.blocks += 1;
            let head = self.shown(&head);
            self.write(&[before, &head, b":\n"].concat())?;
        }
        let mut below = Vec::new();
        for name in names.into_iter().filter(|name| self.args.all || !name.starts_with(b".")) {
            match self.listed(tree, dir, &name, place, path) {
                Ok(true) => below.push(name),
                Ok(false) => {}
                Err(error) => going.after(Err(error))?,
            }
        }
        Ok(below)
    }

    /// Lists an entry. Returns true if it is a directory that is also to be listed.
    fn listed<T: Tree>(&mut self, tree: &T, dir: &T::Node, name: &[u8], place: &Inside, path: &[u8]) -> Result<bool> {
        let Some(node) = tree.child(dir, name)? else { return Ok(false) };
        self.show(tree, &node, name, place, &[path, b"/", name].concat())?;
        Ok(self.args.recursive && tree.meta(&node)?.kind == FileKind::Directory)
    }

    fn show<T: Tree>(&mut self, tree: &T, node: &T::Node, name: &[u8], place: &Inside, path: &[u8]) -> Result<()> {
        let meta = tree.meta(node)?;
        let is_link = meta.kind == FileKind::Symlink;
        let target = if is_link { Some(tree.target(node)?) } else { None };
        if self.args.json {
            let text = output::json_text(&entry(&meta, place, path, target.as_deref()))?.replace('\n', "\n    ");
            let before = if self.entries == 0 { "\n    " } else { ",\n    " };
            self.entries += 1;
            return self.write(format!("{before}{text}").as_bytes());
        }
        let mut line = Vec::new();
        if self.args.inode {
            line.extend(format!("{:>10} ", meta.id.ino()).into_bytes());
        }
        if self.args.long {
            line.extend(self.args.long_line(&meta).into_bytes());
        }
        let shown = self.shown(name);
        line.extend(self.colors.as_ref().map_or_else(|| shown.clone(), |colors| colors.paint(&shown, name, &meta)));
        if let Some(target) = target.filter(|_| self.args.long) {
            line.extend(b" -> ");
            line.extend(self.shown(&target));
        }
        line.push(b'\n');
        self.write(&line)
    }

    fn shown(&self, name: &[u8]) -> Vec<u8> {
        if self.hides { output::hidden(name) } else { name.to_vec() }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(CliError::Output)
    }

    fn end(&mut self) -> Result<()> {
        if self.args.json {
            self.write(if self.entries == 0 { b"]\n}\n" } else { b"\n  ]\n}\n" })?;
        }
        self.out.flush().map_err(CliError::Output)
    }
}

fn entry(meta: &Meta, place: &Inside, path: &[u8], target: Option<&[u8]>) -> Entry {
    Entry {
        facts: FileFacts::of(meta, place, path),
        mtime: Reported(meta.mtime),
        target: target.map(|target| String::from_utf8_lossy(target).into_owned()),
        target_hex: target.and_then(output::hex_unless_text),
    }
}

impl Ls {
    /// Returns the columns that `-l` shows before the name.
    fn long_line(&self, meta: &Meta) -> String {
        let size = match Rdev::of(meta.kind, meta.rdev) {
            Some(Rdev { major, minor }) => format!("{major}, {minor}"),
            None if self.human_readable => output::size(meta.size),
            None => meta.size.to_string(),
        };
        let (mode, time) = (mode_text(meta.kind, meta.perm), self.time_style.show(meta.mtime));
        format!("{mode} {:>3} {:>5} {:>5} {size:>12} {time} ", meta.nlink, meta.uid, meta.gid)
    }
}
