//! Mounting and unmounting: mount(2) as root, `fusermount3` for other users.
//!
//! Once the mount exists, nothing here accesses it by its own path: the request would have to be answered by this
//! process.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::dev::DEVICE;
use crate::error::MountError;
use crate::options::{MountFlags, MountKind, MountOptions};

/// The kernel takes no larger block size for a block-device mount than a page of 4 KiB.
const BLKSIZE_MAX: u32 = 4096;
/// The mount table of this process.
const MOUNTINFO: &str = "/proc/self/mountinfo";
/// The set-user-id helper: its current and its old name.
const FUSERMOUNT: [&str; 2] = ["fusermount3", "fusermount"];

/// A fresh mount and the device to serve it through.
#[derive(Debug)]
pub(crate) struct Mounted {
    pub(crate) dev: OwnedFd,
    pub(crate) mount: Mount,
}

/// A mount in the tree.
#[derive(Debug)]
pub(crate) struct Mount {
    target: PathBuf,
    /// Device number in the mount table, which identifies the mount.
    device: Option<DeviceId>,
    /// Takes the mount away if this process is killed.
    _watcher: Option<Watcher>,
}

type DeviceId = (u32, u32);

/// Mounts at `target`, with mount(2) if root, else through `fusermount3`.
pub(crate) fn mount(target: &Path, options: &MountOptions) -> Result<Mounted, MountError> {
    let at_target = |source| MountError::Target { target: target.to_owned(), source };
    let target = target.canonicalize().map_err(at_target)?;
    let root_mode = target.metadata().map_err(at_target)?.mode() & libc::S_IFMT;
    let root = is_root();
    if matches!(options.kind, MountKind::BlockDevice { .. }) && !root {
        return Err(MountError::BlockDeviceNeedsRoot);
    }
    let dev = if root { mount_directly(&target, root_mode, options)? } else { mount_by_helper(&target, options)? };
    let device = device_mounted_at(&target).ok().flatten();
    let mut mount = Mount { target, device, _watcher: None };
    if options.auto_unmount {
        match Watcher::start(&mount) {
            Ok(watcher) => mount._watcher = Some(watcher),
            Err(error) => {
                let _ = mount.unmount(true);
                return Err(MountError::AutoUnmount(error));
            }
        }
    }
    Ok(Mounted { dev, mount })
}

fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

fn mount_directly(target: &Path, root_mode: u32, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let dev = open_device().map_err(MountError::OpenDevice)?;
    let fstype = fstype(options);
    let data = kernel_options(options, dev.as_raw_fd(), root_mode)?;
    call_mount(&options.fsname, target, &fstype, options.flags, &data)?.map_err(|source| MountError::Mount {
        target: target.to_owned(),
        source_name: options.fsname.clone(),
        fstype,
        source,
    })?;
    Ok(dev)
}

fn open_device() -> io::Result<OwnedFd> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(DEVICE)?;
    Ok(File::into(file))
}

fn fstype(options: &MountOptions) -> String {
    let base = match options.kind {
        MountKind::Plain => "fuse",
        MountKind::BlockDevice { .. } => "fuseblk",
    };
    match &options.subtype {
        Some(subtype) => format!("{base}.{subtype}"),
        None => base.to_owned(),
    }
}

/// Returns the option string of mount(2).
fn kernel_options(options: &MountOptions, dev: RawFd, root_mode: u32) -> Result<String, MountError> {
    // SAFETY: getuid and getgid have no preconditions and cannot fail.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    let mut list = vec![format!("fd={dev},rootmode={root_mode:o},user_id={uid},group_id={gid}")];
    if let MountKind::BlockDevice { block_size } = options.kind {
        list.push(format!("blksize={}", block_size.min(BLKSIZE_MAX)));
    }
    push_common_options(&mut list, options)?;
    Ok(list.join(","))
}

fn push_common_options(list: &mut Vec<String>, options: &MountOptions) -> Result<(), MountError> {
    if options.allow_other {
        list.push("allow_other".to_owned());
    }
    if options.default_permissions {
        list.push("default_permissions".to_owned());
    }
    if let Some(max_read) = options.max_read {
        list.push(format!("max_read={max_read}"));
    }
    for extra in &options.extra {
        list.push(checked_option(extra)?.to_owned());
    }
    Ok(())
}

/// Refuses a comma, which would add a second option, and a NUL.
fn checked_option(option: &str) -> Result<&str, MountError> {
    if option.contains([',', '\0']) { Err(MountError::BadCharacter(option.to_owned())) } else { Ok(option) }
}

fn call_mount(
    source: &str,
    target: &Path,
    fstype: &str,
    flags: MountFlags,
    data: &str,
) -> Result<io::Result<()>, MountError> {
    let source = c_string(source)?;
    let fstype = c_string(fstype)?;
    let data = c_string(data)?;
    let target = path_c_string(target);
    // SAFETY: four NUL-terminated strings that outlive the call.
    let code =
        unsafe { libc::mount(source.as_ptr(), target.as_ptr(), fstype.as_ptr(), flags.bits(), data.as_ptr().cast()) };
    Ok(if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) })
}

fn c_string(text: &str) -> Result<CString, MountError> {
    CString::new(text).map_err(|_| MountError::BadCharacter(text.to_owned()))
}

/// Converts a path that was resolved by the kernel, and so contains no NUL.
fn path_c_string(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

/// Lets `fusermount3` mount; it hands back the open device over a socket, which it finds as its standard input.
fn mount_by_helper(target: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let (ours, theirs) = UnixStream::pair().map_err(MountError::RunFusermount)?;
    let list = helper_options(options)?;
    let theirs = OwnedFd::from(theirs);
    let mut spawned = Err(io::ErrorKind::NotFound.into());
    for program in FUSERMOUNT {
        let stdin = theirs.try_clone().map_err(MountError::RunFusermount)?;
        spawned = Command::new(program)
            .env("_FUSE_COMMFD", "0")
            .args(["-o", &list, "--"])
            .arg(target)
            .stdin(Stdio::from(stdin))
            .spawn();
        if !matches!(&spawned, Err(error) if error.kind() == io::ErrorKind::NotFound) {
            break;
        }
    }
    drop(theirs);
    let mut child = spawned.map_err(MountError::RunFusermount)?;
    let received = receive_fd(&ours);
    child.wait().map_err(MountError::RunFusermount)?;
    received.map_err(|_| MountError::Fusermount { target: target.to_owned() })
}

/// Returns the option string of `fusermount3`.
fn helper_options(options: &MountOptions) -> Result<String, MountError> {
    let mut list: Vec<String> = flag_names(options.flags).map(str::to_owned).collect();
    list.push(format!("fsname={}", escape_commas(checked_nul(&options.fsname)?)));
    if let Some(subtype) = &options.subtype {
        list.push(format!("subtype={}", checked_option(subtype)?));
    }
    push_common_options(&mut list, options)?;
    Ok(list.join(","))
}

fn checked_nul(text: &str) -> Result<&str, MountError> {
    if text.contains('\0') { Err(MountError::BadCharacter(text.to_owned())) } else { Ok(text) }
}

fn escape_commas(text: &str) -> String {
    text.replace('\\', "\\\\").replace(',', "\\,")
}

/// Returns the names of the flags that `fusermount3` knows.
fn flag_names(flags: MountFlags) -> impl Iterator<Item = &'static str> {
    const NAMES: [(MountFlags, &str, &str); 7] = [
        (MountFlags::RDONLY, "ro", "rw"),
        (MountFlags::NOSUID, "nosuid", "suid"),
        (MountFlags::NODEV, "nodev", "dev"),
        (MountFlags::NOEXEC, "noexec", "exec"),
        (MountFlags::SYNCHRONOUS, "sync", "async"),
        (MountFlags::DIRSYNC, "dirsync", ""),
        (MountFlags::NOATIME, "noatime", "atime"),
    ];
    let suid_dev_by_root_only = if is_root() { MountFlags::empty() } else { MountFlags::NOSUID | MountFlags::NODEV };
    NAMES.into_iter().filter_map(move |(flag, set, cleared)| {
        let name = if (flags | suid_dev_by_root_only).contains(flag) { set } else { cleared };
        (!name.is_empty()).then_some(name)
    })
}

/// Receives one descriptor.
fn receive_fd(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = 0u8;
    let mut iov = libc::iovec { iov_base: std::ptr::from_mut(&mut byte).cast(), iov_len: 1 };
    // Room for one control message with one descriptor, aligned as its head demands.
    let mut control = [0usize; 8];
    // SAFETY: all-zero is a valid `msghdr`.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the message points to live buffers of the lengths it names.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) };
    match len {
        -1 => Err(io::Error::last_os_error()),
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        // SAFETY: `recvmsg` has filled the message and its control buffer, which is still alive.
        _ => unsafe { first_fd(&message) }.ok_or_else(|| io::ErrorKind::InvalidData.into()),
    }
}

/// Returns the descriptor in a received message.
///
/// # Safety
/// `message` must have been filled by `recvmsg` and its control buffer still be alive; called once per message.
unsafe fn first_fd(message: &libc::msghdr) -> Option<OwnedFd> {
    // SAFETY: by the contract above; the head is null if the control buffer holds none.
    let head = unsafe { libc::CMSG_FIRSTHDR(message).as_ref()? };
    if head.cmsg_level != libc::SOL_SOCKET || head.cmsg_type != libc::SCM_RIGHTS {
        return None;
    }
    // SAFETY: a message with rights carries at least one descriptor, now ours.
    unsafe { Some(OwnedFd::from_raw_fd(libc::CMSG_DATA(head).cast::<RawFd>().read_unaligned())) }
}

/// A process that takes a mount away when this one is gone without having unmounted, even if it was killed.
///
/// `fusermount3 -o auto_unmount` does not do: it unmounts only what answers ENOTCONN to its open, and the mount of a
/// user, which is for that user alone, answers EACCES to the helper, which runs as root (seen with 3.14).
#[derive(Debug)]
struct Watcher {
    shell: Child,
    /// Closed by the kernel when this process ends, however it does.
    alive: Option<ChildStdin>,
}

/// Reads until its input ends. Then it unmounts `$0`, if the mount table still has a line with `$1`.
const WATCH: &str = r#"
trap '' HUP INT TERM
while read -r _; do :; done
grep -qF -e "$1" /proc/self/mountinfo || exit 0
[ "$(id -u)" != 0 ] || exec umount -l -- "$0"
fusermount3 -q -u -z -- "$0" || exec fusermount -q -u -z -- "$0"
"#;

impl Watcher {
    fn start(mount: &Mount) -> io::Result<Watcher> {
        let line = mount.line()?.ok_or(io::ErrorKind::NotFound)?;
        let mut shell = Command::new("/bin/sh")
            .args(["-c", WATCH])
            .arg(&mount.target)
            .arg(std::ffi::OsStr::from_bytes(&line))
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let alive = shell.stdin.take();
        Ok(Watcher { shell, alive })
    }
}

impl Drop for Watcher {
    /// The mount is gone, or this process is about to be.
    fn drop(&mut self) {
        drop(self.alive.take());
        let _ = self.shell.wait();
    }
}

impl Mount {
    /// Returns true if the topmost mount at the target is still this mount.
    fn is_there(&self) -> bool {
        match (self.device, device_mounted_at(&self.target)) {
            (Some(ours), Ok(there)) => there == Some(ours),
            _ => true,
        }
    }

    /// Returns the part of the mount table that identifies this mount: device, root and mount point.
    fn line(&self) -> io::Result<Option<Vec<u8>>> {
        let table = std::fs::read(MOUNTINFO)?;
        let ours = |line: &&[u8]| {
            parse_mountinfo(line).is_some_and(|(at, device)| at == self.target && Some(device) == self.device)
        };
        let line = table.split(|&byte| byte == b'\n').rev().find(ours);
        Ok(line.map(|line| {
            let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').skip(2).take(3).collect();
            [b" ", fields.join(&b' ').as_slice(), b" "].concat()
        }))
    }

    /// Unmounts; `lazily` takes it out of the tree even while it is in use. Does nothing if it is already gone.
    pub(crate) fn unmount(&self, lazily: bool) -> io::Result<()> {
        if self.is_there() { unmount(&self.target, lazily) } else { Ok(()) }
    }

    /// Raises the read-ahead of the mount and, with the write-back cache, lifts the tight limit on dirty pages that
    /// FUSE mounts have by default. Without the permission everything works, only slower.
    pub(crate) fn tune(&self, read_ahead_kb: u32, writeback: bool) {
        let Some((major, minor)) = self.device else { return };
        for suffix in ["", "-fuseblk"] {
            let bdi = PathBuf::from(format!("/sys/class/bdi/{major}:{minor}{suffix}"));
            let set = |name: &str, value: &str| {
                let _ = std::fs::write(bdi.join(name), value);
            };
            if read_ahead_kb > 0 {
                set("read_ahead_kb", &read_ahead_kb.to_string());
            }
            if writeback {
                set("max_ratio", "100");
                set("strict_limit", "0");
            }
        }
    }
}

/// Unmounts the topmost mount at `target`, even if its daemon is dead. With `lazily` it is taken out of the tree at
/// once and released by its last user; without, the call fails with `EBUSY` while it is used.
pub fn unmount(target: &Path, lazily: bool) -> io::Result<()> {
    if !is_root() {
        return unmount_by_helper(target, lazily);
    }
    let path = CString::new(target.as_os_str().as_bytes())?;
    let flags = libc::UMOUNT_NOFOLLOW | if lazily { libc::MNT_DETACH } else { 0 };
    // SAFETY: a NUL-terminated string that outlives the call.
    match unsafe { libc::umount2(path.as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn unmount_by_helper(target: &Path, lazily: bool) -> io::Result<()> {
    let mode = if lazily { "-uz" } else { "-u" };
    for program in FUSERMOUNT {
        match Command::new(program).args(["-q", mode, "--"]).arg(target).status() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
            Ok(status) if status.success() => return Ok(()),
            Ok(_) => return Err(io::Error::from_raw_os_error(libc::EBUSY)),
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, "fusermount3 is not installed"))
}

/// Returns the device number of the topmost mount at `target`, which must be an absolute path without symbolic links.
/// Read from the mount table: no file system is asked.
fn device_mounted_at(target: &Path) -> io::Result<Option<DeviceId>> {
    let table = std::fs::read(MOUNTINFO)?;
    let mut mounts = table.split(|&byte| byte == b'\n').rev().filter_map(parse_mountinfo);
    Ok(mounts.find(|(at, _)| at == target).map(|(_, id)| id))
}

/// Parses mount point and device from a line: `id parent major:minor root mountpoint …`.
fn parse_mountinfo(line: &[u8]) -> Option<(PathBuf, DeviceId)> {
    let mut fields = line.split(|&byte| byte == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let path = unescape_octal(fields.nth(1)?);
    Some((PathBuf::from(std::ffi::OsString::from_vec(path)), (major.parse().ok()?, minor.parse().ok()?)))
}

/// Decodes a field of the mount table, which writes space, tab, newline and backslash as `\` and three octal digits.
fn unescape_octal(mut text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    while let Some((&first, rest)) = text.split_first() {
        match rest {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..] if first == b'\\' => {
                plain.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                text = tail;
            }
            _ => {
                plain.push(first);
                text = rest;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_lines_are_read_with_escapes() {
        let line = br"36 35 98:0 /mnt1 /mnt\0402\134x rw,noatime master:1 - ext3 /dev/root rw";
        assert_eq!(parse_mountinfo(line), Some((PathBuf::from(r"/mnt 2\x"), (98, 0))));
        for bad in [&b""[..], b"36 35", b"36 35 98 / /mnt", b"36 35 a:b / /mnt"] {
            assert_eq!(parse_mountinfo(bad), None);
        }
        assert_eq!(unescape_octal(br"\04"), br"\04");
    }

    #[test]
    fn the_kernel_is_told_at_most_4096_as_block_size() {
        let options = MountOptions { kind: MountKind::BlockDevice { block_size: 65536 }, ..MountOptions::default() };
        let data = kernel_options(&options, 5, libc::S_IFDIR).expect("good options");
        assert!(data.starts_with("fd=5,rootmode=40000,user_id="), "{data}");
        assert!(data.contains("blksize=4096") && data.ends_with("default_permissions"), "{data}");
        assert_eq!(fstype(&MountOptions { subtype: Some("x".to_owned()), ..options }), "fuseblk.x");
    }

    #[test]
    fn no_option_can_smuggle_in_another() {
        let options = MountOptions { extra: vec!["context=a,suid".to_owned()], ..MountOptions::default() };
        assert!(matches!(kernel_options(&options, 5, 0), Err(MountError::BadCharacter(_))));
        let options = MountOptions { fsname: r"a,b\c".to_owned(), ..MountOptions::default() };
        assert!(helper_options(&options).expect("good options").contains(r"fsname=a\,b\\c"));
    }
}
