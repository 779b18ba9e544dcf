//! `moafs cp`, `get` and `put`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use moafs_disk::probe::trace::Trace;
use moafs_vfs::Format;
use moafs_vfs::types::FileKind;

use super::copy::{Copy, Keep, Surroundings, Tally};
use super::destination::Destination;
use super::host::{self, Host};
use super::stream::{self, Input, Output};
use super::tree::{FileId, LastLink, Tree};
use super::volume_tree::VolumeTree;
use crate::error::{CliError, Result};
use crate::partition;
use crate::place::{Inside, Place, is_same_disk, is_same_volume};
use crate::stop::Stop;
use crate::volume::{self, Access, AnyVolume, Volume, on_volume, with_volume};
use crate::{mounted, output, owner, stat};

/// Copy files between host and volume, or between volumes
///
/// IMAGE:PATH names a file of a volume; everything else is a file of the host. As with cp(1), a source goes *into* a
/// destination that is a directory. Holes stay holes. A symbolic link that is given is followed, but with -r or -a it
/// stays a link, as do all in directories: -L, -H and -P say otherwise. The source - is standard input, and the
/// destination - standard output; ./- is a file of that name.
#[derive(Debug, Args)]
#[command(
    override_usage = "moafs cp [OPTIONS] SOURCE... DESTINATION",
    after_help = "\
Examples:
  moafs cp -r src disk.img:/                    the directory src into the volume's root
  moafs cp -a disk.img:/etc ./etc-of-image      out of it, with owners, times, links, attributes
  moafs cp -rLv site disk.img:/srv              what symbolic links lead to, in their place; each name is told
  moafs cp a.img:/kernel b.img:/boot/kernel     from volume to volume
  zcat notes.gz | moafs cp - disk.img:/notes    standard input becomes a file
  moafs cp disk.img:/notes - | less             a file goes to standard output

Exit code: 0 everything copied, 1 something was not (and said so), 130 interrupted."
)]
pub(crate) struct CpArgs {
    /// Sources, and last the destination
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
    /// File or directory to copy: IMAGE:PATH
    source: OsString,
    /// Directory or file to copy to
    #[arg(default_value = ".")]
    destination: OsString,
    #[command(flatten)]
    how: How,
}

/// Copy files into a volume: `put FILE... IMAGE[:DIR]` is `cp -r FILE... IMAGE:DIR`
#[derive(Debug, Args)]
#[command(
    override_usage = "moafs put [OPTIONS] FILE... IMAGE[:DIR]",
    after_help = "\
Examples:
  moafs put kernel initrd disk.img:/boot
  moafs put -a /etc disk.img"
)]
pub(crate) struct PutArgs {
    /// Sources, and last IMAGE or IMAGE:DIR
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
    #[command(flatten)]
    links: Links,
    /// Name what is copied
    #[arg(short, long)]
    verbose: bool,
    /// Report the number of copied files, and the requests to the disk
    #[arg(long)]
    stats: bool,
}

/// The treatment of symbolic links in sources; the last of these options holds.
#[derive(Debug, Args)]
struct Links {
    /// Follow symbolic links, in directories as well
    #[arg(short = 'L', long, overrides_with_all = ["no_dereference", "command_line"])]
    dereference: bool,
    /// Follow symbolic links that are given, but none in directories
    #[arg(short = 'H', overrides_with_all = ["no_dereference", "dereference"])]
    command_line: bool,
    /// Follow no symbolic link
    #[arg(short = 'P', long, overrides_with_all = ["dereference", "command_line"])]
    no_dereference: bool,
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

/// Takes the last place, which is the destination of the others.
fn destination(places: &mut Vec<OsString>) -> Result<OsString> {
    places.pop().ok_or_else(CliError::few_places)
}

impl How {
    fn is_recursive(&self) -> bool {
        self.recursive || self.archive
    }

    /// Returns how a symbolic link that is given as a source is treated.
    fn last_link(&self) -> LastLink {
        let Links { dereference, command_line, no_dereference } = self.links;
        let is_followed = dereference || command_line || !no_dereference && !self.is_recursive();
        if is_followed { LastLink::Followed } else { LastLink::Kept }
    }

    fn keep(&self, to: &Place) -> Keep {
        Keep {
            recursive: self.is_recursive(),
            all: self.archive,
            follows: self.links.dereference,
            owner: matches!(to, Place::Volume(_)).then(owner::of_caller),
            umask: owner::umask(),
        }
    }
}

fn copy_all(sources: &[OsString], to: &Place, how: &How) -> Result<ExitCode> {
    let since = Instant::now();
    let stop = Stop::on_signals()?;
    let sources: Vec<Place> = sources.iter().map(|source| Place::parse(source)).collect();
    let images: Vec<FileId> = sources.iter().chain([to]).filter_map(image_of).collect();
    let (keep, progress) = (how.keep(to), output::spinner("copied"));
    let around = Surroundings { keep, images: &images, stop: &stop, progress, names: how.verbose };
    let out = if let Place::Host(path) = to { Output::of(path, &stop)? } else { None };
    let copied = match (to, out) {
        (Place::Host(path), Some(mut out)) => send(&sources, path, &mut out, how, &stop),
        (Place::Host(path), None) => copy_to(&sources, None, &Host::whole(), path.as_os_str().as_bytes(), how, &around),
        (Place::Volume(inside), _) => {
            with_volume!(&inside.image, Access::Write, |volume| copy_into(&sources, volume, inside, how, &around))
        }
    };
    around.progress.finish_and_clear();
    let tally = copied?;
    if how.stats {
        let (secs, bytes) = (since.elapsed().as_secs_f64(), output::size(tally.bytes));
        eprintln!("{} files, {bytes} in {secs:.2} s", tally.files);
    }
    match tally.failed {
        0 => Ok(ExitCode::SUCCESS),
        failed => Err(CliError::Incomplete { failed, all: tally.files + failed }),
    }
}

/// Writes the contents of the only source to standard output, or whatever stream the destination is.
fn send(sources: &[Place], to: &Path, out: &mut Output, how: &How, stop: &Stop) -> Result<Tally> {
    let [source] = sources else {
        return Err(CliError::Usage(format!("{} is no directory: several files cannot go there", output::path(to))));
    };
    let bytes = match source {
        Place::Host(path) => match Input::of(path, false)? {
            Some(input) => stream::pass_on(input, out, stop)?,
            None => send_file(&Host::whole(), path.as_os_str().as_bytes(), out, how, stop)?,
        },
        Place::Volume(from) => match mounted::mount_point(&from.image) {
            Some(dir) => send_file(&Host::mounted(&from.image, &dir)?, &from.path, out, how, stop)?,
            None => with_volume!(&from.image, Access::Read, |volume| {
                send_file(&VolumeTree::new(&volume.vfs, &from.image), &from.path, out, how, stop)
            })?,
        },
    };
    Ok(Tally { files: 1, bytes, failed: 0 })
}

fn send_file<S: Tree>(from: &S, path: &[u8], out: &mut Output, how: &How, stop: &Stop) -> Result<u64> {
    let missing = || CliError::missing(from.shown(path));
    let node = from.resolve(path, how.last_link())?.ok_or_else(missing)?;
    stream::send(from, &node, out, stop)
}

/// Returns the identity of the host's file that holds the volume of a place.
fn image_of(place: &Place) -> Option<FileId> {
    match place {
        Place::Host(_) => None,
        Place::Volume(inside) => host::id_of_path(&partition::split(&inside.image).0),
    }
}

/// Copies all sources into an open volume.
fn copy_into<F: Format>(
    sources: &[Place],
    volume: &Volume<F>,
    inside: &Inside,
    how: &How,
    around: &Surroundings<'_>,
) -> Result<Tally> {
    let tree = VolumeTree::new(&volume.vfs, &inside.image);
    let tally =
        copy_to(sources, Some(Open { image: &volume.image, device: &volume.trace }), &tree, &inside.path, how, around)?;
    if how.stats {
        let fail = |error| CliError::Volume { what: "syncing", at: inside.describe(), error };
        volume.vfs.sync().map_err(fail)?;
        let disk = serde_json::to_value(volume.trace.counters()).unwrap_or_default();
        eprint!("{}", stat::requests_table(&disk));
    }
    Ok(tally)
}

/// The volume that is copied into.
struct Open<'a> {
    image: &'a Path,
    /// The whole device below it.
    device: &'a Arc<Trace>,
}

/// Copies all sources to `path` in `to`, which is the volume `open` if it is one.
fn copy_to<D: Tree>(
    sources: &[Place],
    open: Option<Open<'_>>,
    to: &D,
    path: &[u8],
    how: &How,
    around: &Surroundings<'_>,
) -> Result<Tally> {
    let destination = Destination::new(path, sources.len(), "copied");
    let mut target = Target { to, path, destination, last: how.last_link(), around };
    let mut total = Tally::default();
    for source in sources {
        let tally = match source {
            Place::Host(from) => match Input::of(from, how.is_recursive())? {
                Some(input) => target.receive(input, from)?,
                None => target.copy_from(&Host::whole(), from.as_os_str().as_bytes())?,
            },
            // The source is in the same volume, which is open already.
            Place::Volume(from) if open.as_ref().is_some_and(|open| is_same_volume(&from.image, open.image)) => {
                target.copy_from(to, &from.path)?
            }
            Place::Volume(from) => copy_from_volume(&mut target, from, open.as_ref())?,
        };
        total.add(tally);
    }
    Ok(total)
}

/// Copies from another volume than the target's: through its mount, if moafs has mounted it.
fn copy_from_volume<D: Tree>(target: &mut Target<'_, D>, from: &Inside, open: Option<&Open<'_>>) -> Result<Tally> {
    if let Some(mount_point) = mounted::mount_point(&from.image) {
        return target.copy_from(&Host::mounted(&from.image, &mount_point)?, &from.path);
    }
    on_volume!(open_source(&from.image, open)?, |source| source
        .with(|volume| { target.copy_from(&VolumeTree::new(&volume.vfs, &from.image), &from.path) }))
}

/// Opens the volume of a source. One that is on the same disk as the target is opened through the target's device,
/// whose lock keeps others out.
fn open_source(image: &Path, target: Option<&Open<'_>>) -> Result<AnyVolume> {
    match target {
        Some(target) if is_same_disk(image, target.image) => volume::open_beside(target.device, image),
        _ => volume::open_for(image, Access::Read),
    }
}

/// The target of a copy.
struct Target<'a, D: Tree> {
    to: &'a D,
    path: &'a [u8],
    destination: Destination<'a>,
    /// The treatment of symbolic links that are given as sources.
    last: LastLink,
    around: &'a Surroundings<'a>,
}

impl<D: Tree> Target<'_, D> {
    /// Copies one source. A source that cannot be copied is reported and counted, and others may
    /// follow.
    fn copy_from<S: Tree>(&mut self, from: &S, source: &[u8]) -> Result<Tally> {
        let begun = self.begin(from, source);
        let (copy, node, name) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                output::complain(&error);
                return Ok(Tally { failed: 1, ..Tally::default() });
            }
        };
        let (tally, result) = copy.run(node, name.as_deref());
        result.map(|()| tally)
    }

    /// Makes a file of what a stream brings. Failures are reported and counted as those of [`Self::copy_from`].
    fn receive(&mut self, input: Input, source: &Path) -> Result<Tally> {
        match self.received(input, source) {
            Ok(bytes) => Ok(Tally { files: 1, bytes, failed: 0 }),
            Err(error @ (CliError::Interrupted | CliError::Output(_))) => Err(error),
            Err(error) => {
                output::complain(&error);
                Ok(Tally { failed: 1, ..Tally::default() })
            }
        }
    }

    fn received(&mut self, input: Input, source: &Path) -> Result<u64> {
        let to = self.to.shown(self.path);
        if source.as_os_str() == "-" && self.destination.is_existing_directory(self.to)? {
            return Err(CliError::Usage(format!("{to} is a directory: name the file that standard input becomes")));
        }
        if self.destination.is_new_directory(self.to)? {
            return Err(CliError::Usage(format!("{to} is no directory: there is nothing of that name")));
        }
        let (dir, name) = self.destination.of(self.to, source.as_os_str().as_bytes())?;
        let name = name.ok_or_else(|| CliError::Usage(format!("{to} is a directory: name the file")))?;
        stream::receive(input, self.to, dir, &name, self.around)
    }

    #[allow(clippy::type_complexity, reason = "taken apart at once")]
    fn begin<'c, S: Tree>(
        &'c mut self,
        from: &'c S,
        source: &[u8],
    ) -> Result<(Copy<'c, S, D>, S::Node, Option<Vec<u8>>)> {
        let missing = || CliError::missing(from.shown(source));
        let last = if source.ends_with(b"/") { LastLink::Followed } else { self.last };
        let node = from.resolve(source, last)?.ok_or_else(missing)?;
        if from.meta(&node)?.kind != FileKind::Directory && self.destination.is_new_directory(self.to)? {
            let to = self.to.shown(self.path);
            return Err(CliError::Usage(format!("{to} is no directory: there is nothing of that name")));
        }
        let (dir, name) = self.destination.of(self.to, source)?;
        Ok((Copy::new(from, self.to, dir, self.around)?, node, name))
    }
}
