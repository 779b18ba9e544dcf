//! `fusermount3`, which mounts and unmounts for ordinary users.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use super::common::{self, is_root};
use crate::error::MountError;
use crate::options::{MountFlags, MountOptions};

/// The set-user-id helper: its current and its old name.
const FUSERMOUNT: [&str; 2] = ["fusermount3", "fusermount"];

/// Lets `fusermount3` mount; it hands back the open device over a socket, which it finds as its standard input.
pub(super) fn mount(target: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
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
    for option in common::options(options) {
        list.push(checked_option(&option)?.to_owned());
    }
    Ok(list.join(","))
}

/// Refuses a comma, which would add a second option, and a NUL.
fn checked_option(option: &str) -> Result<&str, MountError> {
    if option.contains([',', '\0']) { Err(MountError::BadCharacter(option.to_owned())) } else { Ok(option) }
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

pub(super) fn unmount(target: &Path, lazily: bool) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comma_in_the_source_does_not_add_an_option() {
        let options = MountOptions { fsname: r"a,b\c".to_owned(), ..MountOptions::default() };
        assert!(helper_options(&options).expect("good options").contains(r"fsname=a\,b\\c"));
    }
}
