//! `moafs ls`: lists files of a volume.

use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::process::ExitCode;

use clap::Args;
use moafs_vfs::Format;
use moafs_vfs::api::Stat;
use moafs_vfs::types::FileKind;
use serde::Serialize;

use super::existing;
use super::tree::Tree;
use super::volume_tree::{Held, VolumeTree};
use super::walk::{Step, Walk};
use crate::error::{CliError, Result};
use crate::output;
use crate::place::Inside;
use crate::volume::{Access, Volume, with_volume};

/// List files of a volume
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs ls disk.img:/
  moafs ls -lR disk.img /home
  moafs ls -R --json disk.img:/etc

Exit code: 0 everything listed, 1 something was not (and said so).")]
pub(crate) struct LsArgs {
    /// IMAGE:PATH, or IMAGE
    #[arg(value_name = "IMAGE[:PATH]")]
    image: OsString,
    /// PATH, if it was not given with the image
    path: Option<OsString>,
    /// Mode, names, owner, group, size, time of last change
    #[arg(short)]
    long: bool,
    /// Also list directories within directories
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Also list names that begin with a dot
    #[arg(short, long)]
    all: bool,
    /// Show inode numbers
    #[arg(short, long)]
    inode: bool,
    /// Show ? for control characters in names, as on terminals; elsewhere names are shown as they are
    #[arg(short = 'q', long)]
    hide_control_chars: bool,
    /// Print the list as JSON
    #[arg(long)]
    json: bool,
}

/// A listed file, as JSON shows it.
#[derive(Debug, Serialize)]
struct Entry {
    /// The path, with U+FFFD for bytes that are not UTF-8.
    path: String,
    /// The bytes of a path that is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    target_hex: Option<String>,
}

impl LsArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let place = Inside::parse(&self.image, self.path.as_ref())?;
        with_volume!(&place.image, Access::Read, |volume| self.list(volume, &place))?;
        Ok(ExitCode::SUCCESS)
    }

    fn list<F: Format>(&self, volume: &Volume<F>, place: &Inside) -> Result<()> {
        let tree = VolumeTree::new(&volume.vfs, &place.image);
        let node = existing(&tree, place)?;
        let hides = self.hide_control_chars || io::stdout().is_terminal();
        let out = BufWriter::new(io::stdout().lock());
        let mut listing = Listing { args: self, tree: &tree, hides, out, entries: 0, failed: 0 };
        let listed = listing.all(node, place);
        // Entries listed before a failure are shown, and JSON is complete.
        let ended = listing.end();
        listed.and(ended)
    }
}

struct Listing<'a, 'v, F: Format> {
    args: &'a LsArgs,
    tree: &'a VolumeTree<'v, F>,
    /// True if names are shown as plain text.
    hides: bool,
    out: BufWriter<StdoutLock<'a>>,
    /// Number of entries written as JSON.
    entries: u64,
    /// Number of entries that could not be listed, which was reported.
    failed: u64,
}

impl<'v, F: Format> Listing<'_, 'v, F> {
    fn all(&mut self, node: Held<'v, F>, place: &Inside) -> Result<()> {
        if self.args.json {
            self.write(b"[")?;
        }
        if self.tree.meta(&node)?.kind != FileKind::Directory {
            return self.show(&node, &place.path, &place.path);
        }
        let end = place.path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
        self.tree_below(node, place.path[..end].to_vec())
    }

    /// Lists a directory, and with `-R` all below it.
    fn tree_below(&mut self, top: Held<'v, F>, mut path: Vec<u8>) -> Result<()> {
        let mut walk = Walk::new(self.tree);
        let id = self.tree.meta(&top)?.id;
        walk.meet(&top, id)?;
        let below = self.directory(&top, &path, false)?;
        walk.enter(b"", top, id, below);
        loop {
            match walk.step()? {
                Step::Entry { name, node } => {
                    let len = path.len();
                    path.push(b'/');
                    path.extend_from_slice(&name);
                    match self.enter(&mut walk, name, node, &path) {
                        Ok(()) => {}
                        Err(error @ CliError::Output(_)) => return Err(error),
                        Err(error) => {
                            self.tell(&error);
                            path.truncate(len);
                        }
                    }
                }
                Step::Failed(error) => self.tell(&error),
                Step::Leave { name, .. } => path.truncate(path.len().saturating_sub(name.len() + 1)),
                Step::End => return Ok(()),
            }
        }
    }

    fn enter<'t>(
        &mut self,
        walk: &mut Walk<'t, VolumeTree<'v, F>>,
        name: Vec<u8>,
        dir: Held<'v, F>,
        path: &[u8],
    ) -> Result<()> {
        let id = self.tree.meta(&dir)?.id;
        walk.meet(&dir, id)?;
        let below = self.directory(&dir, path, true)?;
        walk.enter(&name, dir, id, below);
        Ok(())
    }

    fn tell(&mut self, error: &CliError) {
        self.failed += 1;
        output::complain(error);
    }

    /// Lists the entries of one directory. Returns the names of the directories in it that are also
    /// to be listed.
    fn directory(&mut self, dir: &Held<'v, F>, path: &[u8], is_below: bool) -> Result<Vec<Vec<u8>>> {
        let names = self.tree.names(dir)?;
        if self.args.recursive && !self.args.json {
            let head = self.shown(if path.is_empty() { b"/" } else { path });
            self.write(&[if is_below { b"\n" } else { &b""[..] }, &head, b":\n"].concat())?;
        }
        let mut below = Vec::new();
        for name in names.into_iter().filter(|name| self.args.all || !name.starts_with(b".")) {
            match self.listed(dir, &name, path) {
                Ok(true) => below.push(name),
                Ok(false) => {}
                Err(error @ CliError::Output(_)) => return Err(error),
                Err(error) => self.tell(&error),
            }
        }
        Ok(below)
    }

    /// Lists an entry. Returns true if it is a directory that is also to be listed.
    fn listed(&mut self, dir: &Held<'v, F>, name: &[u8], path: &[u8]) -> Result<bool> {
        let Some(node) = self.tree.child(dir, name)? else { return Ok(false) };
        self.show(&node, name, &[path, b"/", name].concat())?;
        Ok(self.args.recursive && self.tree.meta(&node)?.kind == FileKind::Directory)
    }

    fn show(&mut self, node: &Held<'v, F>, name: &[u8], path: &[u8]) -> Result<()> {
        let stat = self.tree.stat(node)?;
        let is_link = stat.attr.kind == FileKind::Symlink;
        let target = if is_link { Some(self.tree.target(node)?) } else { None };
        if self.args.json {
            let text = output::json_text(&entry(&stat, path, target.as_deref()))?.replace('\n', "\n  ");
            let before = if self.entries == 0 { "\n  " } else { ",\n  " };
            self.entries += 1;
            return self.write(format!("{before}{text}").as_bytes());
        }
        let mut line = Vec::new();
        if self.args.inode {
            line.extend(format!("{:>10} ", stat.ino.0).into_bytes());
        }
        if self.args.long {
            line.extend(long_line(&stat).into_bytes());
        }
        line.extend(self.shown(name));
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
            self.write(if self.entries == 0 { b"]\n" } else { b"\n]\n" })?;
        }
        self.out.flush().map_err(CliError::Output)?;
        match self.failed {
            0 => Ok(()),
            failed => Err(CliError::Partial { failed, done: "listed" }),
        }
    }
}

fn entry(stat: &Stat, path: &[u8], target: Option<&[u8]>) -> Entry {
    let attr = &stat.attr;
    Entry {
        path: String::from_utf8_lossy(path).into_owned(),
        path_hex: output::hex_unless_text(path),
        ino: stat.ino.0,
        kind: kind_name(attr.kind),
        mode: format!("{:04o}", attr.perm),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        sectors: stat.sectors,
        mtime: output::time(attr.mtime),
        target: target.map(|target| String::from_utf8_lossy(target).into_owned()),
        target_hex: target.and_then(output::hex_unless_text),
    }
}

/// Returns the columns that `-l` shows before the name.
fn long_line(stat: &Stat) -> String {
    let attr = &stat.attr;
    let size = match attr.kind {
        FileKind::CharDevice | FileKind::BlockDevice => {
            format!("{}, {}", libc::major(attr.rdev), libc::minor(attr.rdev))
        }
        _ => attr.size.to_string(),
    };
    let (mode, time) = (mode_text(attr.kind, attr.perm), output::time(attr.mtime));
    format!("{mode} {:>3} {:>5} {:>5} {size:>12} {time} ", attr.nlink, attr.uid, attr.gid)
}

/// Returns a kind in one word.
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

/// Returns kind and permissions as `ls -l` writes them.
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
    // The special bit, its letter, and the shift of the three bits it shows in.
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
