//! [`Front`]: FUSE requests to vfs calls.
//!
//! Opens carry no state: the kernel is told to skip them, handles are 0, and a look-up's hold alone keeps an unlinked
//! file alive. vfs and FUSE count holds the same way, so counts pass through. CREATE is not served: the kernel then
//! makes files with MKNOD and opens them without asking, and the RELEASE that ends a CREATE's handle is never sent: one
//! request less for each new file. The kernel is the only writer, therefore names (also missing ones) and attributes
//! are valid forever: it drops by itself what its own requests change, and is told of what else changes (`attributes`).

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use moafs_fuse::{
    AttrReply, CopyRange, CreateArgs, DeviceNumber, DirBuf, DirPlusBuf, Entry, Errno, FOREVER, FallocateMode, FileAttr,
    FileHandle, FileSystem, IoctlArgs, IoctlReply, Negotiated, NodeId, Notifier, OpenArgs, OpenReply, OpenReplyFlags,
    RenameFlags, ReqCtx, Result, SeekTarget, SetAttr, StatFs, StatxReply, WriteFlags, XattrFlags,
};
use moafs_vfs::api::{self, Allocate, NewFile, Seek, Stat};
use moafs_vfs::types::{Cookie, FileKind, Ino, Name, SetMode};
use moafs_vfs::{Credentials, Error, Format, Vfs};
use smallvec::SmallVec;

use crate::attributes::{self, Notices};
use crate::control::{CONTROL_NAME, Control, ControlFile, Cover, Text};
use crate::control_path::SWAPFILE_NAME;
use crate::convert;
use crate::defrag::{DEFRAG_NAME, Defrag};
use crate::forgotten::Forgotten;
use crate::identity::Identity;
use crate::ioctl::{self, Command, Trim};
use crate::layout::{LAYOUT_NAME, Layout, LayoutMaker};
use crate::log::Log;
use crate::nodes::Nodes;
use crate::outliving::Outliving;
use crate::process;
use crate::swap::{KernelSwap, SWAP_NAME};

/// Bytes that one step of a long operation allocates or copies.
const STEP_BYTES: u64 = 16 << 20;

/// Set-user-id and set-group-id.
const SET_IDS: u32 = libc::S_ISUID | libc::S_ISGID;

/// The attribute that holds a file's capabilities.
const CAPABILITIES: &[u8] = b"security.capability";

/// Answer to every change of the control directory, and of its name in the root.
const CONTROL_IS_FIXED: Errno = Errno::EPERM;

/// Entries listed at once before their attributes are looked up. Listing and look-up both lock the directory, so they
/// alternate.
const LIST_BATCH: usize = 64;

/// A volume behind the interface that FUSE calls.
pub struct Front<F: Format> {
    vfs: Vfs<F>,
    nodes: Nodes,
    block_size: u32,
    control: Control,
    defrag: Arc<Defrag<F>>,
    layout: Option<Arc<Layout>>,
    swap: Arc<KernelSwap<F>>,
    log: Arc<Log>,
    closed: OnceLock<std::result::Result<(), Error>>,
    /// Set at the handshake.
    notifier: OnceLock<Notifier>,
    forgotten: Forgotten,
    /// Files that the kernel is to be told of.
    notices: Arc<Notices>,
    syncs: Outliving,
    opens: Opens,
    identity: Identity,
    /// True if fsync of the root directory makes everything durable.
    root_syncs_all: AtomicBool,
    /// False if the kernel is to ask for the attributes of what it was listed.
    listed_attributes_stay: AtomicBool,
}

/// The opens that the kernel asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opens {
    /// None: it opens by itself.
    Unseen,
    /// Opens of files: immutable and append-only ones are refused then, and not at the first write. Each open and each
    /// close costs a request.
    Checked,
    /// Those and opens of directories, and each drops what the kernel has cached: reading is seen after every open.
    Fresh,
}

/// An entry remembered between listing and look-up.
struct Listed {
    name: SmallVec<[u8; 32]>,
    ino: Ino,
    kind: Option<FileKind>,
    next: Cookie,
}

impl<F: Format> Front<F> {
    /// Creates a front for `vfs` whose control directory holds `files`, and the files that take commands.
    pub fn new(vfs: Vfs<F>, files: Vec<(&'static str, Text)>, swap: Arc<KernelSwap<F>>, log: Arc<Log>) -> Front<F> {
        let (root, block_size) = (vfs.shape().root, vfs.shape().block_size);
        // The root's times serve for the control directory as well; if they cannot be read, zero does.
        let mounted = vfs.stat(root).map(|stat| convert::timestamp(stat.attr.mtime)).unwrap_or_default();
        let defrag = Arc::new(Defrag::new(vfs.clone()));
        let mut files: Vec<ControlFile> =
            files.into_iter().map(|(name, text)| ControlFile { name, text, obey: None }).collect();
        files.push(defrag_file(&defrag));
        files.push(swap_file(&swap));
        let cover = Cover { name: SWAPFILE_NAME, there: swap.named() };
        let control = Control::new(files, mounted, rustix::process::geteuid().as_raw());
        Front {
            vfs,
            nodes: Nodes::new(root),
            block_size,
            control: control.with_cover(cover),
            defrag,
            layout: None,
            swap,
            log,
            closed: OnceLock::new(),
            notifier: OnceLock::new(),
            forgotten: Forgotten::default(),
            notices: Arc::default(),
            syncs: Outliving::default(),
            opens: Opens::Unseen,
            identity: Identity::Stored,
            root_syncs_all: AtomicBool::new(false),
            listed_attributes_stay: AtomicBool::new(true),
        }
    }

    /// Makes the kernel ask for the attributes of what a listing has told it: it may take them for newer than they are.
    pub fn tell_no_attributes_by_listings(&self) {
        self.listed_attributes_stay.store(false, Ordering::Relaxed);
    }

    /// Makes fsync of the root directory do what syncfs does, which does not arrive here: there has to be a call for
    /// it.
    pub fn sync_all_by_root(&self) {
        self.root_syncs_all.store(true, Ordering::Relaxed);
    }

    /// Makes the kernel ask for these opens.
    pub fn with_opens(self, opens: Opens) -> Front<F> {
        Front { opens, ..self }
    }

    /// Maps owners and callers so.
    pub fn with_identity(self, identity: Identity) -> Front<F> {
        Front { identity, ..self }
    }

    /// Adds `.moafs/layout`, whose answers come from `maker`.
    pub(crate) fn with_layout(self, maker: LayoutMaker) -> Front<F> {
        let layout = Arc::new(Layout::new(maker));
        let control = self.control.with_file(layout_file(&layout));
        Front { control, layout: Some(layout), ..self }
    }

    /// Makes sync wait until the kernel has been told of the files in `notices`.
    pub(crate) fn with_notices(self, notices: Arc<Notices>) -> Front<F> {
        Front { notices, ..self }
    }

    /// Returns the result of closing the volume; `None` before `destroy`.
    pub fn closed(&self) -> Option<&std::result::Result<(), Error>> {
        self.closed.get()
    }

    /// Returns the volume.
    pub fn vfs(&self) -> &Vfs<F> {
        &self.vfs
    }

    /// Returns the error number of a failed call; failures of the device and damage are logged.
    fn errno(&self, error: Error) -> Errno {
        if matches!(error, Error::Disk { .. } | Error::Damaged { .. } | Error::Refused(_)) {
            self.log.failure(&error.to_string());
        }
        Errno::new(error.errno())
    }

    fn told<T>(&self, result: moafs_vfs::Result<T>) -> Result<T> {
        result.map_err(|error| self.errno(error))
    }

    /// Returns the inode a request is about; fails with `EPERM` for nodes of the control directory.
    fn ino(&self, node: NodeId) -> Result<Ino> {
        self.nodes.ino(node).ok_or(CONTROL_IS_FIXED)
    }

    /// Returns directory and name of a request that makes or removes a name; fails with `if_control` for the control
    /// directory.
    fn place<'n>(&self, node: NodeId, name: &'n [u8], if_control: Errno) -> Result<(Ino, &'n Name)> {
        if is_control(node, name) {
            return Err(if_control);
        }
        Ok((self.ino(node)?, checked(name)?))
    }

    /// Returns the attributes that the kernel is told of a file.
    fn shown(&self, stat: &Stat) -> FileAttr {
        self.identity.shown(convert::file_attr(stat, self.block_size))
    }

    fn attr_reply(&self, stat: &Stat) -> AttrReply {
        AttrReply { attr: self.shown(stat), attr_ttl: FOREVER }
    }

    /// Returns the entry of an inode that vfs holds for the kernel.
    fn entry(&self, stat: &Stat) -> Entry {
        Entry {
            node: self.nodes.node(stat.ino),
            generation: u64::from(stat.attr.generation),
            attr: self.shown(stat),
            entry_ttl: FOREVER,
            attr_ttl: FOREVER,
        }
    }

    fn make(&self, ctx: &ReqCtx, name: &[u8], new: &NewFile<'_>) -> Result<Entry> {
        let (dir, name) = self.place(ctx.node, name, Errno::EEXIST)?;
        let new = &NewFile { perm: self.identity.stored_mode(new.perm), ..*new };
        let stat = self.told(self.vfs.create(&self.identity.creator(ctx, new.perm), dir, name, new))?;
        Ok(self.entry(&stat))
    }

    /// Looks up a name and holds its inode; `None` if the name does not exist.
    fn find(&self, ctx: &ReqCtx, dir: Ino, name: &Name) -> Result<Option<Stat>> {
        match self.vfs.lookup(&self.identity.caller(ctx), dir, name) {
            Ok(stat) => Ok(Some(stat)),
            Err(Error::Posix(libc::ENOENT)) => Ok(None),
            Err(error) => Err(self.errno(error)),
        }
    }

    /// Returns up to [`LIST_BATCH`] entries from a cookie on: those before the first that cannot be read.
    fn listed(&self, ctx: &ReqCtx, dir: Ino, from: Cookie) -> Result<Vec<Listed>> {
        let mut batch = Vec::with_capacity(LIST_BATCH);
        let result = self.vfs.list(&self.identity.caller(ctx), dir, from, &mut |entry| {
            let room = batch.len() < LIST_BATCH;
            if room {
                let name = SmallVec::from_slice(entry.name.as_bytes());
                batch.push(Listed { name, ino: entry.ino, kind: entry.kind, next: entry.next });
            }
            room
        });
        let outcome = self.told(result);
        // The next batch begins with the error.
        if batch.is_empty() { outcome.map(|()| batch) } else { Ok(batch) }
    }

    /// Adds one entry with its attributes. Returns false if the buffer is full; then no hold is kept.
    fn add_plus(&self, ctx: &ReqCtx, dir: Ino, listed: &Listed, out: &mut DirPlusBuf<'_>) -> bool {
        let name = listed.name.as_slice();
        if is_control(ctx.node, name) {
            return true;
        }
        let (ino, next, mode) = (listed.ino.0, listed.next.0, convert::kind_mode(listed.kind));
        if !out.fits(name.len()) {
            // Adding an entry that does not fit marks the buffer as full.
            let full = !out.add_name(ino, next, mode, name);
            debug_assert!(full);
            return false;
        }
        if matches!(name, b"." | b"..") {
            return out.add_name(ino, next, mode, name);
        }
        match checked(name).and_then(|name| self.find(ctx, dir, name)) {
            Ok(Some(stat)) => {
                let mut entry = self.entry(&stat);
                if !self.listed_attributes_stay.load(Ordering::Relaxed) {
                    entry.attr_ttl = Duration::ZERO;
                }
                let added = out.add(&entry, next, name);
                if !added {
                    self.vfs.forget(stat.ino, 1);
                }
                added
            }
            // The name was removed after it was listed.
            Ok(None) => true,
            // The name exists, but its inode cannot be read: the error is reported to the caller that looks it up.
            Err(_) => out.add_name(ino, next, mode, name),
        }
    }

    /// Clears set-id bits before contents change, and makes the kernel drop the mode it knows: it would still run the
    /// file with its owner's rights.
    fn kill_set_ids(&self, ctx: &ReqCtx, node: NodeId) -> Result<()> {
        let ino = self.ino(node)?;
        let attr = self.told(self.vfs.stat(ino))?.attr;
        if attr.perm & SET_IDS == 0 {
            return Ok(());
        }
        let set = api::SetAttr { kill_suidgid: true, ..api::SetAttr::default() };
        self.told(self.vfs.set_attr(&self.identity.changer(ctx, &attr), ino, &set))?;
        self.attr_changed(node);
        Ok(())
    }

    /// Clears set-group-id, whether or not the group may execute the file.
    fn kill_sgid(&self, ctx: &ReqCtx, ino: Ino) -> Result<()> {
        let attr = self.told(self.vfs.stat(ino))?.attr;
        let set = api::SetAttr { perm: Some(attr.perm & !libc::S_ISGID), ..api::SetAttr::default() };
        self.told(self.vfs.set_attr(&self.identity.changer(ctx, &attr), ino, &set)).map(drop)
    }

    /// Removes a file's capabilities. Before other changes of contents the kernel asks for it.
    fn kill_capabilities(&self, ctx: &ReqCtx, ino: Ino) -> Result<()> {
        match self.vfs.get_xattr(&self.identity.caller(ctx), ino, CAPABILITIES) {
            Err(Error::Posix(libc::ENODATA | libc::EOPNOTSUPP)) => Ok(()),
            found => {
                self.told(found.and_then(|_| self.vfs.remove_xattr(&self.identity.caller(ctx), ino, CAPABILITIES)))
            }
        }
    }

    /// Returns the space of the volume. A removed file that the kernel no longer has is free space, though its forget
    /// may come late on a busy machine.
    fn space(&self) -> api::StatFs {
        let forgotten = |held| {
            let notifier = self.notifier.get();
            notifier.map_or_else(BTreeSet::new, |notifier| self.forgotten.among(held, notifier, self.nodes))
        };
        self.vfs.stat_fs_with(&forgotten)
    }

    /// Makes the kernel ask for a node's attributes anew: more of them changed than the reply to its request tells.
    fn attr_changed(&self, node: NodeId) {
        if let Some(notifier) = self.notifier.get() {
            attributes::drop_attributes(notifier, node, &self.log);
        }
    }

    /// Makes the kernel drop what it has of a file that a failed call was to change: it keeps that, though a part may
    /// have been done.
    fn may_have_changed(&self, node: NodeId, ino: Ino, range: Range<u64>) {
        self.attr_changed(node);
        self.notices.note_contents(ino, range);
    }

    /// Makes the kernel ask for a file's attributes anew if it was told other sectors than the file has now. Before the
    /// answer: the caller may look at once.
    fn sectors_may_have_changed(&self, ctx: &ReqCtx, ino: Ino) {
        if self.vfs.has_outdated_sectors(ino) {
            self.attr_changed(ctx.node);
        }
    }

    /// Allocates a long range in steps, so that a caller that is killed does not wait for the rest, which stays undone.
    fn allocate_in_steps(&self, ctx: &ReqCtx, ino: Ino, range: Range<u64>, how: Allocate) -> Result<()> {
        let Range { start, end } = range;
        let beyond = || Ok::<bool, Errno>(end > self.told(self.vfs.stat(ino))?.attr.size);
        // Fails at once if the range may not be allowed; a hole is one step, however long.
        let space = self.space();
        let may_not_fit = end - start > space.free.saturating_mul(u64::from(space.block_size));
        let whole = may_not_fit
            || end > self.told(self.vfs.file_bytes_max(ino))?
            || how == Allocate::Punch
            || how == Allocate::KeepSize && beyond()?;
        if whole {
            return self.told(self.vfs.allocate(&self.identity.caller(ctx), ino, start, end - start, how));
        }
        let mut at = start;
        while at < end {
            // As on the kernel's file systems, only a caller that ends leaves the rest undone: programs do not expect
            // EINTR here.
            if process::caller_is_gone() {
                return Err(Errno::EINTR);
            }
            let stop = end.min((at / STEP_BYTES + 1) * STEP_BYTES);
            self.told(self.vfs.allocate(&self.identity.caller(ctx), ino, at, stop - at, how))?;
            at = stop;
        }
        Ok(())
    }

    /// Returns the credentials for a change of attributes that takes no set-ids away.
    fn who_changes(&self, ctx: &ReqCtx, ino: Ino) -> Result<Credentials> {
        if self.identity.is_stored() {
            return Ok(self.identity.caller(ctx));
        }
        Ok(self.identity.changer(ctx, &self.told(self.vfs.stat(ino))?.attr))
    }

    /// Fails for an extended attribute that callers do not see on this mount.
    fn check_seen(&self, name: &[u8]) -> Result<()> {
        if self.identity.hides(name) { Err(Errno::EOPNOTSUPP) } else { Ok(()) }
    }

    /// Trims for root alone, as the kernel's file systems do.
    fn trim(&self, ctx: &ReqCtx, trim: Trim) -> Result<Trim> {
        if !self.identity.is_root(ctx) {
            return Err(Errno::EPERM);
        }
        let range = trim.start..trim.start.saturating_add(trim.len);
        let len = self.told(self.vfs.trim(range, trim.min, &process::caller_is_gone))?;
        Ok(Trim { len, ..trim })
    }

    fn set_flags(&self, ctx: &ReqCtx, stat: &Stat, flags: u32) -> Result<()> {
        let set = api::SetAttr { flags: Some(flags), ..api::SetAttr::default() };
        self.told(self.vfs.set_attr(&self.identity.changer(ctx, &stat.attr), stat.ino, &set))?;
        // The change time has changed as well, and the reply has no field for it.
        self.attr_changed(ctx.node);
        Ok(())
    }
}

/// Creates `.moafs/defrag`.
fn defrag_file<F: Format>(defrag: &Arc<Defrag<F>>) -> ControlFile {
    let (shown, obeying) = (Arc::clone(defrag), Arc::clone(defrag));
    ControlFile {
        name: DEFRAG_NAME,
        text: Box::new(move |_| shown.text()),
        obey: Some(Box::new(move |command| obeying.command(command))),
    }
}

/// Creates `.moafs/layout`.
fn layout_file(layout: &Arc<Layout>) -> ControlFile {
    let (shown, obeying) = (Arc::clone(layout), Arc::clone(layout));
    ControlFile {
        name: LAYOUT_NAME,
        text: Box::new(move |audience| shown.text(audience)),
        obey: Some(Box::new(move |command| obeying.command(command))),
    }
}

/// Creates `.moafs/swap`.
fn swap_file<F: Format>(swap: &Arc<KernelSwap<F>>) -> ControlFile {
    let (shown, obeying) = (Arc::clone(swap), Arc::clone(swap));
    ControlFile {
        name: SWAP_NAME,
        text: Box::new(move |audience| shown.text(audience)),
        obey: Some(Box::new(move |command| obeying.command(command))),
    }
}

/// Returns true for the control directory's name. A file of the volume in its place is neither found nor listed: the
/// kernel would keep what a listing tells, and never ask for the control directory.
fn is_control(parent: NodeId, name: &[u8]) -> bool {
    parent == NodeId::ROOT && name == CONTROL_NAME
}

fn checked(name: &[u8]) -> Result<&Name> {
    Name::new(name).ok_or(Errno::EINVAL)
}

fn regular(mode: u32, umask: u32) -> NewFile<'static> {
    NewFile { kind: FileKind::Regular, perm: mode & 0o7777, umask, rdev: 0, target: None }
}

/// Returns the answer to an open that creates: no handle, keep what is cached, send no flush.
fn opened() -> OpenReply {
    OpenReply { fh: FileHandle(0), flags: OpenReplyFlags::KEEP_CACHE | OpenReplyFlags::NOFLUSH }
}

/// Copies `value` if it fits, and returns its length, as FUSE wants it for attribute calls.
fn fill(value: &[u8], out: &mut [u8]) -> usize {
    if let Some(room) = out.get_mut(..value.len()) {
        room.copy_from_slice(value);
    }
    value.len()
}

impl<F: Format> FileSystem for Front<F> {
    fn init(&self, negotiated: &Negotiated, notifier: Notifier) {
        if !negotiated.orders_listed_attributes() {
            self.tell_no_attributes_by_listings();
        }
        // The handshake, and so this call, happens once.
        let _ = self.notifier.set(notifier);
    }

    fn keeps_open_state(&self) -> bool {
        self.opens != Opens::Unseen
    }

    fn open(&self, ctx: &ReqCtx, args: &OpenArgs) -> Result<OpenReply> {
        if self.opens == Opens::Unseen {
            return Err(Errno::ENOSYS);
        }
        if Control::owns(ctx.node) {
            return Ok(opened());
        }
        let mut reply = opened();
        reply.flags.set(OpenReplyFlags::KEEP_CACHE, self.opens != Opens::Fresh);
        let writes = args.flags & libc::O_ACCMODE != libc::O_RDONLY;
        if !writes {
            return Ok(reply);
        }
        let flags = self.told(self.vfs.stat(self.ino(ctx.node)?))?.attr.flags;
        let rewrites = args.flags & libc::O_APPEND == 0 || args.flags & libc::O_TRUNC != 0;
        if flags & convert::FS_IMMUTABLE_FL != 0 || flags & convert::FS_APPEND_FL != 0 && rewrites {
            return Err(Errno::EPERM);
        }
        Ok(reply)
    }

    fn opendir(&self, _: &ReqCtx, _: &OpenArgs) -> Result<OpenReply> {
        if self.opens != Opens::Fresh {
            return Err(Errno::ENOSYS);
        }
        Ok(OpenReply { fh: FileHandle(0), flags: OpenReplyFlags::empty() })
    }

    fn destroy(&self) {
        self.swap.close();
        self.defrag.close();
        if let Some(layout) = &self.layout {
            layout.close();
        }
        let outcome = self.vfs.clone().close();
        if let Err(error) = &outcome {
            self.log.failure(&format!("closing the volume: {error}"));
        }
        let _ = self.closed.set(outcome);
    }

    fn lookup(&self, ctx: &ReqCtx, name: &[u8]) -> Result<Entry> {
        if Control::owns(ctx.node) {
            return self.control.lookup(name, ctx.uid);
        }
        if is_control(ctx.node, name) {
            return Ok(self.control.entry());
        }
        if name == b"." {
            return Ok(self.entry(&self.told(self.vfs.find(self.ino(ctx.node)?))?));
        }
        let found = self.find(ctx, self.ino(ctx.node)?, checked(name)?)?;
        Ok(found.map_or_else(|| Entry::negative(FOREVER), |stat| self.entry(&stat)))
    }

    fn forget(&self, node: NodeId, nlookup: u64) {
        match self.nodes.ino(node) {
            Some(ino) => self.vfs.forget(ino, nlookup),
            None => self.control.forget(node),
        }
    }

    fn getattr(&self, ctx: &ReqCtx, _fh: Option<FileHandle>) -> Result<AttrReply> {
        if Control::owns(ctx.node) {
            return Ok(AttrReply { attr: self.control.attr(ctx.node)?, attr_ttl: FOREVER });
        }
        let stat = self.told(self.vfs.stat(self.ino(ctx.node)?))?;
        Ok(self.attr_reply(&stat))
    }

    fn statx(&self, ctx: &ReqCtx, _fh: Option<FileHandle>, _mask: u32) -> Result<StatxReply> {
        let no_more =
            StatxReply { attr: FileAttr::default(), btime: None, attributes: 0, attributes_mask: 0, attr_ttl: FOREVER };
        if Control::owns(ctx.node) {
            return Ok(StatxReply { attr: self.control.attr(ctx.node)?, ..no_more });
        }
        let stat = self.told(self.vfs.stat(self.ino(ctx.node)?))?;
        Ok(StatxReply {
            attr: self.shown(&stat),
            btime: stat.attr.crtime.map(convert::timestamp),
            attributes: convert::statx_attributes(stat.attr.flags),
            attributes_mask: convert::STATX_ATTRIBUTES_MASK,
            ..no_more
        })
    }

    fn setattr(&self, ctx: &ReqCtx, set: &SetAttr) -> Result<AttrReply> {
        if Control::owns(ctx.node) && (set.size, set.mode, set.uid, set.gid) == (Some(0), None, None, None) {
            return Ok(AttrReply { attr: self.control.truncate(ctx.node)?, attr_ttl: FOREVER });
        }
        let ino = self.ino(ctx.node)?;
        let empty = *set == SetAttr { fh: set.fh, ..SetAttr::default() };
        let kills = empty || set.kill_suidgid || set.uid.is_some() || set.gid.is_some();
        let who = if kills {
            let stat = self.told(self.vfs.stat(ino))?;
            let who = self.identity.changer(ctx, &stat.attr);
            // The kernel asks so before a write, which takes set-ids away by itself, and for chown(2) that names
            // neither owner nor group, where it has not checked that the caller may take them away.
            if empty && who.uid != 0 && who.uid != stat.attr.uid {
                return Ok(self.attr_reply(&stat));
            }
            who
        } else {
            self.who_changes(ctx, ino)?
        };
        let set = self.identity.stored_change(set)?;
        let set = api::SetAttr {
            perm: set.mode.map(|mode| mode & 0o7777),
            uid: set.uid,
            gid: set.gid,
            size: set.size,
            atime: set.atime.map(convert::set_time),
            mtime: set.mtime.map(convert::set_time),
            ctime: set.ctime.map(convert::from_timestamp),
            flags: None,
            kill_suidgid: set.kill_suidgid || empty,
        };
        let changed = self.vfs.set_attr(&who, ino, &set);
        if changed.is_err() {
            // It may have failed only in becoming durable.
            match set.size {
                Some(size) => self.may_have_changed(ctx.node, ino, size..u64::MAX),
                None => self.attr_changed(ctx.node),
            }
        }
        Ok(self.attr_reply(&self.told(changed)?))
    }

    fn readlink(&self, ctx: &ReqCtx, out: &mut [u8]) -> Result<usize> {
        let target = self.told(self.vfs.readlink(self.ino(ctx.node)?))?;
        let room = out.get_mut(..target.len()).ok_or(Errno::ENAMETOOLONG)?;
        room.copy_from_slice(&target);
        Ok(target.len())
    }

    fn symlink(&self, ctx: &ReqCtx, name: &[u8], target: &[u8]) -> Result<Entry> {
        let new = NewFile { kind: FileKind::Symlink, perm: 0o777, umask: 0, rdev: 0, target: Some(target) };
        self.make(ctx, name, &new)
    }

    fn mknod(&self, ctx: &ReqCtx, name: &[u8], mode: u32, rdev: DeviceNumber, umask: u32) -> Result<Entry> {
        let kind = FileKind::from_mode(mode).ok_or(Errno::EINVAL)?;
        let rdev = match kind {
            FileKind::CharDevice | FileKind::BlockDevice => convert::rdev(rdev),
            _ => 0,
        };
        self.make(ctx, name, &NewFile { kind, rdev, ..regular(mode, umask) })
    }

    fn mkdir(&self, ctx: &ReqCtx, name: &[u8], mode: u32, umask: u32) -> Result<Entry> {
        self.make(ctx, name, &NewFile { kind: FileKind::Directory, ..regular(mode, umask) })
    }

    fn unlink(&self, ctx: &ReqCtx, name: &[u8]) -> Result<()> {
        let (dir, name) = self.place(ctx.node, name, CONTROL_IS_FIXED)?;
        self.told(self.vfs.unlink(&self.identity.caller(ctx), dir, name))
    }

    fn rmdir(&self, ctx: &ReqCtx, name: &[u8]) -> Result<()> {
        let (dir, name) = self.place(ctx.node, name, CONTROL_IS_FIXED)?;
        self.told(self.vfs.rmdir(&self.identity.caller(ctx), dir, name))
    }

    fn rename(&self, ctx: &ReqCtx, name: &[u8], new_parent: NodeId, new_name: &[u8], flags: RenameFlags) -> Result<()> {
        let from = self.place(ctx.node, name, CONTROL_IS_FIXED)?;
        let to = self.place(new_parent, new_name, CONTROL_IS_FIXED)?;
        self.told(self.vfs.rename(&self.identity.caller(ctx), from, to, convert::rename_mode(flags)?))
    }

    fn link(&self, ctx: &ReqCtx, node: NodeId, new_name: &[u8]) -> Result<Entry> {
        let (dir, name) = self.place(ctx.node, new_name, Errno::EEXIST)?;
        let stat = self.told(self.vfs.link(&self.identity.caller(ctx), self.ino(node)?, dir, name))?;
        Ok(self.entry(&stat))
    }

    fn read(&self, ctx: &ReqCtx, _fh: FileHandle, offset: u64, out: &mut [u8]) -> Result<usize> {
        if Control::owns(ctx.node) {
            return self.control.read(ctx.node, offset, out);
        }
        self.told(self.vfs.read(self.ino(ctx.node)?, offset, out))
    }

    fn write(&self, ctx: &ReqCtx, _fh: FileHandle, offset: u64, data: &[u8], flags: WriteFlags) -> Result<usize> {
        if Control::owns(ctx.node) {
            return self.control.write(ctx.node, ctx.uid, offset, data);
        }
        let ino = self.ino(ctx.node)?;
        // Write-back of a shared mapping: the writer is unknown, and may not be allowed to keep the bits.
        let mapped = flags.contains(WriteFlags::CACHE);
        let who = if mapped { Credentials::root() } else { self.identity.caller(ctx) };
        if mapped {
            self.kill_capabilities(ctx, ino)?;
        }
        if mapped || self.identity.drops_set_ids() || flags.contains(WriteFlags::KILL_SUIDGID) {
            self.kill_set_ids(ctx, ctx.node)?;
        }
        // The kernel takes no part of a page for written back.
        if mapped {
            return self.told(self.vfs.write(&who, ino, offset, data, false)).map(|_| data.len());
        }
        self.told(self.vfs.write_what_fits(&who, ino, offset, data))
    }

    fn fsync(&self, ctx: &ReqCtx, _fh: FileHandle, datasync: bool) -> Result<()> {
        if Control::owns(ctx.node) {
            return Ok(());
        }
        if ctx.node == NodeId::ROOT && self.root_syncs_all.load(Ordering::Relaxed) {
            return self.syncfs(ctx);
        }
        let (ino, vfs, thread) = (self.ino(ctx.node)?, self.vfs.clone(), ctx.pid);
        let sync = move || vfs.fsync_for(ino, datasync, &|| process::of_thread(thread));
        self.told(self.syncs.run(ctx.pid, self.vfs.dirty_bytes(), sync))?;
        self.sectors_may_have_changed(ctx, ino);
        Ok(())
    }

    fn readdir(&self, ctx: &ReqCtx, _fh: FileHandle, offset: u64, out: &mut DirBuf<'_>) -> Result<()> {
        if Control::owns(ctx.node) {
            let names = self.control.names().enumerate().skip(usize::try_from(offset).unwrap_or(usize::MAX));
            for (index, (ino, mode, name)) in names {
                if !out.add(ino, index as u64 + 1, mode, name) {
                    break;
                }
            }
            return Ok(());
        }
        let dir = self.ino(ctx.node)?;
        let result = self.vfs.list(&self.identity.caller(ctx), dir, Cookie(offset), &mut |entry| {
            is_control(ctx.node, entry.name.as_bytes())
                || out.add(entry.ino.0, entry.next.0, convert::kind_mode(entry.kind), entry.name.as_bytes())
        });
        let outcome = self.told(result);
        // The next call begins with the error.
        if out.is_empty() { outcome } else { Ok(()) }
    }

    fn readdirplus(&self, ctx: &ReqCtx, _fh: FileHandle, offset: u64, out: &mut DirPlusBuf<'_>) -> Result<()> {
        if Control::owns(ctx.node) {
            let names = self.control.names().enumerate().skip(usize::try_from(offset).unwrap_or(usize::MAX));
            for (index, (ino, mode, name)) in names {
                if !out.add_name(ino, index as u64 + 1, mode, name) {
                    break;
                }
            }
            return Ok(());
        }
        let dir = self.ino(ctx.node)?;
        let mut from = Cookie(offset);
        loop {
            let batch = match self.listed(ctx, dir, from) {
                // The kernel has to learn of the look-ups that are packed, and the next call begins with the error.
                Err(_) if !out.is_empty() => return Ok(()),
                batch => batch?,
            };
            let Some(last) = batch.last() else { return Ok(()) };
            from = last.next;
            if !batch.iter().all(|listed| self.add_plus(ctx, dir, listed, out)) {
                return Ok(());
            }
        }
    }

    fn fsyncdir(&self, ctx: &ReqCtx, fh: FileHandle, datasync: bool) -> Result<()> {
        self.fsync(ctx, fh, datasync)
    }

    fn statfs(&self, _ctx: &ReqCtx) -> Result<StatFs> {
        Ok(convert::stat_fs(&self.space()))
    }

    fn setxattr(&self, ctx: &ReqCtx, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        let ino = self.ino(ctx.node)?;
        self.check_seen(name)?;
        let mode = match flags - XattrFlags::ACL_KILL_SGID {
            f if f.is_empty() => SetMode::Any,
            XattrFlags::CREATE => SetMode::Create,
            XattrFlags::REPLACE => SetMode::Replace,
            // Both cannot be met; the kernel's ext4 tells which one it is.
            _ => return self.told(self.vfs.get_xattr(&self.identity.caller(ctx), ino, name)).and(Err(Errno::EEXIST)),
        };
        let who = self.who_changes(ctx, ino)?;
        self.told(self.vfs.set_xattr(&who, ino, name, value, mode))?;
        self.sectors_may_have_changed(ctx, ino);
        // The kernel asks for the mode after an ACL was set.
        if flags.contains(XattrFlags::ACL_KILL_SGID) { self.kill_sgid(ctx, ino) } else { Ok(()) }
    }

    fn getxattr(&self, ctx: &ReqCtx, name: &[u8], out: &mut [u8]) -> Result<usize> {
        let ino = self.nodes.ino(ctx.node).ok_or(Errno::ENODATA)?;
        self.check_seen(name)?;
        let value = self.told(self.vfs.get_xattr(&self.identity.caller(ctx), ino, name))?;
        Ok(fill(&value, out))
    }

    fn listxattr(&self, ctx: &ReqCtx, out: &mut [u8]) -> Result<usize> {
        let Some(ino) = self.nodes.ino(ctx.node) else { return Ok(0) };
        let mut names = Vec::new();
        for key in self.told(self.vfs.list_xattr(&self.identity.caller(ctx), ino))? {
            let name = key.full();
            if !self.identity.hides(&name) {
                names.extend_from_slice(&name);
                names.push(0);
            }
        }
        Ok(fill(&names, out))
    }

    fn removexattr(&self, ctx: &ReqCtx, name: &[u8]) -> Result<()> {
        let ino = self.ino(ctx.node)?;
        self.check_seen(name)?;
        let who = self.who_changes(ctx, ino)?;
        self.told(self.vfs.remove_xattr(&who, ino, name))?;
        self.sectors_may_have_changed(ctx, ino);
        Ok(())
    }

    fn tmpfile(&self, ctx: &ReqCtx, args: &CreateArgs) -> Result<(Entry, OpenReply)> {
        let stat = self.told(self.vfs.tmpfile(
            &self.identity.creator(ctx, args.mode),
            self.ino(ctx.node)?,
            &regular(self.identity.stored_mode(args.mode), args.umask),
        ))?;
        Ok((self.entry(&stat), opened()))
    }

    fn fallocate(&self, ctx: &ReqCtx, _fh: FileHandle, offset: u64, len: u64, mode: FallocateMode) -> Result<()> {
        let (how, ino) = (convert::allocate(mode)?, self.ino(ctx.node)?);
        // Kernels before 6.1 do not ask for it.
        if ctx.uid != 0 || self.identity.drops_set_ids() {
            self.kill_set_ids(ctx, ctx.node)?;
        }
        let range = offset..offset + len;
        self.allocate_in_steps(ctx, ino, range.clone(), how)
            .inspect_err(|_| self.may_have_changed(ctx.node, ino, range))
    }

    fn lseek(&self, ctx: &ReqCtx, _fh: FileHandle, offset: u64, target: SeekTarget) -> Result<u64> {
        if Control::owns(ctx.node) {
            return self.control.seek(ctx.node, offset, target);
        }
        let what = match target {
            SeekTarget::Data => Seek::Data,
            SeekTarget::Hole => Seek::Hole,
        };
        self.told(self.vfs.seek(self.ino(ctx.node)?, offset, what))
    }

    fn copy_file_range(&self, ctx: &ReqCtx, range: &CopyRange) -> Result<u64> {
        if range.flags != 0 {
            return Err(Errno::EINVAL);
        }
        let from = (self.ino(ctx.node)?, range.offset_in);
        let to = (self.ino(range.node_out)?, range.offset_out);
        if ctx.uid != 0 || self.identity.drops_set_ids() {
            self.kill_set_ids(ctx, range.node_out)?;
        }
        let len = range.len.min(STEP_BYTES);
        let copied = self.told(self.vfs.copy_range(&self.identity.caller(ctx), from, to, len));
        copied.inspect_err(|_| self.may_have_changed(range.node_out, to.0, to.1..to.1.saturating_add(len)))
    }

    fn ioctl(&self, ctx: &ReqCtx, args: &IoctlArgs<'_>, out: &mut [u8]) -> Result<IoctlReply> {
        let command = Command::parse(args.cmd, args.input)?;
        let ino = self.nodes.ino(ctx.node).ok_or(Errno::ENOTTY)?;
        let stat = self.told(self.vfs.stat(ino))?;
        let len = match command {
            Command::GetFlags => ioctl::put_word(stat.attr.flags, out)?,
            Command::GetXattr => ioctl::put_xattr(stat.attr.flags, out)?,
            Command::GetVersion => ioctl::put_word(stat.attr.generation, out)?,
            Command::GetLabel => ioctl::put_label(&self.vfs.shape().label, out)?,
            Command::SetFlags(flags) => self.set_flags(ctx, &stat, flags).map(|()| 0)?,
            Command::Trim(trim) => ioctl::put_trim(self.trim(ctx, trim)?, out)?,
            Command::SetXattr(flags) => {
                let kept = stat.attr.flags & !convert::FLAGS_OF_XFLAGS;
                self.set_flags(ctx, &stat, kept | flags).map(|()| 0)?
            }
        };
        Ok(IoctlReply { result: 0, len })
    }

    fn syncfs(&self, ctx: &ReqCtx) -> Result<()> {
        let vfs = self.vfs.clone();
        self.told(self.syncs.run(ctx.pid, self.vfs.dirty_bytes(), move || vfs.sync()))?;
        // The caller may look at once how many blocks a file has.
        self.notices.wait_until_told();
        Ok(())
    }
}
