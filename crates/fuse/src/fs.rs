//! The trait a file system implements: synchronous, typed, and without knowledge of any transport.

use crate::dirbuf::{DirBuf, DirPlusBuf};
use crate::errno::Errno;
use crate::init::Negotiated;
use crate::notify::Notifier;
use crate::types::{
    AttrReply, CopyRange, CreateArgs, DeviceNumber, Entry, FallocateMode, FileHandle, IoctlArgs, IoctlReply, NodeId,
    OpenArgs, OpenReply, RenameFlags, ReqCtx, SeekTarget, SetAttr, StatFs, StatxReply, WriteFlags, XattrFlags,
};

/// Result of every handler.
pub type Result<T, E = Errno> = std::result::Result<T, E>;

/// A file system.
///
/// Every method may be called from several threads at once. `ctx.node` is the node the request is about, and the
/// parent directory where a `name` is given. A method may block; it then occupies one of the few threads that serve
/// its CPU. A panic answers `EIO` and the session goes on.
///
/// The dispatcher has checked of every request:
/// - names are 1..=255 bytes, contain neither NUL nor `/`, and are not `.` or `..` (but in `lookup`);
/// - names of extended attributes are 1..=255 bytes without NUL;
/// - targets of symbolic links are 1..=4095 bytes without NUL;
/// - an offset plus its length does not exceed `i64::MAX`.
///
/// A method that is not implemented answers `ENOSYS`; for most operations the kernel then stops asking and falls back
/// or fails by itself.
#[allow(unused_variables)]
pub trait FileSystem: Send + Sync + 'static {
    /// Returns true if open files carry state, so that every open and close must be seen. If not, the kernel is told
    /// that `open` and `opendir` will answer `ENOSYS` and saves a round trip per open; handles are then zero, and the
    /// lookup count alone keeps an unlinked file alive.
    fn keeps_open_state(&self) -> bool {
        false
    }

    /// Called once, before the first request, with the result of the handshake, and with a notifier that tells the
    /// kernel when what it caches is out of date.
    fn init(&self, negotiated: &Negotiated, notifier: Notifier) {}

    /// Called once, after the last request. On a block-device mount `umount` waits for it.
    fn destroy(&self) {}

    /// Finds a name. A missing name is `ENOENT` or, to let the kernel remember it, [`Entry::negative`].
    ///
    /// `.` is the node itself, which the kernel may know only from a file handle: it compares the entry's generation
    /// with the handle's, and reports `ESTALE` if they differ. `..` is a directory's parent.
    fn lookup(&self, ctx: &ReqCtx, name: &[u8]) -> Result<Entry> {
        Err(Errno::ENOSYS)
    }

    /// Drops `nlookup` of the kernel's lookups of `node`.
    fn forget(&self, node: NodeId, nlookup: u64) {}

    /// Drops lookups of many nodes, as one request names them.
    fn forget_batch(&self, batch: &mut dyn Iterator<Item = (NodeId, u64)>) {
        for (node, nlookup) in batch {
            self.forget(node, nlookup);
        }
    }

    /// Returns the attributes of a node.
    fn getattr(&self, ctx: &ReqCtx, fh: Option<FileHandle>) -> Result<AttrReply> {
        Err(Errno::ENOSYS)
    }

    /// Returns the attributes with birth time; `mask` is what the caller asked for (`STATX_*`). By default `getattr` is
    /// used.
    fn statx(&self, ctx: &ReqCtx, fh: Option<FileHandle>, mask: u32) -> Result<StatxReply> {
        Err(Errno::ENOSYS)
    }

    /// Changes attributes and returns the new ones.
    fn setattr(&self, ctx: &ReqCtx, set: &SetAttr) -> Result<AttrReply> {
        Err(Errno::ENOSYS)
    }

    /// Writes the target of a symbolic link into `out` (4095 bytes or more) and returns its length.
    fn readlink(&self, ctx: &ReqCtx, out: &mut [u8]) -> Result<usize> {
        Err(Errno::ENOSYS)
    }

    /// Creates a symbolic link.
    fn symlink(&self, ctx: &ReqCtx, name: &[u8], target: &[u8]) -> Result<Entry> {
        Err(Errno::ENOSYS)
    }

    /// Creates a file of any type but directory and symbolic link. `mode` includes the type.
    fn mknod(&self, ctx: &ReqCtx, name: &[u8], mode: u32, rdev: DeviceNumber, umask: u32) -> Result<Entry> {
        Err(Errno::ENOSYS)
    }

    /// Creates a directory. `mode` are permission bits only.
    fn mkdir(&self, ctx: &ReqCtx, name: &[u8], mode: u32, umask: u32) -> Result<Entry> {
        Err(Errno::ENOSYS)
    }

    /// Removes a name that is not a directory's. The file lives on while its node is looked up.
    fn unlink(&self, ctx: &ReqCtx, name: &[u8]) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// Removes an empty directory.
    fn rmdir(&self, ctx: &ReqCtx, name: &[u8]) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// Renames `name` in `ctx.node` to `new_name` in `new_parent`. Unknown flags were refused before.
    fn rename(&self, ctx: &ReqCtx, name: &[u8], new_parent: NodeId, new_name: &[u8], flags: RenameFlags) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// Binds `new_name` in the directory `ctx.node` to the existing `node`.
    fn link(&self, ctx: &ReqCtx, node: NodeId, new_name: &[u8]) -> Result<Entry> {
        Err(Errno::ENOSYS)
    }

    /// Opens a file. `ENOSYS` (the default) means: opening needs no server, never ask again.
    fn open(&self, ctx: &ReqCtx, args: &OpenArgs) -> Result<OpenReply> {
        Err(Errno::ENOSYS)
    }

    /// Fills `out` from `offset` on; returns the bytes filled, fewer only at the end of the file.
    fn read(&self, ctx: &ReqCtx, fh: FileHandle, offset: u64, out: &mut [u8]) -> Result<usize> {
        Err(Errno::ENOSYS)
    }

    /// Writes `data` at `offset`; returns the bytes written.
    fn write(&self, ctx: &ReqCtx, fh: FileHandle, offset: u64, data: &[u8], flags: WriteFlags) -> Result<usize> {
        Err(Errno::ENOSYS)
    }

    /// Called when a descriptor is closed. `ENOSYS` (the default) means: never ask again.
    fn flush(&self, ctx: &ReqCtx, fh: FileHandle) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// Called when the last descriptor of an open file is gone. Also comes, with handle zero, for files that `create`
    /// opened.
    fn release(&self, ctx: &ReqCtx, fh: FileHandle, flags: i32) -> Result<()> {
        Ok(())
    }

    /// Makes the file durable; with `datasync` only what is needed to read its data.
    fn fsync(&self, ctx: &ReqCtx, fh: FileHandle, datasync: bool) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// Opens a directory. `ENOSYS` (the default) means: never ask again.
    fn opendir(&self, ctx: &ReqCtx, args: &OpenArgs) -> Result<OpenReply> {
        Err(Errno::ENOSYS)
    }

    /// Adds the entries after `offset` to `out` until it is full. Offset zero is the start; any other came with the
    /// last entry taken. `.` and `..` are included.
    fn readdir(&self, ctx: &ReqCtx, fh: FileHandle, offset: u64, out: &mut DirBuf<'_>) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// Lists as `readdir` does, and each entry added is a lookup of its node. With `ENOSYS` (the default) `readdir` is
    /// used.
    fn readdirplus(&self, ctx: &ReqCtx, fh: FileHandle, offset: u64, out: &mut DirPlusBuf<'_>) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// Called when a directory is closed.
    fn releasedir(&self, ctx: &ReqCtx, fh: FileHandle) -> Result<()> {
        Ok(())
    }

    /// Makes the directory's entries durable.
    fn fsyncdir(&self, ctx: &ReqCtx, fh: FileHandle, datasync: bool) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// Returns sizes and free space.
    fn statfs(&self, ctx: &ReqCtx) -> Result<StatFs> {
        Err(Errno::ENOSYS)
    }

    /// Sets an extended attribute.
    fn setxattr(&self, ctx: &ReqCtx, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// Returns the length of an extended attribute and, if it fits into `out`, copies it there. An empty `out` asks
    /// for the length only; too small a one is answered `ERANGE` by the caller.
    fn getxattr(&self, ctx: &ReqCtx, name: &[u8], out: &mut [u8]) -> Result<usize> {
        Err(Errno::ENOSYS)
    }

    /// Returns the list of names, each ended by a NUL, with lengths handled as by `getxattr`.
    fn listxattr(&self, ctx: &ReqCtx, out: &mut [u8]) -> Result<usize> {
        Err(Errno::ENOSYS)
    }

    /// Removes an extended attribute.
    fn removexattr(&self, ctx: &ReqCtx, name: &[u8]) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// Checks access (`R_OK | W_OK | X_OK`); never asked on mounts with `default_permissions`.
    fn access(&self, ctx: &ReqCtx, mask: u32) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// Creates a file if the name does not exist, and opens it.
    fn create(&self, ctx: &ReqCtx, name: &[u8], args: &CreateArgs) -> Result<(Entry, OpenReply)> {
        Err(Errno::ENOSYS)
    }

    /// Creates a file without a name (`O_TMPFILE`) in the file system of the directory `ctx.node`, and opens it.
    fn tmpfile(&self, ctx: &ReqCtx, args: &CreateArgs) -> Result<(Entry, OpenReply)> {
        Err(Errno::ENOSYS)
    }

    /// Preallocates, zeroes or removes a range. Unknown mode bits were refused before; `len` is at least 1.
    fn fallocate(&self, ctx: &ReqCtx, fh: FileHandle, offset: u64, len: u64, mode: FallocateMode) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// Finds data or a hole at or after `offset`; beyond the end of the file `ENXIO`.
    fn lseek(&self, ctx: &ReqCtx, fh: FileHandle, offset: u64, target: SeekTarget) -> Result<u64> {
        Err(Errno::ENOSYS)
    }

    /// Copies between two files of this file system, sharing what can be shared; returns the bytes copied.
    fn copy_file_range(&self, ctx: &ReqCtx, range: &CopyRange) -> Result<u64> {
        Err(Errno::ENOSYS)
    }

    /// Runs an ioctl with sizes encoded in its number, at most 4 KiB each way. `out` has the size of the caller's
    /// buffer.
    fn ioctl(&self, ctx: &ReqCtx, args: &IoctlArgs<'_>, out: &mut [u8]) -> Result<IoctlReply> {
        Err(Errno::ENOTTY)
    }

    /// Makes the whole file system durable. Arrives on block-device mounts only.
    fn syncfs(&self, ctx: &ReqCtx) -> Result<()> {
        Err(Errno::ENOSYS)
    }
}
