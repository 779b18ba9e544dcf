//! Decodes a request, calls the file system, and encodes the result. No other module knows opcodes.
//!
//! Invariants:
//! - every request that takes a reply gets exactly one, also when the handler panics;
//! - what [`FileSystem`] promises about names, offsets and lengths was checked here;
//! - nothing is allocated.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::abi::{self, Opcode, Wire};
use crate::dirbuf::{DirBuf, DirPlusBuf};
use crate::errno::Errno;
use crate::exchange::{Exchange, MemoryExchange};
use crate::fs::{FileSystem, Result};
use crate::init::InitFlags;
use crate::interrupt::Interrupts;
use crate::op_times::OpTimes;
use crate::types::{
    AttrReply, CopyRange, CreateArgs, DeviceNumber, Entry, FallocateMode, FileHandle, IoctlArgs, NodeId, OpenArgs,
    OpenReply, RenameFlags, ReqCtx, SeekTarget, SetAttr, WriteFlags, XattrFlags,
};

/// Longest name of a directory entry or extended attribute, bytes.
const NAME_LEN_MAX: usize = 255;
/// Longest target of a symbolic link: `PATH_MAX` without its NUL, bytes.
const TARGET_LEN_MAX: usize = 4095;
/// Most bytes that an ioctl carries each way. The largest in use here, `FS_IOC_FSSETXATTR`, takes 28.
const IOCTL_LEN_MAX: usize = 4096;
/// Longest copy that the 32-bit reply of the older COPY_FILE_RANGE can tell: whole pages, in bytes.
const COPY_LEN_MAX_32: u64 = !0xfff_u32 as u64;

/// Feeds requests to a file system.
///
/// A session does this by itself. On its own it serves tests: [`answer`](Self::answer) takes a request as the kernel
/// would send it.
pub struct Dispatcher<F> {
    fs: Arc<F>,
    agreed: InitFlags,
    interrupts: Interrupts,
    times: Arc<OpTimes>,
    destroyed: AtomicBool,
}

impl<F: FileSystem> Dispatcher<F> {
    /// Creates a dispatcher for `fs` and a kernel with which `agreed` was agreed.
    pub fn new(fs: Arc<F>, agreed: InitFlags) -> Self {
        let (interrupts, times) = (Interrupts::default(), Arc::default());
        Self { fs, agreed, interrupts, times, destroyed: AtomicBool::new(false) }
    }

    /// Answers one request in memory, as read from /dev/fuse. `reply` takes the reply with at most `capacity` bytes
    /// behind its head, and is left empty if the request takes none. Returns false if the bytes are no request at all.
    pub fn answer(&self, request: &[u8], reply: &mut Vec<u8>, capacity: usize) -> bool {
        reply.clear();
        let Some(exchange) = MemoryExchange::new(request, reply, capacity) else {
            return false;
        };
        self.dispatch(exchange);
        true
    }

    pub(crate) fn fs(&self) -> &Arc<F> {
        &self.fs
    }

    pub(crate) fn times(&self) -> &Arc<OpTimes> {
        &self.times
    }

    /// Calls the file system's `destroy`, unless that was done before.
    pub(crate) fn destroy_once(&self) {
        if !self.destroyed.swap(true, Ordering::AcqRel) {
            self.fs.destroy();
        }
    }

    /// Returns the bytes of an operation's fixed argument, as agreed with the kernel.
    fn arg_len(&self, opcode: Opcode) -> usize {
        match opcode {
            Opcode::Setxattr if !self.agreed.contains(InitFlags::SETXATTR_EXT) => abi::SETXATTR_IN_LEN_SHORT,
            _ => opcode.arg_len(),
        }
    }

    /// Answers one request.
    pub(crate) fn dispatch<E: Exchange>(&self, exchange: E) {
        let (operation, since) = (exchange.header().opcode, Instant::now());
        let pending = Pending(Some(exchange));
        // A panic unwinds through `Pending`, which replies; the panic hook has printed the message. The file system is
        // shared between threads anyway, so it must hold its own invariants across a panic.
        let _ = catch_unwind(AssertUnwindSafe(|| self.run(pending)));
        self.times.note(operation, since.elapsed());
    }

    fn run<E: Exchange>(&self, exchange: Pending<E>) {
        let header = exchange.get().header();
        let ctx = ReqCtx {
            unique: header.unique,
            node: NodeId(header.nodeid),
            uid: header.uid,
            gid: header.gid,
            pid: header.pid,
        };
        let opcode = Opcode::from_number(header.opcode);
        let (header_unique, header_pid) = (header.unique, header.pid);
        let arg_len = opcode.map_or(0, |opcode| self.arg_len(opcode));
        let call = Call { fs: &*self.fs, ctx, exchange, arg_len };
        let Some(opcode) = opcode else {
            return call.reply_error(Errno::ENOSYS);
        };
        let is_watched = may_wait(opcode) && !(opcode == Opcode::Write && call.is_write_back());
        let _watched = is_watched.then(|| self.interrupts.watch(header_unique, header_pid));
        match opcode {
            Opcode::Lookup => call.lookup(),
            Opcode::Forget => call.forget(),
            Opcode::BatchForget => call.batch_forget(),
            Opcode::Getattr => call.getattr(),
            Opcode::Statx => call.statx(),
            Opcode::Setattr => call.setattr(),
            Opcode::Readlink => call.readlink(),
            Opcode::Symlink => call.symlink(),
            Opcode::Mknod => call.mknod(),
            Opcode::Mkdir => call.mkdir(),
            Opcode::Unlink => call.unlink(),
            Opcode::Rmdir => call.rmdir(),
            Opcode::Rename => call.rename(),
            Opcode::Rename2 => call.rename2(),
            Opcode::Link => call.link(),
            Opcode::Open => call.open(),
            Opcode::Opendir => call.opendir(),
            Opcode::Read => call.read(),
            Opcode::Write => call.write(),
            Opcode::Statfs => call.statfs(),
            Opcode::Release => call.release(),
            Opcode::Releasedir => call.releasedir(),
            Opcode::Fsync => call.fsync(),
            Opcode::Fsyncdir => call.fsyncdir(),
            Opcode::Setxattr => call.setxattr(),
            Opcode::Getxattr => call.getxattr(),
            Opcode::Listxattr => call.listxattr(),
            Opcode::Removexattr => call.removexattr(),
            Opcode::Flush => call.flush(),
            Opcode::Readdir => call.readdir(),
            Opcode::Readdirplus => call.readdirplus(),
            Opcode::Access => call.access(),
            Opcode::Create => call.create(),
            Opcode::Tmpfile => call.tmpfile(),
            Opcode::Fallocate => call.fallocate(),
            Opcode::Lseek => call.lseek(),
            Opcode::CopyFileRange => call.copy_file_range_32(),
            Opcode::CopyFileRange64 => call.copy_file_range_64(),
            Opcode::Ioctl => call.ioctl(),
            Opcode::Syncfs => call.syncfs(),
            Opcode::Interrupt => {
                if let Ok(interrupt) = call.arg::<abi::InterruptIn>() {
                    self.interrupts.interrupt(interrupt.unique);
                }
                call.exchange.take().no_reply();
            }
            Opcode::Init => call.reply_error(Errno::EIO),
            Opcode::Destroy => {
                self.destroy_once();
                call.reply_unit(Ok(()));
            }
        }
    }
}

/// Returns true for operations that may wait: for space, the device or long work. They are worth giving up when their
/// caller is killed.
fn may_wait(opcode: Opcode) -> bool {
    use Opcode::{
        CopyFileRange, CopyFileRange64, Create, Fallocate, Fsync, Fsyncdir, Ioctl, Link, Mkdir, Mknod, Removexattr,
        Rename, Rename2, Rmdir, Setattr, Setxattr, Symlink, Syncfs, Tmpfile, Unlink, Write,
    };
    matches!(opcode, Create | Tmpfile | Mknod | Mkdir | Symlink | Link | Unlink | Rmdir | Rename | Rename2)
        || matches!(opcode, Setattr | Setxattr | Removexattr | Write | Fallocate | CopyFileRange | CopyFileRange64)
        || matches!(opcode, Fsync | Fsyncdir | Syncfs | Ioctl)
}

/// An exchange that has not been replied to or ended yet. Dropped in a panic, it replies `EIO`, so no client hangs.
struct Pending<E: Exchange>(Option<E>);

impl<E: Exchange> Pending<E> {
    fn get(&self) -> &E {
        self.0.as_ref().expect("taken only when consumed")
    }

    fn get_mut(&mut self) -> &mut E {
        self.0.as_mut().expect("taken only when consumed")
    }

    fn take(mut self) -> E {
        self.0.take().expect("taken only when consumed")
    }
}

impl<E: Exchange> Drop for Pending<E> {
    fn drop(&mut self) {
        let Some(exchange) = self.0.take() else { return };
        match Opcode::from_number(exchange.header().opcode) {
            Some(Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt) => exchange.no_reply(),
            _ => exchange.reply(Err(Errno::EIO)),
        }
    }
}

/// A request that is being served.
struct Call<'a, F, E: Exchange> {
    fs: &'a F,
    ctx: ReqCtx,
    exchange: Pending<E>,
    /// Bytes of the operation's fixed argument.
    arg_len: usize,
}

/// Decoding.
impl<F: FileSystem, E: Exchange> Call<'_, F, E> {
    fn arg<T: Wire>(&self) -> Result<T> {
        abi::parse(self.parts().0).ok_or(Errno::EINVAL)
    }

    /// Returns true for a write of pages that the kernel kept: its caller may have ended long ago, and the bytes may be
    /// those of other processes that map the file.
    fn is_write_back(&self) -> bool {
        let flags = self.arg::<abi::WriteIn>().map(|write| WriteFlags::from_bits_retain(write.write_flags));
        flags.is_ok_and(|flags| flags.contains(WriteFlags::CACHE))
    }

    fn payload(&self) -> &[u8] {
        self.parts().1
    }

    fn parts(&self) -> (&[u8], &[u8]) {
        self.exchange.get().parts(self.arg_len)
    }

    fn name(&self) -> Result<&[u8]> {
        let (name, _) = split_nul(self.payload())?;
        checked_name(name)
    }

    /// Returns the name as [`Self::name`] does, but allows `.` and `..`: the kernel asks with them for a file handle's
    /// node and for its parent. A node that the kernel knows from a handle has no name there, and is looked up again as
    /// `/` in itself: overlayfs does so.
    fn lookup_name(&self) -> Result<&[u8]> {
        let (name, _) = split_nul(self.payload())?;
        match name {
            b"." | b"/" => Ok(b"."),
            b".." => Ok(name),
            _ => checked_name(name),
        }
    }

    fn two_names(&self) -> Result<(&[u8], &[u8])> {
        let (first, rest) = split_nul(self.payload())?;
        let (second, _) = split_nul(rest)?;
        Ok((checked_name(first)?, checked_name(second)?))
    }

    fn xattr_name(&self) -> Result<&[u8]> {
        let (name, _) = split_nul(self.payload())?;
        checked_xattr_name(name)
    }
}

/// Replying.
impl<F: FileSystem, E: Exchange> Call<'_, F, E> {
    fn reply_error(self, errno: Errno) {
        self.exchange.take().reply(Err(errno));
    }

    fn reply_unit(self, result: Result<()>) {
        self.exchange.take().reply(result.map(|()| 0));
    }

    fn reply_wire<T: Wire>(self, result: Result<T>) {
        match result {
            Ok(value) => self.exchange.take().reply_parts(&[abi::bytes_of(&value)]),
            Err(errno) => self.reply_error(errno),
        }
    }

    fn reply_attr(self, result: Result<AttrReply>) {
        self.reply_wire(result.map(|reply| abi::AttrOut::from(&reply)));
    }

    fn reply_open(self, result: Result<OpenReply>) {
        self.reply_wire(result.map(|reply| abi::OpenOut::from(&reply)));
    }

    /// Replies with the entry of a name that was made. A negative entry would be wrong here and becomes an error.
    fn reply_new_entry(self, result: Result<Entry>) {
        self.reply_wire(result.and_then(|entry| positive(&entry)));
    }

    fn reply_created(self, result: Result<(Entry, OpenReply)>) {
        let outs = result.and_then(|(entry, open)| Ok((positive(&entry)?, abi::OpenOut::from(&open))));
        match outs {
            Ok((entry, open)) => {
                self.exchange.take().reply_parts(&[abi::bytes_of(&entry), abi::bytes_of(&open)]);
            }
            Err(errno) => self.reply_error(errno),
        }
    }

    fn reply_data(self, result: Result<usize>) {
        self.exchange.take().reply(result);
    }

    /// Replies with an attribute's value or list: its length if `asked` is zero, else the value if it fitted.
    fn reply_xattr(self, asked: usize, result: Result<usize>) {
        match result {
            Ok(len) if asked == 0 => {
                let size = u32::try_from(len).map_err(|_| Errno::E2BIG);
                self.reply_wire(size.map(|size| abi::GetxattrOut { size, padding: 0 }));
            }
            Ok(len) if len > asked => self.reply_error(Errno::ERANGE),
            result => self.reply_data(result),
        }
    }
}

/// Names.
impl<F: FileSystem, E: Exchange> Call<'_, F, E> {
    fn lookup(self) {
        let result = self.lookup_name().and_then(|name| self.fs.lookup(&self.ctx, name));
        self.reply_wire(result.map(|entry| abi::EntryOut::from(&entry)));
    }

    fn symlink(self) {
        let result = symlink_names(self.payload()).and_then(|(name, target)| self.fs.symlink(&self.ctx, name, target));
        self.reply_new_entry(result);
    }

    fn mknod(self) {
        let make = || {
            let arg: abi::MknodIn = self.arg()?;
            let mode = special_file_mode(arg.mode)?;
            self.fs.mknod(&self.ctx, self.name()?, mode, DeviceNumber(arg.rdev), arg.umask)
        };
        let result = make();
        self.reply_new_entry(result);
    }

    fn mkdir(self) {
        let make = || {
            let arg: abi::MkdirIn = self.arg()?;
            self.fs.mkdir(&self.ctx, self.name()?, arg.mode & !libc::S_IFMT, arg.umask)
        };
        let result = make();
        self.reply_new_entry(result);
    }

    fn unlink(self) {
        let result = self.name().and_then(|name| self.fs.unlink(&self.ctx, name));
        self.reply_unit(result);
    }

    fn rmdir(self) {
        let result = self.name().and_then(|name| self.fs.rmdir(&self.ctx, name));
        self.reply_unit(result);
    }

    fn rename(self) {
        let result = self.arg().and_then(|arg: abi::RenameIn| self.rename_to(NodeId(arg.newdir), 0));
        self.reply_unit(result);
    }

    fn rename2(self) {
        let result = self.arg().and_then(|arg: abi::Rename2In| self.rename_to(NodeId(arg.newdir), arg.flags));
        self.reply_unit(result);
    }

    fn rename_to(&self, new_parent: NodeId, flags: u32) -> Result<()> {
        let flags = RenameFlags::from_bits(flags).ok_or(Errno::EINVAL)?;
        let (name, new_name) = self.two_names()?;
        self.fs.rename(&self.ctx, name, new_parent, new_name, flags)
    }

    fn link(self) {
        let make = || {
            let arg: abi::LinkIn = self.arg()?;
            self.fs.link(&self.ctx, NodeId(arg.oldnodeid), self.name()?)
        };
        let result = make();
        self.reply_new_entry(result);
    }

    fn create(self) {
        let make = || {
            let args = create_args(&self.arg()?)?;
            self.fs.create(&self.ctx, self.name()?, &args)
        };
        let result = make();
        self.reply_created(result);
    }

    /// Creates a file without a name. The kernel sends a name in the request, which is not used.
    fn tmpfile(self) {
        let result = self.arg().and_then(|arg| self.fs.tmpfile(&self.ctx, &create_args(&arg)?));
        self.reply_created(result);
    }

    fn forget(self) {
        let forget: Result<abi::ForgetIn> = self.arg();
        self.exchange.take().no_reply();
        if let (Ok(forget), false) = (forget, self.ctx.node == NodeId::ROOT) {
            self.fs.forget(self.ctx.node, forget.nlookup);
        }
    }

    fn batch_forget(self) {
        if let Ok(abi::BatchForgetIn { count, .. }) = self.arg() {
            let records = self.payload().chunks_exact(size_of::<abi::ForgetOne>()).take(count as usize);
            let mut forgets = records
                .filter_map(abi::parse::<abi::ForgetOne>)
                .map(|one| (NodeId(one.nodeid), one.nlookup))
                .filter(|&(node, _)| node != NodeId::ROOT);
            self.fs.forget_batch(&mut forgets);
        }
        self.exchange.take().no_reply();
    }
}

/// Attributes.
impl<F: FileSystem, E: Exchange> Call<'_, F, E> {
    fn getattr(self) {
        let result =
            self.arg().and_then(|arg: abi::GetattrIn| self.fs.getattr(&self.ctx, handle_if(arg.getattr_flags, arg.fh)));
        self.reply_attr(result);
    }

    fn statx(self) {
        let result = self
            .arg()
            .and_then(|arg: abi::StatxIn| self.fs.statx(&self.ctx, handle_if(arg.getattr_flags, arg.fh), arg.sx_mask));
        self.reply_wire(result.map(|reply| abi::StatxOut::from(&reply)));
    }

    fn setattr(self) {
        let result = self.arg().and_then(|arg: abi::SetattrIn| {
            let set = SetAttr::from(&arg);
            if set.size.is_some_and(|size| i64::try_from(size).is_err()) {
                return Err(Errno::EFBIG);
            }
            self.fs.setattr(&self.ctx, &set)
        });
        self.reply_attr(result);
    }

    fn access(self) {
        let result = self.arg().and_then(|arg: abi::AccessIn| self.fs.access(&self.ctx, arg.mask));
        self.reply_unit(result);
    }

    fn statfs(self) {
        let result = self.fs.statfs(&self.ctx);
        self.reply_wire(result.map(|st| abi::Kstatfs::from(&st)));
    }

    fn syncfs(self) {
        let result = self.fs.syncfs(&self.ctx);
        self.reply_unit(result);
    }

    fn setxattr(self) {
        let set = || {
            let arg = self.setxattr_arg()?;
            let flags = setxattr_flags(&arg)?;
            let (name, rest) = split_nul(self.payload())?;
            let value = rest.get(..arg.size as usize).ok_or(Errno::EINVAL)?;
            self.fs.setxattr(&self.ctx, checked_xattr_name(name)?, value, flags)
        };
        let result = set();
        self.reply_unit(result);
    }

    fn setxattr_arg(&self) -> Result<abi::SetxattrIn> {
        let mut whole = [0; size_of::<abi::SetxattrIn>()];
        let arg = self.parts().0;
        whole.get_mut(..arg.len()).ok_or(Errno::EINVAL)?.copy_from_slice(arg);
        if arg.len() < self.arg_len { Err(Errno::EINVAL) } else { abi::parse(&whole).ok_or(Errno::EINVAL) }
    }

    fn getxattr(mut self) {
        let get = |call: &mut Self| {
            let arg: abi::GetxattrIn = call.arg()?;
            // The value may overwrite the name.
            let mut copy = [0; NAME_LEN_MAX];
            let name = copy_to(&mut copy, call.xattr_name()?);
            let out = call.exchange.get_mut().out(arg.size as usize);
            Ok((out.len(), call.fs.getxattr(&call.ctx, name, out)?))
        };
        match get(&mut self) {
            Ok((asked, len)) => self.reply_xattr(asked, Ok(len)),
            Err(errno) => self.reply_error(errno),
        }
    }

    fn listxattr(mut self) {
        let list = |call: &mut Self| {
            let arg: abi::GetxattrIn = call.arg()?;
            let out = call.exchange.get_mut().out(arg.size as usize);
            Ok((out.len(), call.fs.listxattr(&call.ctx, out)?))
        };
        match list(&mut self) {
            Ok((asked, len)) => self.reply_xattr(asked, Ok(len)),
            Err(errno) => self.reply_error(errno),
        }
    }

    fn removexattr(self) {
        let result = self.xattr_name().and_then(|name| self.fs.removexattr(&self.ctx, name));
        self.reply_unit(result);
    }

    fn ioctl(mut self) {
        let run = |call: &mut Self| {
            let arg: abi::IoctlIn = call.arg()?;
            let (in_size, out_size) = (arg.in_size as usize, arg.out_size as usize);
            if arg.flags & abi::IOCTL_UNRESTRICTED != 0 || in_size.max(out_size) > IOCTL_LEN_MAX {
                return Err(Errno::ENOTTY);
            }
            // The output may overwrite the input.
            let mut copy = [0; IOCTL_LEN_MAX];
            let input = copy_to(&mut copy, call.payload().get(..in_size).ok_or(Errno::EINVAL)?);
            let args = IoctlArgs {
                fh: FileHandle(arg.fh),
                cmd: arg.cmd,
                arg: arg.arg,
                directory: arg.flags & abi::IOCTL_DIR != 0,
                input,
            };
            let out = call.exchange.get_mut().out(size_of::<abi::IoctlOut>() + out_size);
            let (head, data) = out.split_at_mut_checked(size_of::<abi::IoctlOut>()).ok_or(Errno::EIO)?;
            let reply = call.fs.ioctl(&call.ctx, &args, data)?;
            let len = at_most(reply.len, data.len())?;
            head.copy_from_slice(abi::bytes_of(&abi::IoctlOut { result: reply.result, ..Default::default() }));
            Ok(head.len() + len)
        };
        let result = run(&mut self);
        self.reply_data(result);
    }
}

/// Contents.
impl<F: FileSystem, E: Exchange> Call<'_, F, E> {
    fn open(self) {
        let result = self.arg().and_then(|arg| self.fs.open(&self.ctx, &open_args(&arg)));
        self.reply_open(result);
    }

    fn opendir(self) {
        let result = self.arg().and_then(|arg| self.fs.opendir(&self.ctx, &open_args(&arg)));
        self.reply_open(result);
    }

    fn read(mut self) {
        let read = |call: &mut Self| {
            let arg: abi::ReadIn = call.arg()?;
            checked_range(arg.offset, u64::from(arg.size))?;
            let out = call.exchange.get_mut().out(arg.size as usize);
            // A short read means the end of the file, so a reply cut to the buffer would be wrong data.
            if out.len() < arg.size as usize {
                return Err(Errno::EINVAL);
            }
            at_most(call.fs.read(&call.ctx, FileHandle(arg.fh), arg.offset, out)?, arg.size as usize)
        };
        let result = read(&mut self);
        self.reply_data(result);
    }

    fn write(self) {
        let write = || {
            let arg: abi::WriteIn = self.arg()?;
            checked_range(arg.offset, u64::from(arg.size))?;
            let data = self.payload().get(..arg.size as usize).ok_or(Errno::EINVAL)?;
            let flags = WriteFlags::from_bits_truncate(arg.write_flags);
            let written = self.fs.write(&self.ctx, FileHandle(arg.fh), arg.offset, data, flags)?;
            Ok(abi::WriteOut { size: at_most(written, data.len())? as u32, padding: 0 })
        };
        let result = write();
        self.reply_wire(result);
    }

    fn readlink(mut self) {
        let out = self.exchange.get_mut().out(TARGET_LEN_MAX);
        let room = out.len();
        let result = self.fs.readlink(&self.ctx, out).and_then(|len| at_most(len, room));
        self.reply_data(result);
    }

    fn readdir(mut self) {
        let list = |call: &mut Self| {
            let arg: abi::ReadIn = call.arg()?;
            let mut out = DirBuf::new(call.exchange.get_mut().out(arg.size as usize));
            call.fs.readdir(&call.ctx, FileHandle(arg.fh), arg.offset, &mut out)?;
            out.finish()
        };
        let result = list(&mut self);
        self.reply_data(result);
    }

    fn readdirplus(mut self) {
        let list = |call: &mut Self| {
            let arg: abi::ReadIn = call.arg()?;
            let mut out = DirPlusBuf::new(call.exchange.get_mut().out(arg.size as usize));
            call.fs.readdirplus(&call.ctx, FileHandle(arg.fh), arg.offset, &mut out)?;
            out.finish()
        };
        let result = list(&mut self);
        self.reply_data(result);
    }

    fn flush(self) {
        let result = self.arg().and_then(|arg: abi::FlushIn| self.fs.flush(&self.ctx, FileHandle(arg.fh)));
        self.reply_unit(result);
    }

    fn release(self) {
        let result =
            self.arg().and_then(|arg: abi::ReleaseIn| self.fs.release(&self.ctx, FileHandle(arg.fh), arg.flags as i32));
        self.reply_unit(result);
    }

    fn releasedir(self) {
        let result = self.arg().and_then(|arg: abi::ReleaseIn| self.fs.releasedir(&self.ctx, FileHandle(arg.fh)));
        self.reply_unit(result);
    }

    fn fsync(self) {
        let result = self.arg().and_then(|arg: abi::FsyncIn| {
            self.fs.fsync(&self.ctx, FileHandle(arg.fh), arg.fsync_flags & abi::FSYNC_FDATASYNC != 0)
        });
        self.reply_unit(result);
    }

    fn fsyncdir(self) {
        let result = self.arg().and_then(|arg: abi::FsyncIn| {
            self.fs.fsyncdir(&self.ctx, FileHandle(arg.fh), arg.fsync_flags & abi::FSYNC_FDATASYNC != 0)
        });
        self.reply_unit(result);
    }

    fn fallocate(self) {
        let result = self.arg().and_then(|arg: abi::FallocateIn| {
            let mode = FallocateMode::from_bits(arg.mode).ok_or(Errno::EOPNOTSUPP)?;
            checked_range(arg.offset, arg.length.max(1))?;
            if arg.length == 0 {
                return Err(Errno::EINVAL);
            }
            self.fs.fallocate(&self.ctx, FileHandle(arg.fh), arg.offset, arg.length, mode)
        });
        self.reply_unit(result);
    }

    fn lseek(self) {
        let result = self.arg().and_then(|arg: abi::LseekIn| {
            let target = match arg.whence as i32 {
                libc::SEEK_DATA => SeekTarget::Data,
                libc::SEEK_HOLE => SeekTarget::Hole,
                _ => return Err(Errno::EINVAL),
            };
            // A negative offset arrives as a large unsigned number: it is beyond every end as well.
            checked_range(arg.offset, 0).map_err(|_| Errno::ENXIO)?;
            self.fs.lseek(&self.ctx, FileHandle(arg.fh), arg.offset, target)
        });
        self.reply_wire(result.map(|offset| abi::LseekOut { offset }));
    }

    fn copy_file_range_32(self) {
        let copied = self.copy(COPY_LEN_MAX_32);
        self.reply_wire(copied.map(|copied| abi::WriteOut { size: copied as u32, padding: 0 }));
    }

    fn copy_file_range_64(self) {
        let copied = self.copy(u64::MAX);
        self.reply_wire(copied.map(|bytes_copied| abi::CopyFileRangeOut { bytes_copied }));
    }

    fn copy(&self, len_max: u64) -> Result<u64> {
        let arg: abi::CopyFileRangeIn = self.arg()?;
        let range = CopyRange {
            fh_in: FileHandle(arg.fh_in),
            offset_in: arg.off_in,
            node_out: NodeId(arg.nodeid_out),
            fh_out: FileHandle(arg.fh_out),
            offset_out: arg.off_out,
            len: arg.len.min(len_max),
            flags: arg.flags,
        };
        checked_range(range.offset_in, range.len)?;
        checked_range(range.offset_out, range.len)?;
        let copied = self.fs.copy_file_range(&self.ctx, &range)?;
        if copied > range.len { Err(Errno::EIO) } else { Ok(copied) }
    }
}

/// Splits at the first NUL, which belongs to neither part.
fn split_nul(bytes: &[u8]) -> Result<(&[u8], &[u8])> {
    let nul = bytes.iter().position(|&byte| byte == 0).ok_or(Errno::EINVAL)?;
    Ok((&bytes[..nul], &bytes[nul + 1..]))
}

fn checked_name(name: &[u8]) -> Result<&[u8]> {
    match name {
        b"" | b"." | b".." => Err(Errno::EINVAL),
        _ if name.len() > NAME_LEN_MAX => Err(Errno::ENAMETOOLONG),
        _ if name.contains(&b'/') => Err(Errno::EINVAL),
        _ => Ok(name),
    }
}

fn setxattr_flags(arg: &abi::SetxattrIn) -> Result<XattrFlags> {
    let caller_s = XattrFlags::CREATE | XattrFlags::REPLACE;
    let flags = XattrFlags::from_bits(arg.flags).filter(|flags| caller_s.contains(*flags)).ok_or(Errno::EINVAL)?;
    let kill_sgid = arg.setxattr_flags & abi::SETXATTR_ACL_KILL_SGID != 0;
    Ok(if kill_sgid { flags | XattrFlags::ACL_KILL_SGID } else { flags })
}

fn checked_xattr_name(name: &[u8]) -> Result<&[u8]> {
    if name.is_empty() || name.len() > NAME_LEN_MAX { Err(Errno::ERANGE) } else { Ok(name) }
}

fn symlink_names(payload: &[u8]) -> Result<(&[u8], &[u8])> {
    let (name, rest) = split_nul(payload)?;
    let (target, _) = split_nul(rest)?;
    match target.len() {
        0 => Err(Errno::EINVAL),
        1..=TARGET_LEN_MAX => Ok((checked_name(name)?, target)),
        _ => Err(Errno::ENAMETOOLONG),
    }
}

/// Returns `EINVAL` if the range's end lies beyond the largest file offset.
fn checked_range(offset: u64, len: u64) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if i64::try_from(end).is_ok() => Ok(()),
        _ => Err(Errno::EINVAL),
    }
}

/// Checks a count that a file system returned for a buffer of `room` bytes.
fn at_most(count: usize, room: usize) -> Result<usize> {
    if count > room { Err(Errno::EIO) } else { Ok(count) }
}

fn copy_to<'a>(copy: &'a mut [u8], bytes: &[u8]) -> &'a [u8] {
    let copy = &mut copy[..bytes.len()];
    copy.copy_from_slice(bytes);
    copy
}

fn positive(entry: &Entry) -> Result<abi::EntryOut> {
    if entry.node == NodeId::NONE { Err(Errno::EIO) } else { Ok(abi::EntryOut::from(entry)) }
}

fn handle_if(getattr_flags: u32, fh: u64) -> Option<FileHandle> {
    (getattr_flags & abi::GETATTR_FH != 0).then_some(FileHandle(fh))
}

fn open_args(arg: &abi::OpenIn) -> OpenArgs {
    OpenArgs { flags: arg.flags as i32, kill_suidgid: arg.open_flags & abi::OPEN_KILL_SUIDGID != 0 }
}

/// Decodes the arguments of CREATE. A created file is a regular one, whether or not the kernel sends the type.
fn create_args(arg: &abi::CreateIn) -> Result<CreateArgs> {
    match arg.mode & libc::S_IFMT {
        0 | libc::S_IFREG => Ok(CreateArgs {
            mode: arg.mode & !libc::S_IFMT | libc::S_IFREG,
            umask: arg.umask,
            flags: arg.flags as i32,
            kill_suidgid: arg.open_flags & abi::OPEN_KILL_SUIDGID != 0,
        }),
        _ => Err(Errno::EINVAL),
    }
}

/// Returns the mode of a node that `mknod` may make, its type filled in.
fn special_file_mode(mode: u32) -> Result<u32> {
    match mode & libc::S_IFMT {
        0 => Ok(mode | libc::S_IFREG),
        libc::S_IFREG | libc::S_IFCHR | libc::S_IFBLK | libc::S_IFIFO | libc::S_IFSOCK => Ok(mode),
        _ => Err(Errno::EINVAL),
    }
}

#[cfg(test)]
mod tests;
