//! The one error type of file system handlers: a Linux error number.

use std::fmt;
use std::io;

/// A Linux error number in the range the kernel accepts in a FUSE reply, 1..=511.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Errno(u16);

/// The kernel refuses replies with numbers from here on (`ERESTARTSYS` and other internal codes).
const FIRST_INTERNAL: i32 = 512;

impl Errno {
    /// Wraps an error number. A number that the kernel would refuse in a reply becomes [`Errno::EIO`].
    pub const fn new(raw: i32) -> Self {
        if raw > 0 && raw < FIRST_INTERNAL { Self(raw as u16) } else { Self::EIO }
    }

    /// Returns the number as in `<errno.h>`, always positive.
    pub const fn raw(self) -> i32 {
        self.0 as i32
    }
}

macro_rules! errno_constants {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        impl Errno {
            $($(#[$doc])* pub const $name: Self = Self(libc::$name as u16);)*
        }

        fn symbol(raw: i32) -> Option<&'static str> {
            match raw {
                $(libc::$name => Some(stringify!($name)),)*
                _ => None,
            }
        }
    };
}

errno_constants! {
    /// Operation not permitted.
    EPERM,
    /// No such file or directory.
    ENOENT,
    /// Interrupted.
    EINTR,
    /// Input or output error.
    EIO,
    /// No such device or address; for `lseek`: no data or hole beyond the offset.
    ENXIO,
    /// Argument list too long.
    E2BIG,
    /// Bad file descriptor.
    EBADF,
    /// Try again.
    EAGAIN,
    /// Out of memory.
    ENOMEM,
    /// Permission denied.
    EACCES,
    /// Device or resource busy.
    EBUSY,
    /// File exists.
    EEXIST,
    /// Link across devices.
    EXDEV,
    /// No such device.
    ENODEV,
    /// Not a directory.
    ENOTDIR,
    /// Is a directory.
    EISDIR,
    /// Invalid argument.
    EINVAL,
    /// Too many open files in the system.
    ENFILE,
    /// Inappropriate ioctl.
    ENOTTY,
    /// Executable is busy.
    ETXTBSY,
    /// File too large.
    EFBIG,
    /// No space left on the device.
    ENOSPC,
    /// Illegal seek.
    ESPIPE,
    /// Read-only file system.
    EROFS,
    /// Too many links.
    EMLINK,
    /// Result too large; for xattrs: the caller's buffer is too small.
    ERANGE,
    /// File name too long.
    ENAMETOOLONG,
    /// Not implemented: the kernel stops sending this operation and falls back.
    ENOSYS,
    /// Directory not empty.
    ENOTEMPTY,
    /// Too many symbolic links.
    ELOOP,
    /// No data; for xattrs: no such attribute.
    ENODATA,
    /// Value too large for its type.
    EOVERFLOW,
    /// Operation not supported.
    EOPNOTSUPP,
    /// Not connected: the mount has no daemon any more.
    ENOTCONN,
    /// Stale file handle.
    ESTALE,
    /// Structure needs cleaning: the volume is damaged.
    EUCLEAN,
    /// Disk quota exceeded.
    EDQUOT,
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match symbol(self.raw()) {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.raw()),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&io::Error::from(*self), f)
    }
}

impl std::error::Error for Errno {}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> Self {
        Self::from_raw_os_error(errno.raw())
    }
}

impl From<io::Error> for Errno {
    /// Takes the error's number. Errors that carry none become [`Errno::EIO`].
    fn from(error: io::Error) -> Self {
        error.raw_os_error().map_or(Self::EIO, Self::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_the_kernel_refuses_become_eio() {
        for raw in [0, -1, -libc::ENOENT, 512, 516, i32::MAX, i32::MIN] {
            assert_eq!(Errno::new(raw), Errno::EIO, "{raw}");
        }
        assert_eq!(Errno::new(511).raw(), 511);
    }

    #[test]
    fn debug_names_the_symbol() {
        assert_eq!(format!("{:?}", Errno::ENOSPC), "ENOSPC");
        assert_eq!(format!("{:?}", Errno::new(500)), "errno 500");
    }
}
