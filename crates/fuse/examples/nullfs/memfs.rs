//! A file system in memory: keeps what it is given, locks per node, and does nothing slowly. Its speed is the limit
//! that other file systems on this transport are compared with, and the end-to-end tests use it.
//!
//! Lock order: namespace (rename, rmdir), then directories (several only under the namespace lock), then one file.
//! The table's shards are leaves.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use moafs_fuse::{
    AttrReply, CopyRange, CreateArgs, DeviceNumber, DirBuf, DirPlusBuf, Entry, Errno, FOREVER, FallocateMode, FileAttr,
    FileHandle, FileSystem, IoctlArgs, IoctlReply, NodeId, OpenReply, RenameFlags, ReqCtx, Result, SeekTarget, SetAttr,
    SetTime, StatFs, StatxReply, Timestamp, WriteFlags, XattrFlags,
};
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};

/// Size of a chunk of a file, bytes. Each chunk is as long as its last written byte.
const CHUNK_LEN: u64 = 128 << 10;
const BLOCK_LEN: u32 = 4096;
const SHARDS: u64 = 64;
/// Most entries that one listing takes out of a directory before it releases the lock.
const LISTING_MAX: usize = 512;
/// Size that `statfs` reports, in blocks and inodes.
const CAPACITY: u64 = 1 << 30;

const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
/// An ioctl that the kernel sends before it sets flags.
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FSXATTR_LEN: usize = 28;

/// The file system.
pub(crate) struct MemFs {
    shards: Vec<RwLock<HashMap<u64, Arc<Node>>>>,
    next_node: AtomicU64,
    namespace: Mutex<()>,
    slow_lookup: Option<(Vec<u8>, Duration)>,
}

struct Node {
    id: u64,
    lookups: AtomicU64,
    state: RwLock<State>,
}

struct State {
    attr: FileAttr,
    btime: Timestamp,
    inode_flags: u32,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    body: Body,
}

enum Body {
    File(Chunks),
    Directory(Directory),
    Symlink(Vec<u8>),
    Special,
}

#[derive(Default)]
struct Chunks(BTreeMap<u64, Vec<u8>>);

struct Directory {
    parent: u64,
    names: HashMap<Vec<u8>, u64>,
    /// Entries by cookie; cookies grow with time and are never used twice.
    order: BTreeMap<u64, Listed>,
    next_cookie: u64,
}

#[derive(Clone)]
struct Listed {
    name: Vec<u8>,
    node: u64,
    mode: u32,
}

/// Cookies of `.` and `..`; entries follow.
const COOKIE_SELF: u64 = 1;
const COOKIE_PARENT: u64 = 2;

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { secs: since.as_secs() as i64, nanos: since.subsec_nanos() }
}

impl Default for MemFs {
    fn default() -> Self {
        let fs = Self {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            next_node: AtomicU64::new(NodeId::ROOT.0),
            namespace: Mutex::new(()),
            slow_lookup: None,
        };
        let mode = libc::S_IFDIR | 0o755;
        let root = fs.new_node(mode, 0, 0, Body::Directory(Directory::new(NodeId::ROOT.0)));
        root.lookups.store(1, Ordering::Relaxed);
        fs
    }
}

impl MemFs {
    /// Makes lookups of `name` take `delay`, for tests of other calls during that time.
    #[allow(dead_code, reason = "for tests; the example does without")]
    pub(crate) fn with_slow_lookup(name: &[u8], delay: Duration) -> Self {
        Self { slow_lookup: Some((name.to_vec(), delay)), ..Self::default() }
    }

    /// Returns the number of nodes that are named or that the kernel knows.
    #[allow(dead_code, reason = "for tests; the example does without")]
    pub(crate) fn nodes(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }

    fn shard(&self, id: u64) -> &RwLock<HashMap<u64, Arc<Node>>> {
        &self.shards[(id % SHARDS) as usize]
    }

    fn node(&self, id: u64) -> Result<Arc<Node>> {
        self.shard(id).read().get(&id).cloned().ok_or(Errno::ESTALE)
    }

    fn new_node(&self, mode: u32, uid: u32, gid: u32, body: Body) -> Arc<Node> {
        let id = self.next_node.fetch_add(1, Ordering::Relaxed);
        let time = now();
        let is_dir = mode & libc::S_IFMT == libc::S_IFDIR;
        let attr = FileAttr {
            ino: id,
            atime: time,
            mtime: time,
            ctime: time,
            mode,
            nlink: if is_dir { 2 } else { 1 },
            uid,
            gid,
            blksize: BLOCK_LEN,
            ..FileAttr::default()
        };
        let state = State { attr, btime: time, inode_flags: 0, xattrs: BTreeMap::new(), body };
        let node = Arc::new(Node { id, lookups: AtomicU64::new(0), state: RwLock::new(state) });
        self.shard(id).write().insert(id, Arc::clone(&node));
        node
    }

    /// Creates a node about to be bound in `parent`, owned as POSIX wants it.
    fn new_child(&self, ctx: &ReqCtx, parent: &State, mode: u32, umask: u32, body: Body) -> Arc<Node> {
        let inherits = parent.attr.mode & libc::S_ISGID != 0;
        let is_dir = mode & libc::S_IFMT == libc::S_IFDIR;
        let gid = if inherits { parent.attr.gid } else { ctx.gid };
        let setgid = if inherits && is_dir { libc::S_ISGID } else { 0 };
        self.new_node(mode & !umask | setgid, ctx.uid, gid, body)
    }

    fn bind_new(&self, ctx: &ReqCtx, name: &[u8], mode: u32, umask: u32, body: Body) -> Result<Arc<Node>> {
        let parent = self.node(ctx.node.0)?;
        let mut state = parent.state.write();
        if state.attr.nlink == 0 {
            return Err(Errno::ENOENT);
        }
        if state.directory()?.names.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        let node = self.new_child(ctx, &state, mode, umask, body);
        let is_dir = mode & libc::S_IFMT == libc::S_IFDIR;
        state.directory_mut()?.bind(name, node.id, mode);
        state.attr.nlink += u32::from(is_dir);
        state.touch_contents();
        node.lookups.fetch_add(1, Ordering::Relaxed);
        Ok(node)
    }

    fn entry(&self, node: &Node) -> Entry {
        Entry {
            node: NodeId(node.id),
            generation: 0,
            attr: node.state.read().shown_attr(),
            entry_ttl: FOREVER,
            attr_ttl: FOREVER,
        }
    }

    fn attr_reply(&self, state: &State) -> AttrReply {
        AttrReply { attr: state.shown_attr(), attr_ttl: FOREVER }
    }

    /// Takes one name away from a node; the node is removed when the kernel has no lookups of it either.
    fn drop_link(&self, node: &Node) {
        let mut state = node.state.write();
        let is_dir = matches!(state.body, Body::Directory(_));
        state.attr.nlink = if is_dir { 0 } else { state.attr.nlink.saturating_sub(1) };
        state.attr.ctime = now();
        let nlink = state.attr.nlink;
        drop(state);
        if nlink == 0 && node.lookups.load(Ordering::Acquire) == 0 {
            self.shard(node.id).write().remove(&node.id);
        }
    }

    fn read_file<T>(&self, id: NodeId, read: impl FnOnce(&Chunks, u64) -> Result<T>) -> Result<T> {
        let node = self.node(id.0)?;
        let state = node.state.read();
        match &state.body {
            Body::File(chunks) => read(chunks, state.attr.size),
            Body::Directory(_) => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    fn change_file<T>(&self, id: NodeId, change: impl FnOnce(&mut Chunks, &mut u64) -> Result<T>) -> Result<T> {
        let node = self.node(id.0)?;
        let mut guard = node.state.write();
        let state = &mut *guard;
        let Body::File(chunks) = &mut state.body else { return Err(Errno::EINVAL) };
        let result = change(chunks, &mut state.attr.size)?;
        state.touch_contents();
        Ok(result)
    }

    /// Returns the entries that a listing from `offset` on shows next, `.` and `..` included.
    fn listing(&self, id: NodeId, offset: u64) -> Result<Vec<(u64, Listed)>> {
        let node = self.node(id.0)?;
        let state = node.state.read();
        let directory = state.directory()?;
        let dot = |name: &[u8], node| Listed { name: name.to_vec(), node, mode: libc::S_IFDIR };
        let dots = [(COOKIE_SELF, dot(b".", id.0)), (COOKIE_PARENT, dot(b"..", directory.parent))];
        let from = offset.saturating_add(1).max(COOKIE_PARENT + 1);
        let entries = directory.order.range(from..).map(|(&cookie, listed)| (cookie, listed.clone()));
        Ok(dots.into_iter().filter(|&(cookie, _)| cookie > offset).chain(entries).take(LISTING_MAX).collect())
    }
}

impl State {
    fn directory(&self) -> Result<&Directory> {
        match &self.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn directory_mut(&mut self) -> Result<&mut Directory> {
        match &mut self.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn touch_contents(&mut self) {
        self.attr.mtime = now();
        self.attr.ctime = self.attr.mtime;
    }

    fn shown_attr(&self) -> FileAttr {
        let blocks = match &self.body {
            Body::File(chunks) => chunks.0.values().map(|chunk| chunk.len() as u64).sum::<u64>().div_ceil(512),
            _ => 0,
        };
        FileAttr { blocks, ..self.attr }
    }

    fn kill_suidgid(&mut self) {
        self.attr.mode &= !libc::S_ISUID;
        if self.attr.mode & libc::S_IXGRP != 0 {
            self.attr.mode &= !libc::S_ISGID;
        }
    }
}

impl Directory {
    fn new(parent: u64) -> Self {
        Self { parent, names: HashMap::new(), order: BTreeMap::new(), next_cookie: COOKIE_PARENT + 1 }
    }

    fn get(&self, name: &[u8]) -> Result<(u64, u32)> {
        let cookie = self.names.get(name).ok_or(Errno::ENOENT)?;
        let listed = &self.order[cookie];
        Ok((listed.node, listed.mode))
    }

    fn bind(&mut self, name: &[u8], node: u64, mode: u32) {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.names.insert(name.to_vec(), cookie);
        self.order.insert(cookie, Listed { name: name.to_vec(), node, mode });
    }

    fn unbind(&mut self, name: &[u8]) {
        if let Some(cookie) = self.names.remove(name) {
            self.order.remove(&cookie);
        }
    }
}

/// Cuts `offset..offset + len` at chunk borders: chunk number, offset inside it, length.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let mut at = offset;
    let end = offset + len;
    std::iter::from_fn(move || {
        let piece = (end - at).min(CHUNK_LEN - at % CHUNK_LEN);
        let cut = (at / CHUNK_LEN, (at % CHUNK_LEN) as usize, piece as usize);
        at += piece;
        (piece > 0).then_some(cut)
    })
}

impl Chunks {
    fn read(&self, size: u64, offset: u64, out: &mut [u8]) -> usize {
        let len = size.saturating_sub(offset).min(out.len() as u64);
        let mut rest = &mut out[..len as usize];
        for (number, start, piece) in pieces(offset, len) {
            let (here, after) = rest.split_at_mut(piece);
            let kept = self.0.get(&number).and_then(|chunk| chunk.get(start..)).unwrap_or_default();
            let (data, hole) = here.split_at_mut(kept.len().min(piece));
            data.copy_from_slice(&kept[..data.len()]);
            hole.fill(0);
            rest = after;
        }
        len as usize
    }

    fn write(&mut self, offset: u64, mut data: &[u8]) {
        for (number, start, piece) in pieces(offset, data.len() as u64) {
            let (here, after) = data.split_at(piece);
            let chunk = self.0.entry(number).or_default();
            if chunk.len() < start {
                chunk.resize(start, 0);
            }
            let overlap = (chunk.len() - start).min(piece);
            chunk[start..start + overlap].copy_from_slice(&here[..overlap]);
            chunk.extend_from_slice(&here[overlap..]);
            data = after;
        }
    }

    fn clear(&mut self, offset: u64, len: u64) {
        let end = offset + len;
        let first = offset / CHUNK_LEN;
        let touched: Vec<u64> = self.0.range(first..end.div_ceil(CHUNK_LEN)).map(|(&number, _)| number).collect();
        for number in touched {
            let begin = number * CHUNK_LEN;
            let from = offset.saturating_sub(begin) as usize;
            let to = (end - begin).min(CHUNK_LEN) as usize;
            let Some(chunk) = self.0.get_mut(&number) else { continue };
            if to >= chunk.len() {
                chunk.truncate(from);
            } else {
                chunk[from..to].fill(0);
            }
            if chunk.is_empty() {
                self.0.remove(&number);
            }
        }
    }

    fn truncate(&mut self, size: u64) {
        self.0.split_off(&size.div_ceil(CHUNK_LEN));
        if let Some(last) = self.0.get_mut(&(size / CHUNK_LEN)) {
            last.truncate((size % CHUNK_LEN) as usize);
        }
    }

    fn next_data(&self, offset: u64) -> Option<u64> {
        self.0
            .range(offset / CHUNK_LEN..)
            .map(|(number, chunk)| (number * CHUNK_LEN, chunk.len() as u64))
            .find(|(begin, len)| begin + len > offset)
            .map(|(begin, _)| begin.max(offset))
    }

    fn next_hole(&self, size: u64, offset: u64) -> u64 {
        let mut at = offset;
        for (number, chunk) in self.0.range(offset / CHUNK_LEN..) {
            let begin = number * CHUNK_LEN;
            if begin > at {
                break;
            }
            at = at.max(begin + chunk.len() as u64);
        }
        at.min(size)
    }
}

fn set_time(slot: &mut Timestamp, time: Option<SetTime>) {
    match time {
        Some(SetTime::Now) => *slot = now(),
        Some(SetTime::At(time)) => *slot = time,
        None => {}
    }
}

fn copy_value(value: &[u8], out: &mut [u8]) -> usize {
    if let Some(out) = out.get_mut(..value.len()) {
        out.copy_from_slice(value);
    }
    value.len()
}

impl FileSystem for MemFs {
    fn lookup(&self, ctx: &ReqCtx, name: &[u8]) -> Result<Entry> {
        if let Some((_, delay)) = self.slow_lookup.as_ref().filter(|(slow, _)| slow == name) {
            std::thread::sleep(*delay);
        }
        let parent = self.node(ctx.node.0)?;
        let state = parent.state.read();
        let (id, _) = match state.directory()?.get(name) {
            Ok(found) => found,
            Err(_) => return Ok(Entry::negative(FOREVER)),
        };
        let node = self.node(id)?;
        node.lookups.fetch_add(1, Ordering::Relaxed);
        drop(state);
        Ok(self.entry(&node))
    }

    fn forget(&self, node: NodeId, nlookup: u64) {
        let Ok(node) = self.node(node.0) else { return };
        let before = node.lookups.fetch_sub(nlookup, Ordering::AcqRel);
        if before == nlookup && node.state.read().attr.nlink == 0 {
            self.shard(node.id).write().remove(&node.id);
        }
    }

    fn getattr(&self, ctx: &ReqCtx, _fh: Option<FileHandle>) -> Result<AttrReply> {
        let node = self.node(ctx.node.0)?;
        let state = node.state.read();
        Ok(self.attr_reply(&state))
    }

    fn statx(&self, ctx: &ReqCtx, _fh: Option<FileHandle>, _mask: u32) -> Result<StatxReply> {
        let node = self.node(ctx.node.0)?;
        let state = node.state.read();
        Ok(StatxReply {
            attr: state.shown_attr(),
            btime: Some(state.btime),
            attributes: 0,
            attributes_mask: 0,
            attr_ttl: FOREVER,
        })
    }

    fn setattr(&self, ctx: &ReqCtx, set: &SetAttr) -> Result<AttrReply> {
        let node = self.node(ctx.node.0)?;
        let mut guard = node.state.write();
        let state = &mut *guard;
        if let Some(size) = set.size {
            let Body::File(chunks) = &mut state.body else { return Err(Errno::EINVAL) };
            chunks.truncate(size);
            state.attr.size = size;
            state.touch_contents();
        }
        if set.kill_suidgid {
            state.kill_suidgid();
        }
        let attr = &mut state.attr;
        attr.mode = set.mode.map_or(attr.mode, |mode| attr.mode & libc::S_IFMT | mode & !libc::S_IFMT);
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        set_time(&mut attr.atime, set.atime);
        set_time(&mut attr.mtime, set.mtime);
        attr.ctime = set.ctime.unwrap_or_else(now);
        Ok(self.attr_reply(state))
    }

    fn readlink(&self, ctx: &ReqCtx, out: &mut [u8]) -> Result<usize> {
        let node = self.node(ctx.node.0)?;
        match &node.state.read().body {
            Body::Symlink(target) => Ok(copy_value(target, out)),
            _ => Err(Errno::EINVAL),
        }
    }

    fn symlink(&self, ctx: &ReqCtx, name: &[u8], target: &[u8]) -> Result<Entry> {
        let node = self.bind_new(ctx, name, libc::S_IFLNK | 0o777, 0, Body::Symlink(target.to_vec()))?;
        node.state.write().attr.size = target.len() as u64;
        Ok(self.entry(&node))
    }

    fn mknod(&self, ctx: &ReqCtx, name: &[u8], mode: u32, rdev: DeviceNumber, umask: u32) -> Result<Entry> {
        let is_file = mode & libc::S_IFMT == libc::S_IFREG;
        let body = if is_file { Body::File(Chunks::default()) } else { Body::Special };
        let node = self.bind_new(ctx, name, mode, umask, body)?;
        node.state.write().attr.rdev = rdev;
        Ok(self.entry(&node))
    }

    fn mkdir(&self, ctx: &ReqCtx, name: &[u8], mode: u32, umask: u32) -> Result<Entry> {
        let body = Body::Directory(Directory::new(ctx.node.0));
        let node = self.bind_new(ctx, name, libc::S_IFDIR | mode, umask, body)?;
        Ok(self.entry(&node))
    }

    fn unlink(&self, ctx: &ReqCtx, name: &[u8]) -> Result<()> {
        let parent = self.node(ctx.node.0)?;
        let mut state = parent.state.write();
        let (id, mode) = state.directory()?.get(name)?;
        if mode & libc::S_IFMT == libc::S_IFDIR {
            return Err(Errno::EISDIR);
        }
        state.directory_mut()?.unbind(name);
        state.touch_contents();
        drop(state);
        self.drop_link(&*self.node(id)?);
        Ok(())
    }

    fn rmdir(&self, ctx: &ReqCtx, name: &[u8]) -> Result<()> {
        let _namespace = self.namespace.lock();
        let parent = self.node(ctx.node.0)?;
        let mut state = parent.state.write();
        let (id, _) = state.directory()?.get(name)?;
        let node = self.node(id)?;
        if !node.state.read().directory()?.names.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        state.directory_mut()?.unbind(name);
        state.attr.nlink -= 1;
        state.touch_contents();
        drop(state);
        self.drop_link(&node);
        Ok(())
    }

    fn rename(&self, ctx: &ReqCtx, name: &[u8], new_parent: NodeId, new_name: &[u8], flags: RenameFlags) -> Result<()> {
        if flags.contains(RenameFlags::WHITEOUT) {
            return Err(Errno::EINVAL);
        }
        let _namespace = self.namespace.lock();
        let from = self.node(ctx.node.0)?;
        let to = self.node(new_parent.0)?;
        let replaced = {
            let mut pair = DirectoryPair::lock(&from, &to);
            let (moved, moved_mode) = pair.from().directory()?.get(name)?;
            let target = pair.to().directory()?.get(new_name).ok();
            // The kernel lets no such rename through.
            let locked = [from.id, to.id];
            if locked.contains(&moved) || target.is_some_and(|(id, _)| locked.contains(&id)) {
                return Err(Errno::EINVAL);
            }
            if target.is_some() && flags.contains(RenameFlags::NOREPLACE) {
                return Err(Errno::EEXIST);
            }
            if let Some((id, mode)) = target.filter(|_| flags.contains(RenameFlags::EXCHANGE)) {
                pair.put(self, name, id, mode, false)?;
                pair.put(self, new_name, moved, moved_mode, true)?;
                return Ok(());
            }
            if flags.contains(RenameFlags::EXCHANGE) {
                return Err(Errno::ENOENT);
            }
            if target.is_some_and(|(id, _)| id == moved) {
                return Ok(());
            }
            if let Some((id, mode)) = target.filter(|(_, mode)| mode & libc::S_IFMT == libc::S_IFDIR) {
                if !self.node(id)?.state.read().directory()?.names.is_empty() {
                    return Err(Errno::ENOTEMPTY);
                }
                pair.to().attr.nlink -= u32::from(mode & libc::S_IFMT == libc::S_IFDIR);
            }
            pair.remove(name, moved_mode)?;
            pair.put_new(self, new_name, moved, moved_mode)?;
            target
        };
        if let Some((id, _)) = replaced {
            self.drop_link(&*self.node(id)?);
        }
        Ok(())
    }

    fn link(&self, ctx: &ReqCtx, node: NodeId, new_name: &[u8]) -> Result<Entry> {
        let parent = self.node(ctx.node.0)?;
        let node = self.node(node.0)?;
        if matches!(node.state.read().body, Body::Directory(_)) {
            return Err(Errno::EPERM);
        }
        let mut state = parent.state.write();
        if state.directory()?.names.contains_key(new_name) {
            return Err(Errno::EEXIST);
        }
        let mode = {
            let mut linked = node.state.write();
            linked.attr.nlink += 1;
            linked.attr.ctime = now();
            linked.attr.mode
        };
        state.directory_mut()?.bind(new_name, node.id, mode);
        state.touch_contents();
        node.lookups.fetch_add(1, Ordering::Relaxed);
        drop(state);
        Ok(self.entry(&node))
    }

    fn read(&self, ctx: &ReqCtx, _fh: FileHandle, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.read_file(ctx.node, |chunks, size| Ok(chunks.read(size, offset, out)))
    }

    fn write(&self, ctx: &ReqCtx, _fh: FileHandle, offset: u64, data: &[u8], flags: WriteFlags) -> Result<usize> {
        if flags.contains(WriteFlags::KILL_SUIDGID) {
            self.node(ctx.node.0)?.state.write().kill_suidgid();
        }
        self.change_file(ctx.node, |chunks, size| {
            chunks.write(offset, data);
            *size = (*size).max(offset + data.len() as u64);
            Ok(data.len())
        })
    }

    fn fsync(&self, _ctx: &ReqCtx, _fh: FileHandle, _datasync: bool) -> Result<()> {
        Ok(())
    }

    fn fsyncdir(&self, _ctx: &ReqCtx, _fh: FileHandle, _datasync: bool) -> Result<()> {
        Ok(())
    }

    fn readdir(&self, ctx: &ReqCtx, _fh: FileHandle, offset: u64, out: &mut DirBuf<'_>) -> Result<()> {
        for (cookie, listed) in self.listing(ctx.node, offset)? {
            if !out.add(listed.node, cookie, listed.mode, &listed.name) {
                break;
            }
        }
        Ok(())
    }

    fn readdirplus(&self, ctx: &ReqCtx, _fh: FileHandle, offset: u64, out: &mut DirPlusBuf<'_>) -> Result<()> {
        for (cookie, listed) in self.listing(ctx.node, offset)? {
            if !out.fits(listed.name.len()) {
                break;
            }
            let node = self.node(listed.node).ok().filter(|_| cookie > COOKIE_PARENT);
            let added = match node {
                Some(node) => {
                    node.lookups.fetch_add(1, Ordering::Relaxed);
                    out.add(&self.entry(&node), cookie, &listed.name)
                }
                None => out.add_name(listed.node, cookie, listed.mode, &listed.name),
            };
            debug_assert!(added, "room was asked for");
        }
        Ok(())
    }

    fn statfs(&self, _ctx: &ReqCtx) -> Result<StatFs> {
        Ok(StatFs {
            blocks: CAPACITY,
            bfree: CAPACITY / 2,
            bavail: CAPACITY / 2,
            files: CAPACITY,
            ffree: CAPACITY / 2,
            bsize: BLOCK_LEN,
            namelen: 255,
            frsize: BLOCK_LEN,
        })
    }

    fn setxattr(&self, ctx: &ReqCtx, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        if name.starts_with(b"system.") {
            return Err(Errno::EOPNOTSUPP);
        }
        let node = self.node(ctx.node.0)?;
        let mut state = node.state.write();
        match state.xattrs.contains_key(name) {
            true if flags.contains(XattrFlags::CREATE) => return Err(Errno::EEXIST),
            false if flags.contains(XattrFlags::REPLACE) => return Err(Errno::ENODATA),
            _ => {}
        }
        state.xattrs.insert(name.to_vec(), value.to_vec());
        state.attr.ctime = now();
        Ok(())
    }

    fn getxattr(&self, ctx: &ReqCtx, name: &[u8], out: &mut [u8]) -> Result<usize> {
        let node = self.node(ctx.node.0)?;
        let state = node.state.read();
        let value = state.xattrs.get(name).ok_or(Errno::ENODATA)?;
        Ok(copy_value(value, out))
    }

    fn listxattr(&self, ctx: &ReqCtx, out: &mut [u8]) -> Result<usize> {
        let node = self.node(ctx.node.0)?;
        let state = node.state.read();
        let list: Vec<u8> = state.xattrs.keys().flat_map(|name| name.iter().chain(b"\0")).copied().collect();
        Ok(copy_value(&list, out))
    }

    fn removexattr(&self, ctx: &ReqCtx, name: &[u8]) -> Result<()> {
        let node = self.node(ctx.node.0)?;
        let mut state = node.state.write();
        state.xattrs.remove(name).ok_or(Errno::ENODATA)?;
        state.attr.ctime = now();
        Ok(())
    }

    fn tmpfile(&self, ctx: &ReqCtx, args: &CreateArgs) -> Result<(Entry, OpenReply)> {
        let parent = self.node(ctx.node.0)?;
        let node = self.new_child(ctx, &parent.state.read(), args.mode, args.umask, Body::File(Chunks::default()));
        node.state.write().attr.nlink = 0;
        node.lookups.fetch_add(1, Ordering::Relaxed);
        Ok((self.entry(&node), OpenReply::default()))
    }

    fn fallocate(&self, ctx: &ReqCtx, _fh: FileHandle, offset: u64, len: u64, mode: FallocateMode) -> Result<()> {
        let keep_size = mode.contains(FallocateMode::KEEP_SIZE);
        let clear = mode.intersects(FallocateMode::PUNCH_HOLE | FallocateMode::ZERO_RANGE);
        let known = FallocateMode::KEEP_SIZE | FallocateMode::PUNCH_HOLE | FallocateMode::ZERO_RANGE;
        if !(mode - known).is_empty() {
            return Err(Errno::EOPNOTSUPP);
        }
        self.change_file(ctx.node, |chunks, size| {
            if clear {
                chunks.clear(offset, len);
            }
            if !keep_size {
                *size = (*size).max(offset + len);
            }
            Ok(())
        })
    }

    fn lseek(&self, ctx: &ReqCtx, _fh: FileHandle, offset: u64, target: SeekTarget) -> Result<u64> {
        self.read_file(ctx.node, |chunks, size| {
            if offset >= size {
                return Err(Errno::ENXIO);
            }
            match target {
                SeekTarget::Data => chunks.next_data(offset).ok_or(Errno::ENXIO),
                SeekTarget::Hole => Ok(chunks.next_hole(size, offset)),
            }
        })
    }

    fn copy_file_range(&self, ctx: &ReqCtx, range: &CopyRange) -> Result<u64> {
        let mut data = vec![0; range.len.min(CHUNK_LEN * 8) as usize];
        let len = self.read_file(ctx.node, |chunks, size| Ok(chunks.read(size, range.offset_in, &mut data)))?;
        self.change_file(range.node_out, |chunks, size| {
            chunks.write(range.offset_out, &data[..len]);
            *size = (*size).max(range.offset_out + len as u64);
            Ok(len as u64)
        })
    }

    fn ioctl(&self, ctx: &ReqCtx, args: &IoctlArgs<'_>, out: &mut [u8]) -> Result<IoctlReply> {
        let node = self.node(ctx.node.0)?;
        match args.cmd {
            FS_IOC_GETFLAGS => {
                let flags = node.state.read().inode_flags.to_le_bytes();
                let out = out.get_mut(..flags.len()).ok_or(Errno::EINVAL)?;
                out.copy_from_slice(&flags);
                Ok(IoctlReply { result: 0, len: flags.len() })
            }
            FS_IOC_SETFLAGS => {
                let flags = args.input.first_chunk().ok_or(Errno::EINVAL)?;
                node.state.write().inode_flags = u32::from_le_bytes(*flags);
                Ok(IoctlReply::default())
            }
            FS_IOC_FSGETXATTR => {
                out.get_mut(..FSXATTR_LEN).ok_or(Errno::EINVAL)?.fill(0);
                Ok(IoctlReply { result: 0, len: FSXATTR_LEN })
            }
            _ => Err(Errno::ENOTTY),
        }
    }

    fn syncfs(&self, _ctx: &ReqCtx) -> Result<()> {
        Ok(())
    }
}

/// The locked directories of a rename: two, or the same one.
struct DirectoryPair<'a> {
    from: RwLockWriteGuard<'a, State>,
    to: Option<RwLockWriteGuard<'a, State>>,
    from_id: u64,
    to_id: u64,
}

impl<'a> DirectoryPair<'a> {
    /// Locks both directories. The caller holds the namespace lock, so no other pair is being locked.
    fn lock(from: &'a Node, to: &'a Node) -> Self {
        let second = (from.id != to.id).then(|| to.state.write());
        Self { from: from.state.write(), to: second, from_id: from.id, to_id: to.id }
    }

    fn from(&mut self) -> &mut State {
        &mut self.from
    }

    fn to(&mut self) -> &mut State {
        self.to.as_deref_mut().unwrap_or(&mut self.from)
    }

    fn remove(&mut self, name: &[u8], mode: u32) -> Result<()> {
        let is_dir = mode & libc::S_IFMT == libc::S_IFDIR;
        self.from.directory_mut()?.unbind(name);
        self.from.attr.nlink -= u32::from(is_dir);
        self.from.touch_contents();
        Ok(())
    }

    fn put_new(&mut self, fs: &MemFs, name: &[u8], id: u64, mode: u32) -> Result<()> {
        self.to().attr.nlink += u32::from(mode & libc::S_IFMT == libc::S_IFDIR);
        self.put(fs, name, id, mode, true)
    }

    /// Binds `name` to `id` in one of the two; a moved directory gets its new parent.
    fn put(&mut self, fs: &MemFs, name: &[u8], id: u64, mode: u32, in_target: bool) -> Result<()> {
        let parent = if in_target { self.to_id } else { self.from_id };
        let state = if in_target { self.to() } else { self.from() };
        let directory = state.directory_mut()?;
        directory.unbind(name);
        directory.bind(name, id, mode);
        state.touch_contents();
        if mode & libc::S_IFMT == libc::S_IFDIR && id != parent {
            fs.node(id)?.state.write().directory_mut()?.parent = parent;
        }
        Ok(())
    }
}
