//! Copying trees between any two [`Tree`]s: holes stay holes, names of one file stay names of one file.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use indicatif::ProgressBar;
use moafs_vfs::types::FileKind;

use super::stage::{Attributes, Stage, Waiting, temporary_name};
use super::trail::Trail;
use super::tree::{Extent, FileId, Meta, New, Tree, Xattr};
use super::walk::{Descent, Step, Walk, is_within};
use crate::error::{CliError, Result};
use crate::output;
use crate::stop::Stop;

/// Bytes copied at once.
const CHUNK_BYTES: usize = 1 << 20;

/// The properties of a file that are kept besides its contents.
#[derive(Debug, Clone)]
pub(crate) struct Keep {
    /// `-r`: directories are copied with all their entries.
    pub(crate) recursive: bool,
    /// `-a`: modes, owners, times, hard links, extended attributes, special files.
    pub(crate) all: bool,
    /// `-L`: a symbolic link is copied as the file that it leads to.
    pub(crate) follows: bool,
    /// Owner of new files when owners are not kept; `None` where new files are the caller's anyway.
    pub(crate) owner: Option<(u32, u32)>,
    /// Bits of the mode that are not set when modes are not kept.
    pub(crate) umask: u32,
}

/// The state of the command that a copy depends on.
pub(crate) struct Surroundings<'a> {
    pub(crate) keep: Keep,
    /// Host files that hold the volumes of this command: neither copied nor replaced.
    pub(crate) images: &'a [FileId],
    pub(crate) stop: &'a Stop,
    pub(crate) progress: ProgressBar,
    /// `-v`: what is copied is named.
    pub(crate) names: bool,
}

impl Surroundings<'_> {
    /// Checks that a file of a kind can take the place of `old`. Returns the attributes of that.
    pub(crate) fn replaced<D: Tree>(&self, to: &D, old: &D::Node, kind: FileKind) -> Result<Meta> {
        let (meta, reached) = (to.meta(old)?, to.leads_to(old)?);
        let is = |id: FileId| meta.id == id || reached.is_some_and(|(reached, _)| reached == id);
        let refused = |why: &str| Err(CliError::Usage(format!("{} is {why}", to.describe(old))));
        if self.images.iter().any(|image| is(*image)) {
            return refused("the image of a volume that is in use here: it is not replaced");
        }
        match (meta.kind, reached) {
            (FileKind::Directory, _) => refused("a directory; a file cannot take its place"),
            (_, Some((_, FileKind::Directory))) => {
                refused("a symbolic link to a directory; a file cannot take its place")
            }
            (FileKind::Regular | FileKind::Symlink, _) => Ok(meta),
            (old, _) if old == kind => Ok(meta),
            _ => refused("a special file; no other takes its place"),
        }
    }
}

impl Keep {
    /// Returns the attributes of a new file of a kind whose attributes are not kept. One that takes the place of
    /// another file has that file's owner and permissions.
    pub(crate) fn attributes(&self, kind: FileKind, perm: u32, old: Option<&Meta>) -> Attributes {
        let (owner, perm) = match old.filter(|old| old.kind == FileKind::Regular && kind == FileKind::Regular) {
            Some(old) => (Some((old.uid, old.gid)), old.perm & 0o777),
            None => (self.owner, perm & 0o777 & !self.umask),
        };
        // Symbolic links have no mode of their own.
        Attributes { owner, perm: (kind != FileKind::Symlink).then_some(perm), ..Attributes::default() }
    }
}

/// The numbers of copied files, and of failures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) failed: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Tally) {
        self.files += other.files;
        self.bytes += other.bytes;
        self.failed += other.failed;
    }
}

/// An error of copying a file, and its effect on the rest of the copy.
enum Trouble {
    /// This file cannot be copied; others may be.
    File(CliError),
    /// No other file can be copied either.
    Fatal(CliError),
}

impl From<CliError> for Trouble {
    fn from(error: CliError) -> Trouble {
        match error {
            CliError::Interrupted | CliError::Output(_) => Trouble::Fatal(error),
            _ => Trouble::File(error),
        }
    }
}

/// Classifies the result of writing: a target that is full or has failed takes no other file.
fn written<T>(result: Result<T>) -> Result<T, Trouble> {
    result.map_err(|error| if is_fatal(&error) { Trouble::Fatal(error) } else { Trouble::from(error) })
}

/// A file with several names that was copied.
struct Linked {
    trail: Trail,
    id: FileId,
}

/// A copy under way.
pub(crate) struct Copy<'t, S: Tree, D: Tree> {
    from: &'t S,
    to: &'t D,
    around: &'t Surroundings<'t>,
    walk: Walk<'t, S>,
    /// The directories that are being filled, as deep as `walk`.
    into: Descent<'t, D>,
    /// Attributes of each directory that is being filled, to be set when it is done.
    finishing: Vec<Finishing>,
    stage: Stage<'t, D>,
    /// Files with several names that were copied, by the source's id.
    linked: HashMap<FileId, Linked>,
    /// Directories that this copy made: they are no part of what is copied.
    made: HashSet<FileId>,
    chunk: Vec<u8>,
    /// Bytes copied from files of one name: no more than the source can hold.
    single_bytes: u64,
    tally: Tally,
}

/// The work that remains for a directory that is being filled.
struct Finishing {
    meta: Option<Meta>,
    is_new: bool,
}

impl<'t, S: Tree, D: Tree> Copy<'t, S, D> {
    /// Prepares a copy into the directory `into`.
    pub(crate) fn new(from: &'t S, to: &'t D, into: D::Node, around: &'t Surroundings<'t>) -> Result<Self> {
        let (id, into) = (to.meta(&into)?.id, Rc::new(into));
        Ok(Copy {
            from,
            to,
            around,
            walk: if around.keep.follows { Walk::through_links(from) } else { Walk::new(from) },
            stage: Stage::new(to, Rc::clone(&into)),
            into: Descent::new(to, into, id),
            finishing: Vec::new(),
            linked: HashMap::new(),
            made: HashSet::new(),
            chunk: vec![0; CHUNK_BYTES],
            single_bytes: 0,
            tally: Tally::default(),
        })
    }

    /// Copies `node` to `name`, or the entries in it if there is no name. Files that cannot be
    /// copied are reported and counted.
    ///
    /// # Errors
    /// Fails only if going on is pointless: the target is full or has failed, or the command was
    /// interrupted. Files that were complete by then have their names.
    pub(crate) fn run(mut self, node: S::Node, name: Option<&[u8]>) -> (Tally, Result<()>) {
        let copied = self.tree(node, name);
        let published = self.publish();
        let result = match copied {
            Err(Trouble::Fatal(error)) => {
                if let Err(Trouble::Fatal(error) | Trouble::File(error)) = published {
                    self.tell(&error);
                }
                Err(error)
            }
            copied => match copied.and(published) {
                Err(Trouble::Fatal(error)) => Err(error),
                Err(Trouble::File(error)) => {
                    self.tell(&error);
                    Ok(())
                }
                Ok(()) => Ok(()),
            },
        };
        (self.tally, result)
    }

    fn tree(&mut self, node: S::Node, name: Option<&[u8]>) -> Result<(), Trouble> {
        match name {
            Some(name) => self.entry(node, name)?,
            None => self.contents(node)?,
        }
        loop {
            self.around.stop.check()?;
            match self.walk.step()? {
                Step::Entry { name, node } => {
                    let followed = self.followed(node, &name).map_err(Trouble::from);
                    let copied = followed.and_then(|node| self.entry(node, &name));
                    self.pass_by(copied)?;
                }
                Step::Failed(error) => self.tell(&error),
                Step::Leave { dir, .. } => {
                    let left = self.leave(&dir);
                    self.pass_by(left)?;
                }
                Step::End => return Ok(()),
            }
            if self.stage.is_full() {
                self.publish()?;
            }
        }
    }

    /// Reports a file that could not be copied, so that the copy goes on; passes on fatal errors.
    fn pass_by(&mut self, result: Result<(), Trouble>) -> Result<(), Trouble> {
        match result {
            Err(Trouble::File(error)) => {
                self.tell(&error);
                Ok(())
            }
            other => other,
        }
    }

    fn tell(&mut self, error: &CliError) {
        self.tally.failed += 1;
        self.around.progress.suspend(|| output::complain(error));
    }

    /// Returns the file that is copied for an entry of a directory: where links are followed, the one it leads to.
    fn followed(&self, node: S::Node, name: &[u8]) -> Result<S::Node> {
        match self.walk.here() {
            Some(dir) if self.around.keep.follows && self.from.meta(&node)?.kind == FileKind::Symlink => {
                let missing = || CliError::Usage(format!("{} leads nowhere", self.from.describe(&node)));
                self.from.child_followed(dir, name)?.ok_or_else(missing)
            }
            _ => Ok(node),
        }
    }

    /// Names what was copied, if that was asked for.
    fn name(&self, node: &S::Node, name: &[u8]) -> Result<()> {
        if !self.around.names {
            return Ok(());
        }
        let to = self.to.trail(self.into.here()).join(name);
        let line = format!("'{}' -> '{to}'\n", self.from.describe(node));
        self.around.progress.suspend(|| output::print(line.as_bytes()))
    }

    /// Copies a file, or begins to copy a directory.
    fn entry(&mut self, node: S::Node, name: &[u8]) -> Result<(), Trouble> {
        let meta = self.from.meta(&node)?;
        self.around.progress.inc(1);
        if self.around.images.contains(&meta.id) {
            let what = self.from.describe(&node);
            return Err(
                CliError::Usage(format!("{what} is the image of a volume that is in use here: left out")).into()
            );
        }
        match meta.kind {
            FileKind::Directory => return self.directory(node, meta, name),
            FileKind::Regular | FileKind::Symlink => {}
            _ if self.around.keep.all => {}
            _ => {
                let what = self.from.describe(&node);
                return Err(CliError::Usage(format!("{what} is a special file; -a copies special files")).into());
            }
        }
        let old = self.replaced(&node, &meta, name)?;
        if let Some(Linked { trail, id }) = self.linked.get(&meta.id) {
            let (dir, trail, id) = (Rc::clone(self.into.here()), trail.clone(), *id);
            self.stage.add(Waiting::Link { dir, name: name.to_vec(), trail, id }, 0);
        } else {
            self.file(&node, &meta, old.as_ref(), name)?;
        }
        Ok(self.name(&node, name)?)
    }

    /// Checks that a file can take the place of the existing file `name`. Returns the attributes of
    /// that file, if there is one.
    fn replaced(&self, node: &S::Node, meta: &Meta, name: &[u8]) -> Result<Option<Meta>, Trouble> {
        let Some(old) = written(self.to.child(self.into.here(), name))? else { return Ok(None) };
        let old_meta = self.to.meta(&old)?;
        let reached = self.to.leads_to(&old)?;
        let is = |id: FileId| old_meta.id == id || reached.is_some_and(|(reached, _)| reached == id);
        let source = self.from.leads_to(node)?;
        if is(meta.id) || source.is_some_and(|(source, _)| source == old_meta.id) {
            return Err(self.same_file(node, &old).into());
        }
        Ok(Some(self.around.replaced(self.to, &old, meta.kind)?))
    }

    fn same_file(&self, node: &S::Node, old: &D::Node) -> CliError {
        CliError::SameFile { from: self.from.describe(node), to: self.to.describe(old), done: "copied" }
    }

    fn file(&mut self, node: &S::Node, meta: &Meta, old: Option<&Meta>, name: &[u8]) -> Result<(), Trouble> {
        let target = if meta.kind == FileKind::Symlink { Some(self.from.target(node)?) } else { None };
        let attributes = self.attributes(node, meta, old)?;
        let temporary = temporary_name();
        // Other users do not read it before it has its owner.
        let perm = if target.is_some() { 0o777 } else { 0o600 };
        let new = New { kind: meta.kind, perm, rdev: meta.rdev, target: target.as_deref(), shown_as: Some(name) };
        let dir = Rc::clone(self.into.here());
        let copy = written(self.to.make(&dir, &temporary, new))?;
        let before = self.tally.bytes;
        let filled = self.fill(node, meta, &copy, &attributes);
        let bytes = self.tally.bytes - before;
        let id = filled.and_then(|()| Ok(self.to.meta(&copy)?.id));
        match id {
            Ok(id) => {
                if self.around.keep.all && (meta.nlink > 1 || self.around.keep.follows) {
                    self.linked.insert(meta.id, Linked { trail: self.to.trail(&copy).clone(), id });
                }
                self.stage.add(Waiting::File { dir, temporary, name: name.to_vec(), node: copy }, bytes);
                Ok(())
            }
            Err(trouble) => {
                // The first error matters more than one of removing the useless copy.
                let _ = self.to.unlink(&dir, &temporary);
                Err(trouble)
            }
        }
    }

    fn fill(&mut self, node: &S::Node, meta: &Meta, copy: &D::Node, attributes: &Attributes) -> Result<(), Trouble> {
        if meta.kind == FileKind::Regular {
            self.data(node, meta, copy)?;
        }
        written(attributes.set(self.to, copy))
    }

    fn data(&mut self, node: &S::Node, meta: &Meta, copy: &D::Node) -> Result<(), Trouble> {
        let capacity = self.from.capacity().unwrap_or(u64::MAX);
        let too_many = || CliError::TooManyBlocks { at: self.from.describe(node) };
        // A file that several links lead to is copied, and counted, several times.
        let is_single = meta.nlink == 1 && !self.around.keep.follows;
        let (mut at, mut copied) = (0, 0);
        let mut is_shorter = false;
        while let Some(extent) = self.next_data(node, meta, at)? {
            at = extent.from;
            while at < extent.to {
                self.around.stop.check()?;
                let want = usize::try_from(extent.to - at).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
                let len = self.from.read(node, at, &mut self.chunk[..want])?;
                if len == 0 {
                    break;
                }
                copied += len as u64;
                let single = self.single_bytes + if is_single { copied } else { 0 };
                if copied.max(single) > capacity {
                    return Err(too_many().into());
                }
                written(self.to.write(copy, at, &self.chunk[..len]))?;
                at += len as u64;
                self.tally.bytes += len as u64;
            }
            if at < extent.to {
                // The file became shorter after its size was read, or is one of those that do not know it.
                is_shorter = true;
                break;
            }
        }
        if is_single {
            self.single_bytes += copied;
        }
        // A hole at the end, or an empty file.
        if at < meta.size && !is_shorter { written(self.to.resize(copy, meta.size)) } else { Ok(()) }
    }

    /// Returns the next range of data. A file without a size, as in /proc, may have data all the same.
    fn next_data(&self, node: &S::Node, meta: &Meta, at: u64) -> Result<Option<Extent>> {
        match self.from.data(node, at)? {
            None if meta.size == 0 && at == 0 => Ok(Some(Extent { from: 0, to: u64::MAX })),
            found => Ok(found),
        }
    }

    /// Begins to copy a directory, new or into one that exists.
    fn directory(&mut self, node: S::Node, meta: Meta, name: &[u8]) -> Result<(), Trouble> {
        let what = || self.from.describe(&node);
        if !self.around.keep.recursive {
            return Err(CliError::Usage(format!("{} is a directory; -r copies it with what is in it", what())).into());
        }
        if self.made.contains(&meta.id) {
            return Err(CliError::Usage(format!("{} is the copy itself and is left out", what())).into());
        }
        let is_first = self.walk.depth() == 0;
        if is_first && is_within(self.to, self.into.here(), meta.id)? {
            let into = self.to.describe(self.into.here());
            return Err(CliError::Usage(format!("{} cannot be copied into itself, to {into}", what())).into());
        }
        let old = written(self.to.child(self.into.here(), name))?;
        if let Some(old) = &old {
            let old_meta = self.to.meta(old)?;
            if old_meta.id == meta.id {
                return Err(self.same_file(&node, old).into());
            }
            if old_meta.kind != FileKind::Directory {
                let what = self.to.describe(old);
                let refused = format!("{what} is no directory; a directory cannot take its place");
                return Err(CliError::Usage(refused).into());
            }
        }
        // All that can fail about the source comes before the target is changed.
        self.walk.meet(&node, meta.id)?;
        let names = self.from.names(&node)?;
        let is_new = old.is_none();
        let copy = match old {
            Some(old) => old,
            None => written(self.to.make(self.into.here(), name, New::directory(0o700)))?,
        };
        let id = self.to.meta(&copy)?.id;
        if is_new {
            self.made.insert(id);
            self.name(&node, name)?;
        }
        self.into.down(Rc::new(copy), id);
        self.finishing.push(Finishing { meta: Some(meta.clone()), is_new });
        self.walk.enter(name, node, meta.id, names);
        Ok(())
    }

    /// Begins to copy the entries of a directory into the one where the copy began.
    fn contents(&mut self, node: S::Node) -> Result<(), Trouble> {
        let meta = self.from.meta(&node)?;
        let what = || self.from.describe(&node);
        if meta.kind != FileKind::Directory || !self.around.keep.recursive {
            return Err(CliError::Usage(format!("{} is a directory; -r copies it with what is in it", what())).into());
        }
        if is_within(self.to, self.into.here(), meta.id)? {
            let into = self.to.describe(self.into.here());
            return Err(CliError::Usage(format!("{} cannot be copied into itself, to {into}", what())).into());
        }
        self.walk.meet(&node, meta.id)?;
        let names = self.from.names(&node)?;
        self.finishing.push(Finishing { meta: None, is_new: false });
        self.walk.enter(b"", node, meta.id, names);
        Ok(())
    }

    /// Completes a directory, all of whose entries were copied.
    fn leave(&mut self, dir: &S::Node) -> Result<(), Trouble> {
        let Some(Finishing { meta, is_new }) = self.finishing.pop() else { return Ok(()) };
        // The contents of a source without a name went into the directory where the copy began, which stays.
        let Some(meta) = meta else { return Ok(()) };
        let left = self.into.up().map_err(Trouble::Fatal)?;
        self.tally.files += 1;
        let Some(node) = left.filter(|_| is_new || self.around.keep.all) else { return Ok(()) };
        let attributes = self.attributes(dir, &meta, None)?;
        self.stage.add(Waiting::Directory { node, attributes }, 0);
        Ok(())
    }

    /// Returns the attributes that a copy gets.
    fn attributes(&self, node: &S::Node, meta: &Meta, old: Option<&Meta>) -> Result<Attributes> {
        let keep = &self.around.keep;
        if !keep.all {
            return Ok(keep.attributes(meta.kind, meta.perm, old));
        }
        Ok(Attributes {
            owner: Some((meta.uid, meta.gid)),
            perm: (meta.kind != FileKind::Symlink).then_some(meta.perm),
            xattrs: self.from.xattrs(node)?.into_iter().filter(is_portable).collect(),
            times: Some([meta.atime, meta.mtime]),
        })
    }

    /// Gives the complete copies their names.
    fn publish(&mut self) -> Result<(), Trouble> {
        for outcome in written(self.stage.publish())? {
            match written(outcome.result) {
                Ok(()) => self.tally.files += u64::from(outcome.is_file),
                failed => self.pass_by(failed)?,
            }
        }
        Ok(())
    }
}

/// Returns false for the labels of the host's security modules, which belong to the host.
fn is_portable((name, _): &Xattr) -> bool {
    name.as_slice() != b"security.selinux" && !name.starts_with(b"system.nfs4")
}

/// Returns true for errors of a target after which no other file can be copied there either.
fn is_fatal(error: &CliError) -> bool {
    let fatal = |errno| matches!(errno, libc::ENOSPC | libc::EROFS | libc::EIO | libc::EDQUOT);
    match error {
        CliError::Volume { error, .. } => fatal(error.errno()),
        CliError::HostFile { error, .. } => error.raw_os_error().is_some_and(fatal),
        _ => false,
    }
}
