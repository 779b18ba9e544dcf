//! Tests of every operation: the bytes of a request, the call it makes, and the bytes of its reply; and requests that
//! no kernel would send.

#![allow(clippy::needless_update, reason = "`arg!` fills up whatever is not given")]

use std::sync::Mutex;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::abi::{InHeader, OutHeader};
use crate::types::{FOREVER, FileAttr, IoctlReply, OpenReplyFlags, SetTime, StatFs, StatxReply, Timestamp};

/// Largest size of a reply's data, bytes.
const CAPACITY: usize = 64 << 10;
const NODE: u64 = 42;

/// Records each call with its arguments, and answers each kind of call with a value of its own.
#[derive(Default)]
struct Recorder {
    calls: Mutex<Vec<String>>,
}

impl Recorder {
    fn note(&self, call: String) {
        self.calls.lock().expect("no panic while locked").push(call);
    }
}

fn interrupted() -> &'static str {
    if crate::interrupted_caller().is_some() { ", interrupted" } else { "" }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn entry() -> Entry {
    Entry {
        node: NodeId(7),
        generation: 3,
        attr: attr().attr,
        entry_ttl: Duration::from_millis(1500),
        attr_ttl: FOREVER,
    }
}

fn attr() -> AttrReply {
    let attr = FileAttr { ino: 7, size: 9, mode: libc::S_IFREG | 0o644, nlink: 1, ..FileAttr::default() };
    AttrReply { attr, attr_ttl: FOREVER }
}

fn opened() -> OpenReply {
    OpenReply { fh: FileHandle(5), flags: OpenReplyFlags::KEEP_CACHE }
}

impl FileSystem for Recorder {
    fn destroy(&self) {
        self.note("destroy".to_owned());
    }
    fn lookup(&self, ctx: &ReqCtx, name: &[u8]) -> Result<Entry> {
        self.note(format!("lookup {} {} {}:{} {}", ctx.node.0, text(name), ctx.uid, ctx.gid, ctx.pid));
        match name {
            b"none" => Ok(Entry::negative(FOREVER)),
            b"panic" => panic!("a handler that panics"),
            b"missing" => Err(Errno::ENOENT),
            _ => Ok(entry()),
        }
    }
    fn forget(&self, node: NodeId, nlookup: u64) {
        self.note(format!("forget {} {nlookup}", node.0));
    }
    fn getattr(&self, ctx: &ReqCtx, fh: Option<FileHandle>) -> Result<AttrReply> {
        self.note(format!("getattr {} {fh:?}", ctx.node.0));
        Ok(attr())
    }
    fn statx(&self, _: &ReqCtx, fh: Option<FileHandle>, mask: u32) -> Result<StatxReply> {
        self.note(format!("statx {fh:?} {mask:#x}"));
        let btime = Some(Timestamp { secs: -5, nanos: 6 });
        Ok(StatxReply { attr: attr().attr, btime, attributes: 0x10, attributes_mask: 0x30, attr_ttl: FOREVER })
    }
    fn setattr(&self, _: &ReqCtx, set: &SetAttr) -> Result<AttrReply> {
        self.note(format!("setattr {set:?}"));
        Ok(attr())
    }
    fn readlink(&self, _: &ReqCtx, out: &mut [u8]) -> Result<usize> {
        self.note(format!("readlink into {}", out.len()));
        out[..6].copy_from_slice(b"target");
        Ok(6)
    }
    fn symlink(&self, _: &ReqCtx, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.note(format!("symlink {} -> {}", text(name), text(target)));
        Ok(entry())
    }
    fn mknod(&self, _: &ReqCtx, name: &[u8], mode: u32, rdev: DeviceNumber, umask: u32) -> Result<Entry> {
        self.note(format!("mknod {} {mode:o} {}:{} {umask:o}", text(name), rdev.major(), rdev.minor()));
        Ok(entry())
    }
    fn mkdir(&self, _: &ReqCtx, name: &[u8], mode: u32, umask: u32) -> Result<Entry> {
        self.note(format!("mkdir {} {mode:o} {umask:o}", text(name)));
        if name == b"negative" { Ok(Entry::negative(FOREVER)) } else { Ok(entry()) }
    }
    fn unlink(&self, _: &ReqCtx, name: &[u8]) -> Result<()> {
        self.note(format!("unlink {}", text(name)));
        Ok(())
    }
    fn rmdir(&self, _: &ReqCtx, name: &[u8]) -> Result<()> {
        self.note(format!("rmdir {}", text(name)));
        Ok(())
    }
    fn rename(&self, _: &ReqCtx, name: &[u8], parent: NodeId, new: &[u8], flags: RenameFlags) -> Result<()> {
        self.note(format!("rename {} -> {}/{} {:#x}", text(name), parent.0, text(new), flags.bits()));
        Ok(())
    }
    fn link(&self, ctx: &ReqCtx, node: NodeId, new_name: &[u8]) -> Result<Entry> {
        self.note(format!("link {} as {}/{}", node.0, ctx.node.0, text(new_name)));
        Ok(entry())
    }
    fn open(&self, _: &ReqCtx, args: &OpenArgs) -> Result<OpenReply> {
        self.note(format!("open {:#x} {}", args.flags, args.kill_suidgid));
        Ok(opened())
    }
    fn read(&self, _: &ReqCtx, fh: FileHandle, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.note(format!("read {} {offset} {}", fh.0, out.len()));
        out.fill(b'x');
        Ok(if offset == 666 { out.len() + 1 } else { out.len() })
    }
    fn write(&self, _: &ReqCtx, fh: FileHandle, offset: u64, data: &[u8], flags: WriteFlags) -> Result<usize> {
        self.note(format!("write {} {offset} {} {flags:?}{}", fh.0, text(data), interrupted()));
        Ok(data.len())
    }
    fn flush(&self, _: &ReqCtx, fh: FileHandle) -> Result<()> {
        self.note(format!("flush {}", fh.0));
        Ok(())
    }
    fn release(&self, _: &ReqCtx, fh: FileHandle, flags: i32) -> Result<()> {
        self.note(format!("release {} {flags}", fh.0));
        Ok(())
    }
    fn fsync(&self, _: &ReqCtx, fh: FileHandle, datasync: bool) -> Result<()> {
        self.note(format!("fsync {} {datasync}{}", fh.0, interrupted()));
        Ok(())
    }
    fn opendir(&self, _: &ReqCtx, args: &OpenArgs) -> Result<OpenReply> {
        self.note(format!("opendir {:#x}", args.flags));
        Ok(opened())
    }
    fn readdir(&self, _: &ReqCtx, fh: FileHandle, offset: u64, out: &mut DirBuf<'_>) -> Result<()> {
        self.note(format!("readdir {} {offset}", fh.0));
        let _ = out.add(7, offset.wrapping_add(1), libc::S_IFREG, b"name");
        Ok(())
    }
    fn readdirplus(&self, _: &ReqCtx, fh: FileHandle, offset: u64, out: &mut DirPlusBuf<'_>) -> Result<()> {
        self.note(format!("readdirplus {} {offset}", fh.0));
        let _ = out.add(&entry(), offset.wrapping_add(1), b"name");
        Ok(())
    }
    fn releasedir(&self, _: &ReqCtx, fh: FileHandle) -> Result<()> {
        self.note(format!("releasedir {}", fh.0));
        Ok(())
    }
    fn fsyncdir(&self, _: &ReqCtx, fh: FileHandle, datasync: bool) -> Result<()> {
        self.note(format!("fsyncdir {} {datasync}", fh.0));
        Ok(())
    }
    fn statfs(&self, ctx: &ReqCtx) -> Result<StatFs> {
        self.note(format!("statfs {}", ctx.node.0));
        Ok(StatFs { blocks: 100, bsize: 4096, namelen: 255, frsize: 1024, ..StatFs::default() })
    }
    fn setxattr(&self, _: &ReqCtx, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        self.note(format!("setxattr {}={} {flags:?}", text(name), text(value)));
        Ok(())
    }
    fn getxattr(&self, _: &ReqCtx, name: &[u8], out: &mut [u8]) -> Result<usize> {
        self.note(format!("getxattr {} {}", text(name), out.len()));
        if let Some(out) = out.get_mut(..5) {
            out.copy_from_slice(b"value");
        }
        Ok(5)
    }
    fn listxattr(&self, _: &ReqCtx, out: &mut [u8]) -> Result<usize> {
        self.note(format!("listxattr {}", out.len()));
        if let Some(out) = out.get_mut(..4) {
            out.copy_from_slice(b"a\0b\0");
        }
        Ok(4)
    }
    fn removexattr(&self, _: &ReqCtx, name: &[u8]) -> Result<()> {
        self.note(format!("removexattr {}", text(name)));
        Ok(())
    }
    fn access(&self, _: &ReqCtx, mask: u32) -> Result<()> {
        self.note(format!("access {mask}"));
        Err(Errno::EACCES)
    }
    fn create(&self, _: &ReqCtx, name: &[u8], args: &CreateArgs) -> Result<(Entry, OpenReply)> {
        self.note(format!("create {} {:o} {:o} {:#x}", text(name), args.mode, args.umask, args.flags));
        Ok((entry(), opened()))
    }
    fn tmpfile(&self, _: &ReqCtx, args: &CreateArgs) -> Result<(Entry, OpenReply)> {
        self.note(format!("tmpfile {:o}", args.mode));
        Ok((entry(), opened()))
    }
    fn fallocate(&self, _: &ReqCtx, fh: FileHandle, offset: u64, len: u64, mode: FallocateMode) -> Result<()> {
        self.note(format!("fallocate {} {offset}+{len} {:#x}", fh.0, mode.bits()));
        Ok(())
    }
    fn lseek(&self, _: &ReqCtx, fh: FileHandle, offset: u64, target: SeekTarget) -> Result<u64> {
        self.note(format!("lseek {} {offset} {target:?}", fh.0));
        Ok(offset + 1)
    }
    fn copy_file_range(&self, _: &ReqCtx, range: &CopyRange) -> Result<u64> {
        self.note(format!("copy {} -> {}:{} {}", range.offset_in, range.node_out.0, range.offset_out, range.len));
        Ok(range.len)
    }
    fn ioctl(&self, _: &ReqCtx, args: &IoctlArgs<'_>, out: &mut [u8]) -> Result<IoctlReply> {
        self.note(format!("ioctl {:#x} {} {} -> {}", args.cmd, args.directory, text(args.input), out.len()));
        out.fill(b'o');
        Ok(IoctlReply { result: 1, len: out.len() })
    }
    fn syncfs(&self, _: &ReqCtx) -> Result<()> {
        self.note("syncfs".to_owned());
        Ok(())
    }
}

fn request_to(number: u32, parts: &[&[u8]]) -> Vec<u8> {
    let len = size_of::<InHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
    let header = InHeader {
        len: len as u32,
        opcode: number,
        unique: 99,
        nodeid: NODE,
        uid: 1000,
        gid: 100,
        pid: 4711,
        ..InHeader::default()
    };
    let mut bytes = abi::bytes_of(&header).to_vec();
    for part in parts {
        bytes.extend_from_slice(part);
    }
    bytes
}

fn request(opcode: Opcode, parts: &[&[u8]]) -> Vec<u8> {
    request_to(opcode.number(), parts)
}

/// The result of a request.
struct Outcome {
    calls: Vec<String>,
    /// `None`: no reply.
    reply: Option<(i32, Vec<u8>)>,
}

fn send(request: &[u8]) -> Outcome {
    let dispatcher = Dispatcher::new(Arc::new(Recorder::default()), InitFlags::all());
    let mut reply = Vec::new();
    let understood = dispatcher.answer(request, &mut reply, CAPACITY);
    let calls = dispatcher.fs().calls.lock().expect("no panic while locked").clone();
    if !understood || reply.is_empty() {
        return Outcome { calls, reply: None };
    }
    let head: OutHeader = abi::parse(&reply).expect("a reply has a head");
    assert_eq!((head.unique, head.len as usize), (99, reply.len()));
    assert!(head.error == 0 || reply.len() == size_of::<OutHeader>(), "an error carries no data");
    Outcome { calls, reply: Some((-head.error, reply[size_of::<OutHeader>()..].to_vec())) }
}

/// Asserts that a request makes this call, and is answered with data of this length.
#[track_caller]
fn check(request: &[u8], call: &str, reply_len: usize) -> Vec<u8> {
    let outcome = send(request);
    assert_eq!(outcome.calls, [call]);
    let (errno, data) = outcome.reply.expect("a reply");
    assert_eq!((errno, data.len()), (0, reply_len), "{call}");
    data
}

/// Asserts that a request is refused before the file system sees it.
#[track_caller]
fn check_refused(request: &[u8], errno: Errno) {
    let outcome = send(request);
    assert_eq!(outcome.calls, [""; 0]);
    assert_eq!(outcome.reply, Some((errno.raw(), Vec::new())));
}

/// Expands to the bytes of a fixed argument; fields not given are zero.
macro_rules! arg {
    ($name:ident { $($field:ident: $value:expr),* $(,)? }) => {
        abi::bytes_of(&abi::$name { $($field: $value,)* ..abi::$name::default() })
    };
}

/// Returns a well-formed request of every operation.
fn valid_requests() -> Vec<(Opcode, Vec<u8>)> {
    let all = |opcode: Opcode| -> Vec<u8> {
        let build = |parts: &[&[u8]]| request(opcode, parts);
        match opcode {
            Opcode::Lookup | Opcode::Unlink | Opcode::Rmdir | Opcode::Removexattr => build(&[b"name\0"]),
            Opcode::Forget => build(&[arg!(ForgetIn { nlookup: 2 })]),
            Opcode::BatchForget => build(&[
                arg!(BatchForgetIn { count: 2 }),
                arg!(ForgetOne { nodeid: 3, nlookup: 1 }),
                arg!(ForgetOne { nodeid: 4, nlookup: 2 }),
            ]),
            Opcode::Getattr => build(&[arg!(GetattrIn { getattr_flags: abi::GETATTR_FH, fh: 5 })]),
            Opcode::Statx => build(&[arg!(StatxIn { sx_mask: 0xfff })]),
            Opcode::Setattr => build(&[arg!(SetattrIn { valid: 0 })]),
            Opcode::Readlink | Opcode::Statfs | Opcode::Destroy => build(&[]),
            Opcode::Symlink => build(&[b"name\0the/target\0"]),
            Opcode::Mknod => {
                build(&[arg!(MknodIn { mode: libc::S_IFCHR | 0o600, rdev: 0x103, umask: 0o22 }), b"name\0"])
            }
            Opcode::Mkdir => build(&[arg!(MkdirIn { mode: 0o755, umask: 0o22 }), b"name\0"]),
            Opcode::Rename => build(&[arg!(RenameIn { newdir: 8 }), b"name\0new\0"]),
            Opcode::Rename2 => build(&[arg!(Rename2In { newdir: 8, flags: 1 }), b"name\0new\0"]),
            Opcode::Link => build(&[arg!(LinkIn { oldnodeid: 9 }), b"name\0"]),
            Opcode::Open => build(&[arg!(OpenIn { flags: 2, open_flags: 1 })]),
            Opcode::Opendir => build(&[arg!(OpenIn { flags: 0x10000 })]),
            Opcode::Read => build(&[arg!(ReadIn { fh: 5, offset: 4096, size: 100 })]),
            Opcode::Write => build(&[arg!(WriteIn { fh: 5, offset: 10, size: 4, write_flags: 5 }), b"data"]),
            Opcode::Release => build(&[arg!(ReleaseIn { fh: 5, flags: 2 })]),
            Opcode::Releasedir => build(&[arg!(ReleaseIn { fh: 5 })]),
            Opcode::Fsync => build(&[arg!(FsyncIn { fh: 5, fsync_flags: 1 })]),
            Opcode::Fsyncdir => build(&[arg!(FsyncIn { fh: 5 })]),
            Opcode::Setxattr => build(&[arg!(SetxattrIn { size: 5, flags: 1 }), b"user.a\0value"]),
            Opcode::Getxattr => build(&[arg!(GetxattrIn { size: 64 }), b"user.a\0"]),
            Opcode::Listxattr => build(&[arg!(GetxattrIn { size: 64 })]),
            Opcode::Flush => build(&[arg!(FlushIn { fh: 5 })]),
            Opcode::Init => build(&[arg!(InitIn { major: 7, minor: 45 })]),
            Opcode::Readdir | Opcode::Readdirplus => build(&[arg!(ReadIn { fh: 5, offset: 3, size: 4096 })]),
            Opcode::Access => build(&[arg!(AccessIn { mask: 4 })]),
            Opcode::Create => {
                build(&[arg!(CreateIn { flags: 0x8041, mode: libc::S_IFREG | 0o666, umask: 0o27 }), b"name\0"])
            }
            Opcode::Tmpfile => build(&[arg!(CreateIn { mode: libc::S_IFREG | 0o600 }), b"/\0"]),
            Opcode::Interrupt => build(&[&[1; 8]]),
            Opcode::Ioctl => build(&[
                arg!(IoctlIn { fh: 5, cmd: 0x8008_6601, flags: abi::IOCTL_DIR, in_size: 2, out_size: 4 }),
                b"in",
            ]),
            Opcode::Fallocate => build(&[arg!(FallocateIn { fh: 5, offset: 1, length: 2, mode: 3 })]),
            Opcode::Lseek => build(&[arg!(LseekIn { fh: 5, offset: 1, whence: libc::SEEK_HOLE as u32 })]),
            Opcode::CopyFileRange | Opcode::CopyFileRange64 => {
                build(&[arg!(CopyFileRangeIn { off_in: 1, nodeid_out: 8, off_out: 2, len: 5 << 30 })])
            }
            Opcode::Syncfs => build(&[arg!(SyncfsIn {})]),
        }
    };
    Opcode::ALL.iter().map(|&opcode| (opcode, all(opcode))).collect()
}

fn valid(opcode: Opcode) -> Vec<u8> {
    valid_requests().into_iter().find(|(other, _)| *other == opcode).map(|(_, bytes)| bytes).expect("every opcode")
}

#[test]
fn names_reach_the_file_system() {
    check(&valid(Opcode::Lookup), "lookup 42 name 1000:100 4711", 128);
    check(&valid(Opcode::Unlink), "unlink name", 0);
    check(&valid(Opcode::Rmdir), "rmdir name", 0);
    check(&valid(Opcode::Symlink), "symlink name -> the/target", 128);
    check(&valid(Opcode::Mknod), "mknod name 20600 1:3 22", 128);
    check(&valid(Opcode::Mkdir), "mkdir name 755 22", 128);
    check(&valid(Opcode::Rename), "rename name -> 8/new 0x0", 0);
    check(&valid(Opcode::Rename2), "rename name -> 8/new 0x1", 0);
    check(&valid(Opcode::Link), "link 9 as 42/name", 128);
    check(&valid(Opcode::Create), "create name 100666 27 0x8041", 144);
    check(&valid(Opcode::Tmpfile), "tmpfile 100600", 144);
}

#[test]
fn an_entry_carries_node_generation_and_both_validities() {
    let data = check(&valid(Opcode::Lookup), "lookup 42 name 1000:100 4711", 128);
    let out: abi::EntryOut = abi::parse(&data).expect("an entry");
    assert_eq!((out.nodeid, out.generation), (7, 3));
    assert_eq!((out.entry_valid, out.entry_valid_nsec, out.attr_valid), (1, 500_000_000, 1 << 30));
    assert_eq!((out.attr.size, out.attr.mode), (9, libc::S_IFREG | 0o644));
}

#[test]
fn a_missing_name_is_an_error_or_a_cacheable_entry() {
    let missing = send(&request(Opcode::Lookup, &[b"missing\0"]));
    assert_eq!(missing.reply, Some((libc::ENOENT, Vec::new())));
    let none = send(&request(Opcode::Lookup, &[b"none\0"])).reply.expect("a reply");
    let out: abi::EntryOut = abi::parse(&none.1).expect("an entry");
    assert_eq!((none.0, out.nodeid, out.entry_valid), (0, 0, 1 << 30));
}

#[test]
fn a_new_name_without_a_node_is_an_error() {
    let outcome = send(&request(Opcode::Mkdir, &[arg!(MkdirIn { mode: 0o755 }), b"negative\0"]));
    assert_eq!(outcome.reply, Some((libc::EIO, Vec::new())));
}

#[test]
fn nodes_are_found_by_handle_and_so_are_their_parents() {
    check(&request(Opcode::Lookup, &[b".\0"]), "lookup 42 . 1000:100 4711", 128);
    check(&request(Opcode::Lookup, &[b"/\0"]), "lookup 42 . 1000:100 4711", 128);
    check(&request(Opcode::Lookup, &[b"..\0"]), "lookup 42 .. 1000:100 4711", 128);
}

#[test]
fn an_acl_says_whether_it_costs_set_group_id_where_that_was_agreed() {
    let long = abi::SetxattrIn { size: 1, setxattr_flags: abi::SETXATTR_ACL_KILL_SGID, ..Default::default() };
    let long = abi::bytes_of(&long);
    let request = |arg: &[u8]| request(Opcode::Setxattr, &[arg, b"user.a\0v"]);
    check(&request(long), "setxattr user.a=v XattrFlags(ACL_KILL_SGID)", 0);
    let old = Dispatcher::new(Arc::new(Recorder::default()), InitFlags::all() - InitFlags::SETXATTR_EXT);
    let mut reply = Vec::new();
    assert!(old.answer(&request(&long[..abi::SETXATTR_IN_LEN_SHORT]), &mut reply, CAPACITY));
    assert_eq!(*old.fs().calls.lock().unwrap(), ["setxattr user.a=v XattrFlags(0x0)"]);
}

#[test]
fn names_that_are_none_are_refused() {
    let long = [&[b'n'; 256][..], b"\0"].concat();
    for name in [&b"\0"[..], b"", b"unterminated", b"a/b\0", b".\0", b"..\0"] {
        let by_handle = name.starts_with(b".");
        for opcode in [Opcode::Lookup, Opcode::Unlink, Opcode::Rmdir] {
            if by_handle && opcode == Opcode::Lookup {
                continue;
            }
            check_refused(&request(opcode, &[name]), Errno::EINVAL);
        }
        check_refused(&request(Opcode::Mkdir, &[arg!(MkdirIn {}), name]), Errno::EINVAL);
        check_refused(&request(Opcode::Create, &[arg!(CreateIn {}), name]), Errno::EINVAL);
        check_refused(&request(Opcode::Link, &[arg!(LinkIn {}), name]), Errno::EINVAL);
        check_refused(&request(Opcode::Rename, &[arg!(RenameIn {}), b"ok\0", name]), Errno::EINVAL);
    }
    check_refused(&request(Opcode::Lookup, &[&long]), Errno::ENAMETOOLONG);
    check_refused(&request(Opcode::Getxattr, &[arg!(GetxattrIn { size: 9 }), &long]), Errno::ERANGE);
    check_refused(&request(Opcode::Symlink, &[b"name\0\0"]), Errno::EINVAL);
    check_refused(&request(Opcode::Symlink, &[b"name\0", &[b't'; 4096], b"\0"]), Errno::ENAMETOOLONG);
    check(&request(Opcode::Unlink, &[&long[1..]]), &format!("unlink {}", "n".repeat(255)), 0);
}

#[test]
fn file_types_that_no_mknod_or_create_makes_are_refused() {
    for mode in [libc::S_IFDIR, libc::S_IFLNK, libc::S_IFMT] {
        check_refused(&request(Opcode::Mknod, &[arg!(MknodIn { mode: mode }), b"name\0"]), Errno::EINVAL);
        check_refused(&request(Opcode::Create, &[arg!(CreateIn { mode: mode }), b"name\0"]), Errno::EINVAL);
    }
    check(&request(Opcode::Mknod, &[arg!(MknodIn { mode: 0o600 }), b"name\0"]), "mknod name 100600 0:0 0", 128);
}

#[test]
fn forgets_are_counted_and_never_answered() {
    let one = send(&valid(Opcode::Forget));
    assert_eq!((one.calls, one.reply), (vec!["forget 42 2".to_owned()], None));
    let batch = send(&valid(Opcode::BatchForget));
    assert_eq!((batch.calls, batch.reply), (vec!["forget 3 1".to_owned(), "forget 4 2".to_owned()], None));
    let lying = arg!(BatchForgetIn { count: u32::MAX }).to_vec();
    let outcome = send(&request(Opcode::BatchForget, &[&lying, arg!(ForgetOne { nodeid: 3, nlookup: 1 }), &[0; 15]]));
    assert_eq!((outcome.calls, outcome.reply), (vec!["forget 3 1".to_owned()], None));
    let root = send(&request(Opcode::BatchForget, &[arg!(BatchForgetIn { count: 1 }), arg!(ForgetOne { nodeid: 1 })]));
    assert_eq!((root.calls, root.reply), (vec![], None));
    let interrupt = send(&valid(Opcode::Interrupt));
    assert_eq!((interrupt.calls, interrupt.reply), (vec![], None));
}

#[test]
fn interrupts_count_for_all_that_a_caller_waits_for_but_not_for_what_the_kernel_writes_back() {
    let dispatcher = Dispatcher::new(Arc::new(Recorder::default()), InitFlags::all());
    let mut reply = Vec::new();
    let write = |flags: WriteFlags| {
        request(Opcode::Write, &[arg!(WriteIn { fh: 5, size: 1, write_flags: flags.bits() }), b"x"])
    };
    let interrupt = request(Opcode::Interrupt, &[arg!(InterruptIn { unique: 99 })]);
    for request in [interrupt, write(WriteFlags::empty()), write(WriteFlags::CACHE), valid(Opcode::Fsync)] {
        assert!(dispatcher.answer(&request, &mut reply, CAPACITY));
    }
    let calls = dispatcher.fs().calls.lock().expect("no panic while locked").clone();
    assert_eq!(calls.len(), 3);
    assert_eq!([0, 1, 2].map(|call| calls[call].ends_with("interrupted")), [true, false, true], "{calls:?}");
}

#[test]
fn attributes_travel_both_ways() {
    check(&valid(Opcode::Getattr), "getattr 42 Some(FileHandle(5))", 104);
    check(&request(Opcode::Getattr, &[arg!(GetattrIn { fh: 5 })]), "getattr 42 None", 104);
    let data = check(&valid(Opcode::Statx), "statx None 0xfff", 288);
    let out: abi::StatxOut = abi::parse(&data).expect("a statx");
    assert_eq!((out.stat.mask, out.stat.btime.tv_sec, out.stat.btime.tv_nsec), (0xfff, -5, 6));
    assert_eq!((out.stat.attributes, out.stat.attributes_mask, out.stat.size), (0x10, 0x30, 9));
    let data = check(&valid(Opcode::Statfs), "statfs 42", 80);
    let out: abi::Kstatfs = abi::parse(&data).expect("a statfs");
    assert_eq!((out.blocks, out.bsize, out.frsize), (100, 4096, 1024));
    check(&valid(Opcode::Syncfs), "syncfs", 0);
    assert_eq!(send(&valid(Opcode::Access)).reply, Some((libc::EACCES, Vec::new())));
}

#[test]
fn setattr_says_exactly_what_is_valid() {
    let nothing = SetAttr::default();
    check(&valid(Opcode::Setattr), &format!("setattr {nothing:?}"), 104);
    let valid_bits = 1 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 8 | 1 << 11;
    let sent = request(
        Opcode::Setattr,
        &[arg!(SetattrIn {
            valid: valid_bits,
            mode: 0o100755,
            size: 12,
            uid: 77,
            fh: 5,
            atime: (-1i64) as u64,
            atimensec: 2_000_000_000,
            mtime: 3,
        })],
    );
    let expected = SetAttr {
        mode: Some(0o100755),
        size: Some(12),
        atime: Some(SetTime::At(Timestamp { secs: -1, nanos: 999_999_999 })),
        mtime: Some(SetTime::Now),
        fh: Some(FileHandle(5)),
        kill_suidgid: true,
        ..SetAttr::default()
    };
    check(&sent, &format!("setattr {expected:?}"), 104);
    let beyond = request(Opcode::Setattr, &[arg!(SetattrIn { valid: 1 << 3, size: 1 << 63 })]);
    check_refused(&beyond, Errno::EFBIG);
}

#[test]
fn contents_travel_both_ways() {
    assert_eq!(check(&valid(Opcode::Read), "read 5 4096 100", 100), [b'x'; 100]);
    let data = check(&valid(Opcode::Write), "write 5 10 data WriteFlags(CACHE | KILL_SUIDGID)", 8);
    assert_eq!(abi::parse::<abi::WriteOut>(&data).map(|out| out.size), Some(4));
    assert_eq!(check(&valid(Opcode::Readlink), "readlink into 4095", 6), b"target");
    check(&valid(Opcode::Open), "open 0x2 true", 16);
    check(&valid(Opcode::Opendir), "opendir 0x10000", 16);
    check(&valid(Opcode::Flush), "flush 5", 0);
    check(&valid(Opcode::Release), "release 5 2", 0);
    check(&valid(Opcode::Releasedir), "releasedir 5", 0);
    check(&valid(Opcode::Fsync), "fsync 5 true", 0);
    check(&valid(Opcode::Fsyncdir), "fsyncdir 5 false", 0);
    check(&valid(Opcode::Readdir), "readdir 5 3", 32);
    check(&valid(Opcode::Readdirplus), "readdirplus 5 3", 160);
    check(&valid(Opcode::Fallocate), "fallocate 5 1+2 0x3", 0);
    let data = check(&valid(Opcode::Lseek), "lseek 5 1 Hole", 8);
    assert_eq!(abi::parse::<abi::LseekOut>(&data).map(|out| out.offset), Some(2));
}

#[test]
fn a_copy_is_as_long_as_its_reply_can_tell() {
    let data = check(&valid(Opcode::CopyFileRange), "copy 1 -> 8:2 4294963200", 8);
    assert_eq!(abi::parse::<abi::WriteOut>(&data).map(|out| out.size), Some(4_294_963_200));
    let data = check(&valid(Opcode::CopyFileRange64), "copy 1 -> 8:2 5368709120", 8);
    assert_eq!(abi::parse::<abi::CopyFileRangeOut>(&data).map(|out| out.bytes_copied), Some(5 << 30));
}

#[test]
fn xattrs_travel_both_ways() {
    check(&valid(Opcode::Setxattr), "setxattr user.a=value XattrFlags(CREATE)", 0);
    check(&valid(Opcode::Removexattr), "removexattr name", 0);
    assert_eq!(check(&valid(Opcode::Getxattr), "getxattr user.a 64", 5), b"value");
    assert_eq!(check(&valid(Opcode::Listxattr), "listxattr 64", 4), b"a\0b\0");
    let asked = request(Opcode::Getxattr, &[arg!(GetxattrIn { size: 0 }), b"user.a\0"]);
    let data = check(&asked, "getxattr user.a 0", 8);
    assert_eq!(abi::parse::<abi::GetxattrOut>(&data).map(|out| out.size), Some(5));
    let small = send(&request(Opcode::Getxattr, &[arg!(GetxattrIn { size: 4 }), b"user.a\0"]));
    assert_eq!(small.reply, Some((libc::ERANGE, Vec::new())));
    let short = request(Opcode::Setxattr, &[arg!(SetxattrIn { size: 6 }), b"user.a\0value"]);
    check_refused(&short, Errno::EINVAL);
}

#[test]
fn an_ioctl_carries_its_input_and_output() {
    let data = check(&valid(Opcode::Ioctl), "ioctl 0x80086601 true in -> 4", 20);
    assert_eq!(abi::parse::<abi::IoctlOut>(&data).map(|out| out.result), Some(1));
    assert_eq!(&data[16..], b"oooo");
    for refused in [arg!(IoctlIn { out_size: 4097 }), arg!(IoctlIn { flags: abi::IOCTL_UNRESTRICTED })] {
        check_refused(&request(Opcode::Ioctl, &[refused]), Errno::ENOTTY);
    }
    check_refused(&request(Opcode::Ioctl, &[arg!(IoctlIn { in_size: 3 }), b"in"]), Errno::EINVAL);
}

#[test]
fn ranges_beyond_the_largest_offset_are_refused() {
    let far = i64::MAX as u64;
    check_refused(&request(Opcode::Read, &[arg!(ReadIn { offset: far, size: 1 })]), Errno::EINVAL);
    check_refused(&request(Opcode::Read, &[arg!(ReadIn { offset: u64::MAX, size: 1 })]), Errno::EINVAL);
    check_refused(&request(Opcode::Write, &[arg!(WriteIn { offset: far, size: 1 }), b"x"]), Errno::EINVAL);
    check_refused(&request(Opcode::Fallocate, &[arg!(FallocateIn { offset: far, length: 1 })]), Errno::EINVAL);
    check_refused(&request(Opcode::Fallocate, &[arg!(FallocateIn { length: 0 })]), Errno::EINVAL);
    check_refused(&request(Opcode::Lseek, &[arg!(LseekIn { offset: u64::MAX, whence: 3 })]), Errno::ENXIO);
    let copy = request(Opcode::CopyFileRange64, &[arg!(CopyFileRangeIn { off_out: far, len: 1 })]);
    check_refused(&copy, Errno::EINVAL);
}

#[test]
fn unknown_flags_are_refused_where_ignoring_them_would_lie() {
    check_refused(&request(Opcode::Rename2, &[arg!(Rename2In { flags: 8 }), b"a\0b\0"]), Errno::EINVAL);
    check_refused(&request(Opcode::Fallocate, &[arg!(FallocateIn { length: 1, mode: 0x80 })]), Errno::EOPNOTSUPP);
    check_refused(&request(Opcode::Setxattr, &[arg!(SetxattrIn { flags: 4 }), b"a\0"]), Errno::EINVAL);
    check_refused(&request(Opcode::Lseek, &[arg!(LseekIn { whence: 0 })]), Errno::EINVAL);
}

#[test]
fn sizes_beyond_the_buffers_are_refused_or_bounded() {
    check_refused(&request(Opcode::Read, &[arg!(ReadIn { size: CAPACITY as u32 + 1 })]), Errno::EINVAL);
    check_refused(&request(Opcode::Write, &[arg!(WriteIn { size: 5 }), b"four"]), Errno::EINVAL);
    let small = send(&request(Opcode::Readdir, &[arg!(ReadIn { size: 31 })]));
    assert_eq!(small.reply, Some((libc::EINVAL, Vec::new())));
    let overrun = send(&request(Opcode::Read, &[arg!(ReadIn { offset: 666, size: 10 })]));
    assert_eq!(overrun.reply, Some((libc::EIO, Vec::new())));
}

#[test]
fn unknown_operations_and_a_second_init_are_refused() {
    check_refused(&request_to(4096, &[]), Errno::ENOSYS);
    check_refused(&request_to(0, &[b"anything"]), Errno::ENOSYS);
    check_refused(&valid(Opcode::Init), Errno::EIO);
}

#[test]
fn a_panic_in_a_handler_is_an_io_error_and_the_next_request_is_served() {
    let dispatcher = Dispatcher::new(Arc::new(Recorder::default()), InitFlags::all());
    let mut reply = Vec::new();
    assert!(dispatcher.answer(&request(Opcode::Lookup, &[b"panic\0"]), &mut reply, CAPACITY));
    assert_eq!(abi::parse::<OutHeader>(&reply).map(|head| head.error), Some(-libc::EIO));
    assert!(dispatcher.answer(&valid(Opcode::Statfs), &mut reply, CAPACITY));
    assert_eq!(abi::parse::<OutHeader>(&reply).map(|head| head.error), Some(0));
}

#[test]
fn destroy_reaches_the_file_system_once() {
    let dispatcher = Dispatcher::new(Arc::new(Recorder::default()), InitFlags::all());
    let mut reply = Vec::new();
    for _ in 0..2 {
        assert!(dispatcher.answer(&valid(Opcode::Destroy), &mut reply, CAPACITY));
    }
    dispatcher.destroy_once();
    assert_eq!(*dispatcher.fs().calls.lock().expect("no panic while locked"), ["destroy"]);
}

#[test]
fn every_operation_is_answered_by_its_default() {
    struct Nothing;
    impl FileSystem for Nothing {}
    let dispatcher = Dispatcher::new(Arc::new(Nothing), InitFlags::all());
    for (opcode, request) in valid_requests() {
        let mut reply = Vec::new();
        assert!(dispatcher.answer(&request, &mut reply, CAPACITY));
        let error = abi::parse::<OutHeader>(&reply).map(|head| -head.error);
        let expected = match opcode {
            Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt => None,
            Opcode::Release | Opcode::Releasedir | Opcode::Destroy => Some(0),
            Opcode::Init => Some(libc::EIO),
            Opcode::Ioctl => Some(libc::ENOTTY),
            _ => Some(libc::ENOSYS),
        };
        assert_eq!(error, expected, "{opcode:?}");
    }
}

#[test]
fn truncated_requests_are_refused_without_a_panic() {
    for (_, whole) in valid_requests() {
        for len in 0..whole.len() {
            let mut cut = whole[..len].to_vec();
            assert!(send(&cut).reply.is_none(), "the head says it is longer");
            if len >= size_of::<InHeader>() {
                cut[..4]
                    .copy_from_slice(abi::bytes_of(&abi::GetxattrOut { size: len as u32, padding: 0 }).split_at(4).0);
                send(&cut);
            }
        }
    }
}

/// Sets the length in the head to the number of bytes, so that the dispatcher looks at them.
fn with_true_len(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(header) = abi::parse::<InHeader>(&bytes) {
        let header = InHeader { len: bytes.len() as u32, unique: 99, ..header };
        bytes[..size_of::<InHeader>()].copy_from_slice(abi::bytes_of(&header));
    }
    bytes
}

fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let requests: Vec<_> = valid_requests().into_iter().map(|(_, bytes)| bytes).collect();
    let edits = proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..8);
    let tail = proptest::collection::vec(any::<u8>(), 0..64);
    (proptest::sample::select(requests), edits, tail, any::<proptest::sample::Index>()).prop_map(
        |(mut bytes, edits, tail, cut)| {
            for (at, byte) in edits {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes.extend_from_slice(&tail);
            bytes.truncate(cut.index(bytes.len()) + bytes.len() / 2);
            with_true_len(bytes)
        },
    )
}

/// Asserts that a reply comes, or none if the operation takes none. `send` checks the form of the reply.
fn assert_answered(bytes: &[u8]) -> std::result::Result<(), TestCaseError> {
    let outcome = send(bytes);
    let owed =
        abi::parse::<InHeader>(bytes).filter(|header| header.len as usize == bytes.len()).is_some_and(|header| {
            let silent = [Opcode::Forget, Opcode::BatchForget, Opcode::Interrupt];
            Opcode::from_number(header.opcode).is_none_or(|opcode| !silent.contains(&opcode))
        });
    prop_assert_eq!(outcome.reply.is_some(), owed);
    Ok(())
}

proptest! {
    #[test]
    fn random_bytes_are_answered_or_ignored(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        assert_answered(&with_true_len(bytes))?;
    }

    #[test]
    fn random_arguments_of_every_operation_are_answered(
        number in 0u32..60,
        body in proptest::collection::vec(any::<u8>(), 0..256),
    ) {
        assert_answered(&request_to(number, &[&body]))?;
    }

    #[test]
    fn mutated_requests_are_answered(bytes in mutated()) {
        assert_answered(&bytes)?;
    }
}
