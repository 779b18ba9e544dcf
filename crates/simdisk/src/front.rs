//! The directory with the disk in it: `disk`, and `stats` about it.
//!
//! A loop device with direct I/O turns each block request into one FUSE request of `disk` (two, where it is larger than
//! [`TRANSFER_BYTES_MAX`](crate::TRANSFER_BYTES_MAX)); its flushes arrive as fsync.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use moafs_disk::SECTOR;
use moafs_fuse::{
    AttrReply, DirBuf, DirPlusBuf, Entry, Errno, FOREVER, FallocateMode, FileAttr, FileHandle, FileSystem, NodeId,
    OpenArgs, OpenReply, OpenReplyFlags, ReqCtx, Result, SetAttr, StatFs, WriteFlags,
};
use parking_lot::Mutex;

use crate::host::Host;
use crate::queue::{Ask, Verb};
use crate::store::Store;
use crate::{About, DISK, STATS};

const DISK_NODE: NodeId = NodeId(2);
const STATS_NODE: NodeId = NodeId(3);

/// The files of the directory, in the order in which it lists them.
const FILES: [(&str, NodeId); 2] = [(DISK, DISK_NODE), (STATS, STATS_NODE)];

/// The FUSE file system of the directory: requests are answered by a drive and a store.
pub(crate) struct Front {
    host: Host,
    store: Store,
    about: About,
    /// The text that each open `stats` file shows, by file handle.
    texts: Mutex<BTreeMap<u64, Vec<u8>>>,
    next_handle: AtomicU64,
}

impl Front {
    /// Makes the directory for a disk whose requests wait in `host` and whose bytes lie in `store`.
    pub(crate) fn new(host: Host, store: Store, about: About) -> Front {
        Front { host, store, about, texts: Mutex::default(), next_handle: AtomicU64::new(1) }
    }

    fn attr(&self, node: NodeId) -> Result<FileAttr> {
        let (kind, perm, size) = match node {
            NodeId::ROOT => (libc::S_IFDIR, 0o755, 0),
            DISK_NODE => (libc::S_IFREG, 0o600, self.store.bytes()),
            STATS_NODE => (libc::S_IFREG, 0o444, 0),
            _ => return Err(Errno::ENOENT),
        };
        let nlink = if node == NodeId::ROOT { 2 } else { 1 };
        let blocks = size / SECTOR as u64;
        Ok(FileAttr { ino: node.0, size, blocks, mode: kind | perm, nlink, blksize: 4096, ..FileAttr::default() })
    }

    fn entry(&self, node: NodeId) -> Result<Entry> {
        Ok(Entry { node, generation: 0, attr: self.attr(node)?, entry_ttl: FOREVER, attr_ttl: FOREVER })
    }

    fn stats_text(&self) -> Vec<u8> {
        let text = serde_json::to_vec_pretty(&self.about.with(self.host.stats()));
        let mut text = text.unwrap_or_else(|error| format!("{{\"error\": \"{error}\"}}").into_bytes());
        text.push(b'\n');
        text
    }

    fn read_stats(&self, fh: FileHandle, offset: u64, out: &mut [u8]) -> Result<usize> {
        let texts = self.texts.lock();
        let text = texts.get(&fh.0).ok_or(Errno::EBADF)?;
        let rest = usize::try_from(offset).ok().and_then(|offset| text.get(offset..)).unwrap_or_default();
        let len = rest.len().min(out.len());
        out[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }
}

/// Passes on the error of the store: a full host file system must not look like a broken disk.
fn errno(error: io::Error) -> Errno {
    Errno::new(error.raw_os_error().unwrap_or(libc::EIO))
}

fn only_disk(ctx: &ReqCtx) -> Result<()> {
    if ctx.node == DISK_NODE { Ok(()) } else { Err(Errno::EPERM) }
}

/// Lists the directory from `offset` on, each entry with the offset behind it.
fn listing(ctx: &ReqCtx, offset: u64) -> Result<impl Iterator<Item = ((&'static str, NodeId), u64)>> {
    if ctx.node != NodeId::ROOT {
        return Err(Errno::EPERM);
    }
    let dots = [(".", NodeId::ROOT), ("..", NodeId::ROOT)];
    Ok(dots.into_iter().chain(FILES).zip(1..).skip(usize::try_from(offset).unwrap_or(usize::MAX)))
}

impl FileSystem for Front {
    fn keeps_open_state(&self) -> bool {
        true
    }

    fn lookup(&self, _: &ReqCtx, name: &[u8]) -> Result<Entry> {
        let found = FILES.iter().find(|(file, _)| file.as_bytes() == name);
        self.entry(found.ok_or(Errno::ENOENT)?.1)
    }

    fn getattr(&self, ctx: &ReqCtx, _: Option<FileHandle>) -> Result<AttrReply> {
        Ok(AttrReply { attr: self.attr(ctx.node)?, attr_ttl: FOREVER })
    }

    /// Accepts changes of times, which mean nothing here, and refuses others: the size of a disk is fixed.
    fn setattr(&self, ctx: &ReqCtx, set: &SetAttr) -> Result<AttrReply> {
        let attr = self.attr(ctx.node)?;
        let fixed = set.size.is_some_and(|size| size != attr.size);
        if fixed || set.mode.is_some() || set.uid.is_some() || set.gid.is_some() {
            return Err(Errno::EPERM);
        }
        Ok(AttrReply { attr, attr_ttl: FOREVER })
    }

    fn open(&self, ctx: &ReqCtx, _: &OpenArgs) -> Result<OpenReply> {
        match ctx.node {
            DISK_NODE => Ok(OpenReply { fh: FileHandle(0), flags: OpenReplyFlags::KEEP_CACHE }),
            STATS_NODE => {
                let fh = self.next_handle.fetch_add(1, Ordering::Relaxed);
                self.texts.lock().insert(fh, self.stats_text());
                // The text's length is known only here: the kernel must not go by the size in the
                // attributes.
                Ok(OpenReply { fh: FileHandle(fh), flags: OpenReplyFlags::DIRECT_IO })
            }
            _ => Err(Errno::ENOENT),
        }
    }

    fn release(&self, _: &ReqCtx, fh: FileHandle, _: i32) -> Result<()> {
        self.texts.lock().remove(&fh.0);
        Ok(())
    }

    fn read(&self, ctx: &ReqCtx, fh: FileHandle, offset: u64, out: &mut [u8]) -> Result<usize> {
        if ctx.node == STATS_NODE {
            return self.read_stats(fh, offset, out);
        }
        only_disk(ctx)?;
        let len = self.store.read(offset, out).map_err(errno)?;
        if len > 0 {
            self.host.ask(Ask::bytes(Verb::Read, offset, len as u64));
        }
        Ok(len)
    }

    fn write(&self, ctx: &ReqCtx, _: FileHandle, offset: u64, data: &[u8], _: WriteFlags) -> Result<usize> {
        only_disk(ctx)?;
        let len = self.store.write(offset, data).map_err(errno)?;
        if len == 0 && !data.is_empty() {
            return Err(Errno::ENOSPC);
        }
        if len > 0 {
            self.host.ask(Ask::bytes(Verb::Write, offset, len as u64));
        }
        Ok(len)
    }

    fn fsync(&self, ctx: &ReqCtx, _: FileHandle, _: bool) -> Result<()> {
        only_disk(ctx)?;
        self.host.ask(Ask::flush());
        Ok(())
    }

    /// Discards are not passed on: the kernel then writes the zeros itself, or leaves it.
    fn fallocate(&self, _: &ReqCtx, _: FileHandle, _: u64, _: u64, _: FallocateMode) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn opendir(&self, _: &ReqCtx, _: &OpenArgs) -> Result<OpenReply> {
        Ok(OpenReply::default())
    }

    fn readdir(&self, ctx: &ReqCtx, _: FileHandle, offset: u64, out: &mut DirBuf<'_>) -> Result<()> {
        for ((name, node), next) in listing(ctx, offset)? {
            if !out.add(node.0, next, self.attr(node)?.mode, name.as_bytes()) {
                break;
            }
        }
        Ok(())
    }

    fn readdirplus(&self, ctx: &ReqCtx, _: FileHandle, offset: u64, out: &mut DirPlusBuf<'_>) -> Result<()> {
        for ((name, node), next) in listing(ctx, offset)? {
            if !out.add(&self.entry(node)?, next, name.as_bytes()) {
                break;
            }
        }
        Ok(())
    }

    fn statfs(&self, _: &ReqCtx) -> Result<StatFs> {
        Ok(StatFs { bsize: 4096, frsize: 4096, namelen: 255, blocks: self.store.bytes() / 4096, ..StatFs::default() })
    }
}
