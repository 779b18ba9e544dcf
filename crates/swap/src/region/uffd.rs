//! The part of the kernel's userfaultfd that a region needs: page faults of a shared memory mapping are read here, and
//! answered.
//!
//! A page of the mapping is either *absent* from its file, *present* in it but not mapped, or mapped, perhaps against
//! writing. Touching it in either of the first two states, and writing to it in the last, stops the thread until
//! [`Userfaultfd::map`], [`Userfaultfd::allow_writes`] or [`Userfaultfd::poison`] lets it go on. Reference:
//! `userfaultfd(2)`, `ioctl_userfaultfd(2)`.

use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use linux_raw_sys::general as uapi;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::UserfaultfdFlags;

use super::error::RegionError;

/// The ioctl group of all userfaultfd calls.
const GROUP: u8 = uapi::UFFDIO as u8;
const NEW_DESCRIPTOR: Opcode = opcode::none(GROUP, 0x00);
const API: Opcode = opcode::read_write::<uapi::uffdio_api>(GROUP, uapi::_UFFDIO_API as u8);
const REGISTER: Opcode = opcode::read_write::<uapi::uffdio_register>(GROUP, uapi::_UFFDIO_REGISTER as u8);
const WAKE: Opcode = opcode::read::<uapi::uffdio_range>(GROUP, uapi::_UFFDIO_WAKE as u8);
const WRITE_PROTECT: Opcode = opcode::read_write::<uapi::uffdio_writeprotect>(GROUP, uapi::_UFFDIO_WRITEPROTECT as u8);
const CONTINUE: Opcode = opcode::read_write::<uapi::uffdio_continue>(GROUP, uapi::_UFFDIO_CONTINUE as u8);
const POISON: Opcode = opcode::read_write::<uapi::uffdio_poison>(GROUP, uapi::_UFFDIO_POISON as u8);

/// `UFFDIO_CONTINUE_MODE_WP`: the page is mapped against writing.
const CONTINUE_AGAINST_WRITES: u64 = 1 << 1;

/// Features the kernel must have, with the release that brought each.
const NEEDED: [(u32, &str); 5] = [
    (uapi::UFFD_FEATURE_MISSING_SHMEM, "missing pages of shared memory (4.11)"),
    (uapi::UFFD_FEATURE_MINOR_SHMEM, "minor faults of shared memory (5.14)"),
    (uapi::UFFD_FEATURE_PAGEFAULT_FLAG_WP, "write protection (5.7)"),
    (uapi::UFFD_FEATURE_WP_HUGETLBFS_SHMEM, "write protection of shared memory (5.19)"),
    (uapi::UFFD_FEATURE_POISON, "poisoned pages (6.6)"),
];

/// The page faults that are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// Faults of the program itself, and faults in its system calls.
    All,
    /// Faults of the program itself only: needs no privilege. System calls that are given absent memory fail with
    /// EFAULT.
    UserMode,
}

/// A page fault whose thread waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault {
    /// An address within the page.
    pub(super) address: usize,
    pub(super) write: bool,
}

/// An address range of whole pages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) len: usize,
}

impl From<Span> for uapi::uffdio_range {
    fn from(span: Span) -> uapi::uffdio_range {
        uapi::uffdio_range { start: span.start as u64, len: span.len as u64 }
    }
}

/// A userfaultfd, ready for [`Userfaultfd::register`].
#[derive(Debug)]
pub(super) struct Userfaultfd {
    fd: OwnedFd,
    pub(super) scope: Scope,
}

impl Userfaultfd {
    /// Opens a userfaultfd with the widest scope that this process may have, but not wider than
    /// `widest`.
    pub(super) fn open(widest: Scope) -> Result<Userfaultfd, RegionError> {
        let (fd, scope) = match widest {
            Scope::All => match open_all() {
                Ok(fd) => (fd, Scope::All),
                Err(_) => (open_user_mode()?, Scope::UserMode),
            },
            Scope::UserMode => (open_user_mode()?, Scope::UserMode),
        };
        let uffd = Userfaultfd { fd, scope };
        uffd.agree()?;
        Ok(uffd)
    }

    /// Asks for the features in [`NEEDED`]. The kernel's answer to an unknown feature does not name it, so the
    /// supported features are read first.
    fn agree(&self) -> Result<(), RegionError> {
        let needed = NEEDED.iter().fold(0, |all, (feature, _)| all | u64::from(*feature));
        let mut api = uapi::uffdio_api { api: u64::from(uapi::UFFD_API), features: needed, ioctls: 0 };
        if self.update::<API, _>(&mut api).is_ok() {
            return Ok(());
        }
        // A refusal leaves zeros in `features`: a second descriptor, asked for no feature, returns the supported ones.
        let mut known = uapi::uffdio_api { api: u64::from(uapi::UFFD_API), features: 0, ioctls: 0 };
        let asked = open_user_mode().map(|fd| Userfaultfd { fd, scope: Scope::UserMode });
        if let Ok(other) = asked {
            let _ = other.update::<API, _>(&mut known);
        }
        let lacks = |(feature, _): &&(u32, &str)| known.features & u64::from(*feature) == 0;
        let missing = NEEDED.iter().find(lacks).map_or("what a region needs", |(_, name)| *name);
        Err(RegionError::KernelTooOld { missing })
    }

    /// Registers `span`, a shared mapping of a memory file: its faults are reported here from now
    /// on.
    pub(super) fn register(&self, span: Span) -> Result<(), Errno> {
        let mode =
            uapi::UFFDIO_REGISTER_MODE_MISSING | uapi::UFFDIO_REGISTER_MODE_MINOR | uapi::UFFDIO_REGISTER_MODE_WP;
        let mut register = uapi::uffdio_register { range: span.into(), mode: u64::from(mode), ioctls: 0 };
        self.update::<REGISTER, _>(&mut register)
    }

    /// Returns the next fault; `None` if no thread waits.
    pub(super) fn next(&self) -> Result<Option<Fault>, Errno> {
        let mut bytes = [0_u8; size_of::<uapi::uffd_msg>()];
        match rustix::io::read(&self.fd, &mut bytes) {
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            other => other?,
        };
        // SAFETY: integers only, any bytes will do; the array is as long, and no alignment is asked for.
        let message = unsafe { bytes.as_ptr().cast::<uapi::uffd_msg>().read_unaligned() };
        if u32::from(message.event) != uapi::UFFD_EVENT_PAGEFAULT {
            return Ok(None);
        }
        let arg = message.arg;
        // SAFETY: the event says which of the union's members was written; all of them are integers.
        let fault = unsafe { arg.pagefault };
        let write = u64::from(uapi::UFFD_PAGEFAULT_FLAG_WRITE | uapi::UFFD_PAGEFAULT_FLAG_WP);
        Ok(Some(Fault { address: fault.address as usize, write: fault.flags & write != 0 }))
    }

    /// Maps pages that are present in the file, `writable` or against writing, and wakes the threads that wait for
    /// them.
    pub(super) fn map(&self, span: Span, writable: bool) -> Result<(), Errno> {
        let mode = if writable { 0 } else { CONTINUE_AGAINST_WRITES };
        let mut map = uapi::uffdio_continue { range: span.into(), mode, mapped: 0 };
        match self.update::<CONTINUE, _>(&mut map) {
            // Mapped already: the waiting threads only have to be woken.
            Err(Errno::EXIST) => self.wake(span),
            other => other,
        }
    }

    /// Allows writes to mapped pages, and wakes the threads that wait to write.
    pub(super) fn allow_writes(&self, span: Span) -> Result<(), Errno> {
        let mut allow = uapi::uffdio_writeprotect { range: span.into(), mode: 0 };
        self.update::<WRITE_PROTECT, _>(&mut allow)
    }

    /// Makes every touch of these unmapped pages fail with SIGBUS, also for threads that wait for
    /// them.
    pub(super) fn poison(&self, span: Span) -> Result<(), Errno> {
        let mut poison = uapi::uffdio_poison { range: span.into(), mode: 0, updated: 0 };
        match self.update::<POISON, _>(&mut poison) {
            Err(Errno::EXIST) => self.wake(span),
            other => other,
        }
    }

    /// Wakes the threads that wait for these pages; they retry.
    pub(super) fn wake(&self, span: Span) -> Result<(), Errno> {
        self.update::<WAKE, uapi::uffdio_range>(&mut span.into())
    }

    fn update<const OPCODE: Opcode, T>(&self, argument: &mut T) -> Result<(), Errno> {
        // SAFETY: every opcode above is used with its own structure, plain integers that outlive the call. What the
        // calls do to memory is confined to registered ranges, which belong to a region.
        unsafe { ioctl(&self.fd, Updater::<OPCODE, T>::new(argument)) }
    }
}

impl AsFd for Userfaultfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens a userfaultfd with the right to see faults of system calls: CAP_SYS_PTRACE, `vm.unprivileged_userfaultfd`, or
/// the device file.
fn open_all() -> Result<OwnedFd, Errno> {
    open_with(UserfaultfdFlags::empty()).or_else(|_| open_device())
}

fn open_with(extra: UserfaultfdFlags) -> Result<OwnedFd, Errno> {
    // SAFETY: the descriptor is used for a mapping that is ours alone.
    unsafe { rustix::mm::userfaultfd(UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK | extra) }
}

fn open_user_mode() -> Result<OwnedFd, RegionError> {
    let opened = open_with(UserfaultfdFlags::from_bits_retain(uapi::UFFD_USER_MODE_ONLY));
    opened.map_err(|errno| match errno {
        Errno::NOSYS => RegionError::NoUserfaultfd,
        // The error with which kernels before 5.11 refuse the flag.
        Errno::INVAL => RegionError::KernelTooOld { missing: "faults of user mode only (5.11)" },
        Errno::PERM | Errno::ACCESS => RegionError::NotPermitted,
        source => RegionError::Host { what: "opening a userfaultfd", source: source.into() },
    })
}

/// Opens a userfaultfd with `USERFAULTFD_IOC_NEW` of the device file, to which an administrator may
/// give access.
fn open_device() -> Result<OwnedFd, Errno> {
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/userfaultfd");
    let device = device.map_err(|error| match error.kind() {
        ErrorKind::NotFound => Errno::NOENT,
        _ => Errno::PERM,
    })?;
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    // SAFETY: the argument is a number.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), NEW_DESCRIPTOR as _, flags.bits()) };
    // SAFETY: a new descriptor that has no other owner.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) }).ok_or(Errno::PERM)
}
