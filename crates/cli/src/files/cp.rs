//! `moafs cp`, `get` and `put`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use moafs_vfs::Format;
use moafs_vfs::types::FileKind;

use super::copy::{Copy, Keep, Tally};
use super::host::Host;
use super::tree::Tree;
use super::volume_tree::VolumeTree;
use crate::error::{CliError, Result};
use crate::place::{Inside, Place};
use crate::volume::{Access, Volume, with_volume};
use crate::{output, stat};

/// Copy files between host and volume, or between volumes
///
/// IMAGE:PATH names a file of a volume; everything else is a file of the host. As with cp(1), a source goes *into* a
/// destination that is a directory. Holes stay holes, symbolic links stay symbolic links.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs cp -r src disk.img:/                    the directory src into the volume's root
  moafs cp -a disk.img:/etc ./etc-of-image      out of it, with owners, times, links, attributes
  moafs cp a.img:/kernel b.img:/boot/kernel     from volume to volume

Exit code: 0 everything copied, 1 something was not (and said so).")]
pub(crate) struct CpArgs {
    /// What to copy, and last: where to
    #[arg(required = true, num_args = 2.., value_name = "SOURCE... DESTINATION")]
    places: Vec<OsString>,
    #[command(flatten)]
    how: How,
}

/// Copy files out of a volume: `get IMAGE:PATH [DIR]` is `cp -r IMAGE:PATH DIR`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs get disk.img:/etc/fstab
  moafs get -a disk.img:/home/ann /tmp")]
pub(crate) struct GetArgs {
    /// What to copy: IMAGE:PATH
    source: OsString,
    /// Where to
    #[arg(default_value = ".")]
    destination: OsString,
    #[command(flatten)]
    how: How,
}

/// Copy files into a volume: `put FILE... IMAGE[:DIR]` is `cp -r FILE... IMAGE:DIR`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs put kernel initrd disk.img:/boot
  moafs put -a /etc disk.img")]
pub(crate) struct PutArgs {
    /// What to copy, and last: IMAGE or IMAGE:DIR
    #[arg(required = true, num_args = 2.., value_name = "FILE... IMAGE[:DIR]")]
    places: Vec<OsString>,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, Args)]
struct How {
    /// Directories, with everything in them
    #[arg(short, long)]
    recursive: bool,
    /// As -r, and keep modes, owners, times, hard links, extended attributes, special files
    #[arg(short, long)]
    archive: bool,
    /// Tell what was copied, and what the disk was asked
    #[arg(short, long)]
    verbose: bool,
}

impl CpArgs {
    pub(crate) fn run(mut self) -> Result<ExitCode> {
        let to = destination(&mut self.places)?;
        copy_all(&self.places, &Place::parse(&to), &self.how)
    }
}

impl GetArgs {
    pub(crate) fn run(mut self) -> Result<ExitCode> {
        self.how.recursive = true;
        copy_all(&[self.source], &Place::Host(PathBuf::from(&self.destination)), &self.how)
    }
}

impl PutArgs {
    pub(crate) fn run(mut self) -> Result<ExitCode> {
        self.how.recursive = true;
        let to = destination(&mut self.places)?;
        copy_all(&self.places, &Place::Volume(Inside::parse(&to, None)?), &self.how)
    }
}

/// Takes the last place, which is where the others go.
fn destination(places: &mut Vec<OsString>) -> Result<OsString> {
    places.pop().ok_or_else(|| CliError::Usage("say what to copy, and where to".to_owned()))
}

impl How {
    fn keep(&self) -> Keep {
        let umask = rustix::process::umask(rustix::fs::Mode::empty());
        rustix::process::umask(umask);
        Keep {
            recursive: self.recursive || self.archive,
            all: self.archive,
            owner: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
            umask: umask.as_raw_mode(),
        }
    }
}

fn copy_all(sources: &[OsString], to: &Place, how: &How) -> Result<ExitCode> {
    let since = Instant::now();
    let tally = match to {
        Place::Host(path) => copy_to(sources, None, &Host, path.as_os_str().as_bytes(), how)?,
        Place::Volume(inside) => {
            with_volume!(&inside.image, Access::Write, |volume| copy_into(sources, volume, inside, how))?
        }
    };
    if how.verbose {
        let (secs, bytes) = (since.elapsed().as_secs_f64(), output::size(tally.bytes));
        eprintln!("{} files, {bytes} in {secs:.2} s", tally.files);
    }
    match tally.failed {
        0 => Ok(ExitCode::SUCCESS),
        failed => Err(CliError::Incomplete { failed, all: tally.files + failed }),
    }
}

/// Copies all sources into an open volume.
fn copy_into<F: Format>(sources: &[OsString], volume: &Volume<F>, inside: &Inside, how: &How) -> Result<Tally> {
    let tree = VolumeTree::new(&volume.vfs, inside.image.display().to_string());
    let tally = copy_to(sources, Some(&volume.image), &tree, &inside.path, how)?;
    if how.verbose {
        let fail = |error| CliError::Volume { what: "syncing", at: inside.describe(), error };
        volume.vfs.sync().map_err(fail)?;
        let disk = serde_json::to_value(volume.trace.counters()).unwrap_or_default();
        eprint!("{}", stat::requests_table(&disk));
    }
    Ok(tally)
}

/// Copies all sources to `path` in `to`, which is the volume on the image `open` if it is one.
fn copy_to<D: Tree>(sources: &[OsString], open: Option<&Path>, to: &D, path: &[u8], how: &How) -> Result<Tally> {
    let mut total = Tally::default();
    for source in sources {
        let tally = match Place::parse(source) {
            Place::Host(from) => copy_from(&Host, from.as_os_str().as_bytes(), to, path, how, sources.len())?,
            // Within one volume: it is open already.
            Place::Volume(from) if open.is_some_and(|image| is_same(image, &from.image)) => {
                copy_from(to, &from.path, to, path, how, sources.len())?
            }
            Place::Volume(from) => with_volume!(&from.image, Access::Read, |volume| {
                let tree = VolumeTree::new(&volume.vfs, from.image.display().to_string());
                copy_from(&tree, &from.path, to, path, how, sources.len())
            })?,
        };
        total.files += tally.files;
        total.bytes += tally.bytes;
        total.failed += tally.failed;
    }
    Ok(total)
}

fn is_same(one: &Path, other: &Path) -> bool {
    let canonical = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    canonical(one) == canonical(other)
}

fn copy_from<S: Tree, D: Tree>(
    from: &S,
    source: &[u8],
    to: &D,
    path: &[u8],
    how: &How,
    sources: usize,
) -> Result<Tally> {
    let shown = || output::name(source);
    let node = from.resolve(source)?.ok_or_else(|| CliError::Usage(format!("{} does not exist", shown())))?;
    let progress = output::spinner("copied");
    let mut copy = Copy::new(from, to, how.keep(), progress.clone());
    let into = match to.resolve(path)? {
        Some(existing) if to.meta(&existing)?.kind == FileKind::Directory => Some(existing),
        _ => None,
    };
    match (into, last_name(source)) {
        (Some(dir), Some(name)) => copy.copy(&node, &dir, name, 0)?,
        // The whole tree, without a name of its own.
        (Some(dir), None) => copy.copy_contents(&node, &dir, 0)?,
        (None, _) if sources > 1 => {
            return Err(CliError::Usage(format!(
                "{} is no directory: several files cannot go there",
                output::name(path)
            )));
        }
        (None, _) => {
            let (parent, name) = parent_and_name(path);
            let missing = || CliError::Usage(format!("the directory of {} does not exist", output::name(path)));
            let name = name.ok_or_else(missing)?;
            let dir = to.resolve(parent)?.ok_or_else(missing)?;
            copy.copy(&node, &dir, name, 0)?;
        }
    }
    progress.finish_and_clear();
    Ok(copy.tally())
}

/// The last component of a path; `None` for `/`, `.`, `..` and the like.
fn last_name(path: &[u8]) -> Option<&[u8]> {
    let (_, name) = parent_and_name(path);
    name.filter(|name| !matches!(*name, b"." | b".."))
}

/// A path's directory (`.` or `/` if it has none) and last component.
fn parent_and_name(path: &[u8]) -> (&[u8], Option<&[u8]>) {
    let Some(last) = path.iter().rposition(|&byte| byte != b'/') else { return (path, None) };
    let path = &path[..=last];
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(0) => (b"/", Some(&path[1..])),
        Some(slash) => (&path[..slash], Some(&path[slash + 1..])),
        None => (OsStr::new(".").as_bytes(), Some(path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_a_directory_and_a_name() {
        assert_eq!(parent_and_name(b"a/b/"), (&b"a"[..], Some(&b"b"[..])));
        assert_eq!(parent_and_name(b"/a"), (&b"/"[..], Some(&b"a"[..])));
        assert_eq!(parent_and_name(b"a"), (&b"."[..], Some(&b"a"[..])));
        assert_eq!(parent_and_name(b"/"), (&b"/"[..], None));
        assert_eq!(last_name(b"dir/.."), None);
    }
}
