//! The interface for the fronts: [`Vfs`].

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use moafs_disk::SharedDisk;
use moafs_runtime::{Rt, Time};

use crate::defrag::{DefragOptions, DefragReport};
use crate::error::Result;
use crate::format::{Format, Shape, Survey};
use crate::inner::Inner;
use crate::swap_space::{LastAccess, SwapSpace};
use crate::types::{Cookie, Ino, Mapping, Name, SetMode, XattrKey};
use crate::write_error::Process;

pub use crate::calls::{Allocate, ListEntry, NewFile, RenameMode, Seek, SetAttr, SetTime, Stat, StatFs, Unseen};
pub use crate::credentials::{Checks, Credentials};
pub use crate::options::{AtimePolicy, CacheRole, Options, Synchronous};

/// A mounted volume: POSIX over a format. All calls may be made from many threads.
///
/// Calls that return a [`Stat`] of a looked-up or new inode also *hold* the inode: its number is
/// not reused until [`Vfs::forget`] has been called as often. (FUSE counts the same way.)
pub struct Vfs<F: Format> {
    pub(crate) inner: Arc<Inner<F>>,
}

impl<F: Format> Clone for Vfs<F> {
    fn clone(&self) -> Self {
        Vfs { inner: Arc::clone(&self.inner) }
    }
}

/// The calls of a volume. Errors are POSIX's unless said otherwise; see [`crate::Error`].
impl<F: Format> Vfs<F> {
    /// Mounts a format: starts the syncer (if asked for) on the runtime.
    pub fn new(format: F, disk: SharedDisk, rt: Rt, options: Options) -> Vfs<F> {
        let syncer = options.syncer && !options.read_only;
        let disk = format.contents_disk(disk);
        let inner = Arc::new(Inner::new(format, disk, rt, options));
        if syncer {
            inner.start_syncer();
        }
        Vfs { inner }
    }
    /// Returns the properties of the volume that do not change.
    pub fn shape(&self) -> &Shape {
        &self.inner.shape
    }
    /// Returns the format itself, for tools (survey, counters).
    pub fn format(&self) -> &F {
        &self.inner.format
    }
    /// Returns the likely position of the device's head: the last request for file contents.
    pub fn last_access(&self) -> Arc<LastAccess> {
        Arc::clone(&self.inner.last_access)
    }

    /// Returns swap space, after making room for `blocks` blocks that are about to be reserved. `None` if the format
    /// has none to give.
    pub fn swap_space(&self, blocks: u64) -> Result<Option<Arc<dyn SwapSpace>>> {
        let _gate = self.inner.enter()?;
        let Some(room) = self.inner.format.swap_space() else { return Ok(None) };
        self.inner.format.make_way(blocks)?;
        Ok(Some(room))
    }

    /// Tells the device which blocks of `range` hold nothing, as fstrim(8) asks: free runs of at least `min` bytes
    /// within it. Returns how many bytes that were. Ends early once `stop` returns true.
    ///
    /// # Errors
    /// EOPNOTSUPP if the device cannot forget; EINVAL for a range that lies behind the device's end or is shorter than
    /// a block, and for a `min` larger than the device.
    pub fn trim(&self, range: Range<u64>, min: u64, stop: &dyn Fn() -> bool) -> Result<u64> {
        self.inner.trim(range, min, stop)
    }

    /// Looks a name up (also `.` and `..`) and holds the inode.
    pub fn lookup(&self, who: &Credentials, dir: Ino, name: &Name) -> Result<Stat> {
        self.inner.lookup(who, dir, name)
    }
    /// Finds an inode by its number alone, as a file handle names it, and holds it: ESTALE if there is no such file
    /// any more. Whether it is the file that had the number when the handle was made, its generation tells.
    pub fn find(&self, ino: Ino) -> Result<Stat> {
        self.inner.find(ino)
    }
    /// Takes one more hold on an inode (a second handle).
    pub fn hold(&self, ino: Ino) -> Result<()> {
        let _gate = self.inner.enter()?;
        self.inner.hold(ino).map(drop)
    }
    /// Gives back `holds` holds. Never waits for a device: reaping is background work.
    pub fn forget(&self, ino: Ino, holds: u64) {
        self.inner.forget(ino, holds)
    }
    /// Has `watcher` called with each change that the front does not learn of by the answers to its calls. A front
    /// that keeps names and attributes for long asks again then.
    ///
    /// * [`Unseen::Attributes`] of a file whose sectors ([`Stat::sectors`]) are not what the front was told last,
    ///   though no call that writes, truncates, allocates or copies has changed them: write-back placed its data, and
    ///   they took more or fewer map blocks than was known before, or an extended attribute took a block. A file is
    ///   named once, until the front has asked.
    /// * [`Unseen::Name`], and [`Unseen::Attributes`] of the inodes behind it, after a call that changed names and
    ///   failed only in making the change durable, as the directory or the mount wants it: before the call returns.
    ///
    /// Inodes that are not held are not named. Any call, and the syncer, may call `watcher`, which must neither wait
    /// nor call the volume. Only the first one that is given counts.
    pub fn watch_unseen(&self, watcher: impl Fn(Unseen<'_>) + Send + Sync + 'static) {
        // A second one would hear of what the first was told.
        let _ = self.inner.watcher.set(Box::new(watcher));
    }
    /// Returns true if the front was last told other sectors of a file than it has now, whether or not the watcher has
    /// been called: a front that answers an fsync tells of its file before.
    pub fn has_outdated_sectors(&self, ino: Ino) -> bool {
        self.inner.has_outdated_sectors(ino)
    }
    /// Returns an inode's attributes.
    pub fn stat(&self, ino: Ino) -> Result<Stat> {
        self.inner.stat(ino)
    }
    /// Changes attributes; a size truncates or extends the file.
    pub fn set_attr(&self, who: &Credentials, ino: Ino, set: &SetAttr) -> Result<Stat> {
        let stat = self.inner.set_attr(who, ino, set)?;
        self.inner.settle_inode(ino)?;
        Ok(stat)
    }
    /// Checks access (`R_OK | W_OK | X_OK`) by mode and ACL.
    pub fn access(&self, who: &Credentials, ino: Ino, mask: u32) -> Result<()> {
        self.inner.access(who, ino, mask)
    }
    /// Makes a file of any kind with a name, and holds it.
    pub fn create(&self, who: &Credentials, dir: Ino, name: &Name, new: &NewFile<'_>) -> Result<Stat> {
        self.settled((dir, name), self.inner.create(who, dir, name, new)?)
    }
    /// Makes a regular file without a name (O_TMPFILE), and holds it.
    pub fn tmpfile(&self, who: &Credentials, dir: Ino, new: &NewFile<'_>) -> Result<Stat> {
        self.inner.tmpfile(who, dir, new)
    }
    /// Makes a new name durable if that is asked for, or gives back the hold on its inode.
    fn settled(&self, name: (Ino, &Name), made: Stat) -> Result<Stat> {
        self.inner.settle_names(&[name], &[made.ino]).inspect_err(|_| self.inner.forget(made.ino, 1))?;
        Ok(made)
    }
    /// Gives an inode one more name, and holds it.
    pub fn link(&self, who: &Credentials, ino: Ino, dir: Ino, name: &Name) -> Result<Stat> {
        self.settled((dir, name), self.inner.link(who, ino, dir, name)?)
    }
    /// Removes the name of anything but a directory.
    pub fn unlink(&self, who: &Credentials, dir: Ino, name: &Name) -> Result<()> {
        let removed = self.inner.unlink(who, dir, name)?;
        self.inner.settle_names(&[(dir, name)], &[removed])
    }
    /// Removes an empty directory.
    pub fn rmdir(&self, who: &Credentials, dir: Ino, name: &Name) -> Result<()> {
        let removed = self.inner.rmdir(who, dir, name)?;
        self.inner.settle_names(&[(dir, name)], &[removed])
    }
    /// Renames, in all its cases.
    pub fn rename(&self, who: &Credentials, from: (Ino, &Name), to: (Ino, &Name), mode: RenameMode) -> Result<()> {
        let moved = self.inner.rename(who, from, to, mode)?;
        // The new name first: in between the file has both, not none.
        self.inner.settle_names(&[to, from], &moved)
    }
    /// Returns a symbolic link's text.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.inner.readlink(ino)
    }
    /// Lists a directory from a cookie on; `each` returns false to stop *before* the entry. Fronts that
    /// want attributes call [`Vfs::lookup`] on the names.
    pub fn list(
        &self,
        who: &Credentials,
        dir: Ino,
        from: Cookie,
        each: &mut dyn FnMut(ListEntry<'_>) -> bool,
    ) -> Result<()> {
        self.inner.list(who, dir, from, each)
    }
    /// Reads into `into`; returns how many bytes there were.
    pub fn read(&self, ino: Ino, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.inner.read(ino, offset, into)
    }
    /// Writes all of `data` (or fails); clears suid and sgid if permissions are checked here and `who` may not keep
    /// them. `append` ignores `offset`. Returns the offset written at.
    pub fn write(&self, who: &Credentials, ino: Ino, offset: u64, data: &[u8], append: bool) -> Result<u64> {
        let at = self.inner.write(who, ino, offset, data, append)?;
        self.inner.settle_inode(ino)?;
        Ok(at)
    }
    /// Writes as [`Vfs::write`] does at `offset`; on a volume that is too full for all of `data`, or at the largest
    /// size of a file, as much as fits, like write(2). Returns how many bytes.
    ///
    /// # Errors
    /// ENOSPC only if there is no space for a block, EFBIG only if no byte fits.
    pub fn write_what_fits(&self, who: &Credentials, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        let len = self.inner.write_what_fits(who, ino, offset, data)?;
        self.inner.settle_inode(ino)?;
        Ok(len)
    }
    /// Allocates, punches or zeroes a range, as `how` says.
    pub fn allocate(&self, who: &Credentials, ino: Ino, offset: u64, len: u64, how: Allocate) -> Result<()> {
        self.inner.allocate(who, ino, offset, len, how)?;
        self.inner.settle_inode(ino)
    }
    /// Returns the offset of the next data or hole at or after `offset`.
    pub fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        self.inner.seek(ino, offset, what)
    }
    /// Copies bytes between (or within) files, holes included; returns how many.
    pub fn copy_range(&self, who: &Credentials, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        let copied = self.inner.copy_range(who, from, to, len)?;
        self.inner.settle_inode(to.0)?;
        Ok(copied)
    }
    /// Returns the mappings of `len` bytes from `offset` on, each with its offset in the file. The file's dirty blocks
    /// are written back first if the volume takes changes. FIEMAP-like, for tools.
    pub fn map(&self, ino: Ino, offset: u64, len: u64) -> Result<Vec<(u64, Mapping)>> {
        self.inner.map(ino, offset, len)
    }
    /// Syncs a file (fsync, or fdatasync with `data_only`). A write error of this file is reported by one call.
    pub fn fsync(&self, ino: Ino, data_only: bool) -> Result<()> {
        self.inner.fsync(ino, data_only, &|| Process::SELF)
    }
    /// Syncs a file for one of several processes: a write error is reported once to each that was there when it
    /// happened. `caller` is called only if there is an error.
    pub fn fsync_for(&self, ino: Ino, data_only: bool, caller: &dyn Fn() -> Process) -> Result<()> {
        self.inner.fsync(ino, data_only, caller)
    }
    /// Returns the bytes of file contents that are to be written back: a sync waits for most of them.
    pub fn dirty_bytes(&self) -> usize {
        self.inner.cache.dirty_bytes()
    }
    /// Makes everything durable that was changed before the call (sync).
    pub fn sync(&self) -> Result<()> {
        self.inner.sync()
    }
    /// Moves the scattered files of a directory and all below it together again, or one file. `progress` is told how
    /// far it is between two parts of at most 16 MiB, and says whether to go on. What was moved is durable at the end.
    pub fn defragment(
        &self,
        ino: Ino,
        options: &DefragOptions,
        progress: &mut dyn FnMut(&DefragReport) -> bool,
    ) -> Result<DefragReport> {
        self.inner.defragment(ino, options, progress)
    }
    /// Tells `to` the layout of the volume as it is now, beside other calls. Ends early once `goes_on` returns false.
    pub fn survey(&self, to: &mut dyn Survey, goes_on: &mut dyn FnMut() -> bool) -> Result<()> {
        self.inner.survey(to, goes_on)
    }
    /// Returns an extended attribute's value, by full name (`user.x`).
    pub fn get_xattr(&self, who: &Credentials, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.inner.get_xattr(who, ino, name)
    }
    /// Returns the size in bytes up to which a file may grow.
    pub fn file_bytes_max(&self, ino: Ino) -> Result<u64> {
        self.inner.file_bytes_max(ino)
    }
    /// Sets an extended attribute; ACLs also change the mode.
    pub fn set_xattr(&self, who: &Credentials, ino: Ino, name: &[u8], value: &[u8], mode: SetMode) -> Result<()> {
        self.inner.set_xattr(who, ino, name, value, mode)?;
        self.inner.settle_inode(ino)
    }
    /// Removes an extended attribute.
    pub fn remove_xattr(&self, who: &Credentials, ino: Ino, name: &[u8]) -> Result<()> {
        self.inner.remove_xattr(who, ino, name)?;
        self.inner.settle_inode(ino)
    }
    /// Returns the names of all extended attributes that the caller may see.
    pub fn list_xattr(&self, who: &Credentials, ino: Ino) -> Result<Vec<XattrKey>> {
        self.inner.list_xattr(who, ino)
    }
    /// Returns the numbers of `statfs(2)`: blocks and inodes, total and free. A removed file counts as used as long as
    /// it is held.
    pub fn stat_fs(&self) -> StatFs {
        self.stat_fs_with(&|_| BTreeSet::new())
    }
    /// Returns the numbers of `statfs(2)` for a caller that can tell which removed files are `forgotten` among those
    /// that are still held: they count as free, though their [`Vfs::forget`] is still to come. `forgotten` is called
    /// without a lock, and only if there are any.
    pub fn stat_fs_with(&self, forgotten: &dyn Fn(BTreeSet<Ino>) -> BTreeSet<Ino>) -> StatFs {
        self.inner.stat_fs(forgotten)
    }
    /// Returns the counters, as `.moafs/stats` shows them.
    pub fn counters(&self) -> crate::counters::Counters {
        self.inner.counters()
    }
    /// Returns the first reason for which the volume has turned read-only, if it has.
    pub fn failed(&self) -> Option<String> {
        self.inner.format.failed()
    }
    /// Notes on a volume that has failed that damage was found, if it was: the next mount and the checker hear of it.
    pub fn record_damage(&self) {
        self.inner.format.record_damage();
    }
    /// Returns an error if the volume takes no changes.
    ///
    /// # Errors
    /// EROFS with the reason: the volume was mounted read-only, its format allows no changes, or it has failed.
    pub fn check_writable(&self) -> Result<()> {
        self.inner.check_writable()
    }
    /// Changes the rule by which reading updates access times ([`Options::atime`] until then).
    pub fn set_atime(&self, policy: AtimePolicy) {
        self.inner.atime.set(policy);
    }
    /// Changes which calls return when their change is durable ([`Options::synchronous`] until then).
    pub fn set_synchronous(&self, changes: Synchronous) {
        self.inner.synchronous.set(changes);
    }
    /// Runs one round of background work (as the syncer task does): age-out, reaping, a background step of the format.
    pub fn run_background_step(&self) {
        self.inner.round();
    }
    /// Gives cached memory back until at most `bytes` are used (memory pressure).
    pub fn shrink(&self, bytes: usize) {
        self.inner.shrink_to(bytes);
        moafs_disk::buf::trim();
    }
    /// Returns the memory in use now, in bytes: cached data, metadata, inodes. [`Options::cache_bytes`] bounds it.
    pub fn memory_bytes(&self) -> usize {
        self.inner.used_bytes()
    }
    /// Returns the time since which the clean page that would leave the cache next has waited for it (it may still get
    /// a second chance); `None` without clean pages. For an owner of memory shared between this cache and others: the
    /// older page should go.
    pub fn coldest(&self) -> Option<Time> {
        self.inner.coldest()
    }
    /// Drops `bytes` bytes of clean cached data, the coldest first.
    pub fn evict(&self, bytes: usize) {
        self.inner.reclaim_to(self.inner.used_bytes().saturating_sub(bytes));
    }
    /// Writes everything, waits for running calls, stops the syncer, closes the format cleanly.
    pub fn close(self) -> Result<()> {
        self.inner.close()
    }
}
