//! `moafs ls`.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;
use moafs_vfs::Format;
use moafs_vfs::api::Stat;
use moafs_vfs::types::FileKind;
use serde::Serialize;

use super::existing;
use super::tree::Tree;
use super::volume_tree::{Held, VolumeTree};
use crate::error::{CliError, Result};
use crate::output;
use crate::place::Inside;
use crate::volume::{Access, Volume, with_volume};

/// The deepest directory that is listed: a damaged volume may have cycles.
const DEPTH_MAX: usize = 1000;

/// List files of a volume
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs ls disk.img:/
  moafs ls -lR disk.img /home
  moafs ls -R --json disk.img:/etc")]
pub(crate) struct LsArgs {
    /// IMAGE:PATH, or IMAGE
    #[arg(value_name = "IMAGE[:PATH]")]
    image: OsString,
    /// PATH, if it was not given with the image
    path: Option<OsString>,
    /// Mode, names, owner, group, size, time of last change
    #[arg(short)]
    long: bool,
    /// Directories within directories, too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Names that begin with a dot, too
    #[arg(short, long)]
    all: bool,
    /// Inode numbers
    #[arg(short, long)]
    inode: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// One file, as JSON shows it.
#[derive(Debug, Serialize)]
struct Entry {
    path: String,
    ino: u64,
    kind: &'static str,
    /// Permission bits in octal.
    mode: String,
    nlink: u32,
    uid: u32,
    gid: u32,
    size: u64,
    sectors: u64,
    mtime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl LsArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let place = Inside::parse(&self.image, self.path.as_ref())?;
        with_volume!(&place.image, Access::Read, |volume| self.list(volume, &place))?;
        Ok(ExitCode::SUCCESS)
    }

    fn list<F: Format>(&self, volume: &Volume<F>, place: &Inside) -> Result<()> {
        let tree = VolumeTree::new(&volume.vfs, place.image.display().to_string());
        let node = existing(&tree, place)?;
        let mut listing = Listing { args: self, tree: &tree, entries: Vec::new() };
        if tree.meta(&node)?.kind == FileKind::Directory {
            listing.directory(&node, &path_of(place), 0)?;
        } else {
            listing.show(&node, &output::name(&place.path), &output::name(&place.path))?;
        }
        if self.json { output::json(&listing.entries) } else { Ok(()) }
    }
}

/// The path of a directory, without a slash at its end.
fn path_of(place: &Inside) -> String {
    output::name(&place.path).trim_end_matches('/').to_owned()
}

struct Listing<'a, 'v, F: Format> {
    args: &'a LsArgs,
    tree: &'a VolumeTree<'v, F>,
    entries: Vec<Entry>,
}

impl<'v, F: Format> Listing<'_, 'v, F> {
    fn directory(&mut self, dir: &Held<'v, F>, path: &str, depth: usize) -> Result<()> {
        if depth >= DEPTH_MAX {
            return Err(CliError::Usage(format!("{path} lies deeper than {DEPTH_MAX} directories: check the volume")));
        }
        if self.args.recursive && !self.args.json {
            output::print(format!("{}{}:\n", if depth > 0 { "\n" } else { "" }, or_root(path)).as_bytes())?;
        }
        let mut below = Vec::new();
        for name in self.tree.names(dir)? {
            if name.starts_with(b".") && !self.args.all {
                continue;
            }
            let Some(node) = self.tree.child(dir, &name)? else { continue };
            let shown = output::name(&name);
            self.show(&node, &shown, &format!("{path}/{shown}"))?;
            if self.args.recursive && self.tree.meta(&node)?.kind == FileKind::Directory {
                below.push((name, shown));
            }
        }
        for (name, shown) in below {
            if let Some(node) = self.tree.child(dir, &name)? {
                self.directory(&node, &format!("{path}/{shown}"), depth + 1)?;
            }
        }
        Ok(())
    }

    fn show(&mut self, node: &Held<'v, F>, name: &str, path: &str) -> Result<()> {
        let stat = self.tree.stat(node.ino)?;
        let is_link = stat.attr.kind == FileKind::Symlink;
        let target = if is_link { Some(output::name(&self.tree.target(node)?)) } else { None };
        if self.args.json {
            self.entries.push(entry(&stat, path, target));
            return Ok(());
        }
        let inode = if self.args.inode { format!("{:>10} ", stat.ino.0) } else { String::new() };
        let line = if self.args.long { long_line(&stat, name, target) } else { name.to_owned() };
        output::print(format!("{inode}{line}\n").as_bytes())
    }
}

fn or_root(path: &str) -> &str {
    if path.is_empty() { "/" } else { path }
}

fn entry(stat: &Stat, path: &str, target: Option<String>) -> Entry {
    let attr = &stat.attr;
    Entry {
        path: path.to_owned(),
        ino: stat.ino.0,
        kind: kind_name(attr.kind),
        mode: format!("{:04o}", attr.perm),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        sectors: stat.sectors,
        mtime: output::time(attr.mtime),
        target,
    }
}

fn long_line(stat: &Stat, name: &str, target: Option<String>) -> String {
    let attr = &stat.attr;
    let size = match attr.kind {
        FileKind::CharDevice | FileKind::BlockDevice => {
            format!("{}, {}", libc::major(attr.rdev), libc::minor(attr.rdev))
        }
        _ => attr.size.to_string(),
    };
    let arrow = target.map(|target| format!(" -> {target}")).unwrap_or_default();
    let (mode, time) = (mode_text(attr.kind, attr.perm), output::time(attr.mtime));
    format!("{mode} {:>3} {:>5} {:>5} {size:>12} {time} {name}{arrow}", attr.nlink, attr.uid, attr.gid)
}

/// A kind in one word.
pub(crate) fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::CharDevice => "char device",
        FileKind::BlockDevice => "block device",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}

/// Kind and permissions as `ls -l` writes them.
pub(crate) fn mode_text(kind: FileKind, perm: u32) -> String {
    let first = match kind {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
    };
    let mut text = String::from(first);
    // Special bit, its letter, and the shift of the three bits it shows in.
    for (special, letter, shift) in [(0o4000, 's', 6), (0o2000, 's', 3), (0o1000, 't', 0)] {
        let bits = perm >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (perm & special != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_written_as_ls_does() {
        assert_eq!(mode_text(FileKind::Regular, 0o644), "-rw-r--r--");
        assert_eq!(mode_text(FileKind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode_text(FileKind::Regular, 0o6711), "-rws--s--x");
        assert_eq!(mode_text(FileKind::Regular, 0o4644), "-rwSr--r--");
    }
}
