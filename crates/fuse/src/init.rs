//! The handshake: what the kernel offers, what we want, what both will do.
//!
//! Deliberately never agreed to: `ATOMIC_O_TRUNC` (together with a no-op open it loses truncations),
//! `AUTO_INVAL_DATA` (the kernel is the only writer; changes behind its back are notified), `EXPORT_SUPPORT`.

use bitflags::bitflags;
use thiserror::Error;

use crate::abi::{InitIn, InitOut, VERSION_MAJOR, VERSION_MINOR};

bitflags! {
    /// Capabilities in the INIT handshake.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct InitFlags: u64 {
        /// Several reads of one file at once.
        const ASYNC_READ = 1 << 0;
        /// Writes larger than a page.
        const BIG_WRITES = 1 << 5;
        /// The file system applies the umask.
        const DONT_MASK = 1 << 6;
        /// READDIRPLUS exists.
        const DO_READDIRPLUS = 1 << 13;
        /// The kernel chooses between READDIR and READDIRPLUS.
        const READDIRPLUS_AUTO = 1 << 14;
        /// Direct I/O may be asynchronous.
        const ASYNC_DIO = 1 << 15;
        /// Writes stay in the page cache until written back.
        const WRITEBACK_CACHE = 1 << 16;
        /// OPEN may be answered ENOSYS.
        const NO_OPEN_SUPPORT = 1 << 17;
        /// Lookups and listings of one directory at once.
        const PARALLEL_DIROPS = 1 << 18;
        /// POSIX ACLs are stored by the file system and checked by the kernel.
        const POSIX_ACL = 1 << 20;
        /// `max_pages` is valid.
        const MAX_PAGES = 1 << 22;
        /// Targets of symbolic links may be cached.
        const CACHE_SYMLINKS = 1 << 23;
        /// OPENDIR may be answered ENOSYS.
        const NO_OPENDIR_SUPPORT = 1 << 24;
        /// Cached data are dropped on notification only.
        const EXPLICIT_INVAL_DATA = 1 << 25;
        /// The file system clears set-user-id and set-group-id.
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// The upper half of these flags is valid.
        const INIT_EXT = 1 << 30;
        /// Shared mappings of files opened for direct I/O.
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// Requests may travel over io_uring.
        const OVER_IO_URING = 1 << 41;
    }
}

/// What to ask for in the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitConfig {
    /// Largest write request, bytes; also the largest read. Rounded down to pages, at least two of them.
    pub max_write: u32,
    /// Largest read-ahead, bytes. Takes effect together with the mount's read-ahead setting.
    pub max_readahead: u32,
    /// Background requests in flight.
    pub max_background: u16,
    /// Background requests in flight from which on the kernel holds back read-ahead.
    pub congestion_threshold: u16,
    /// Keep writes in the page cache until written back. The kernel then owns size and modification time.
    pub writeback_cache: bool,
    /// Let the kernel check POSIX ACLs; the file system then applies umask and default ACLs itself.
    pub posix_acl: bool,
}

impl Default for InitConfig {
    fn default() -> Self {
        Self {
            max_write: 1 << 20,
            max_readahead: 1 << 20,
            max_background: 64,
            congestion_threshold: 48,
            writeback_cache: false,
            posix_acl: true,
        }
    }
}

/// Which path requests take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// io_uring if the kernel has it and it can be used, else /dev/fuse.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// /dev/fuse.
    Dev,
}

/// What was agreed with the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The kernel's minor version of protocol 7.
    pub kernel_minor: u32,
    /// The capabilities both sides use.
    pub flags: InitFlags,
    /// Largest read and write, bytes.
    pub max_write: u32,
    /// Largest read-ahead, bytes.
    pub max_readahead: u32,
    /// The path requests take; never [`Transport::Auto`].
    pub transport: Transport,
}

/// Why kernel and daemon do not understand each other.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InitError {
    /// The device failed.
    #[error("/dev/fuse: {0}")]
    Device(#[from] std::io::Error),
    /// The first request was something else.
    #[error("expected an INIT request, got operation {opcode} of {len} bytes")]
    NotInit {
        /// Operation number.
        opcode: u32,
        /// Length of the request.
        len: usize,
    },
    /// The kernel is too old.
    #[error("the kernel speaks FUSE {major}.{minor}; at least 7.{VERSION_MINOR_MIN} (Linux 5.4) is needed")]
    TooOld {
        /// The kernel's major version.
        major: u32,
        /// The kernel's minor version.
        minor: u32,
    },
}

/// First minor version with everything that is not negotiated by flags.
pub(crate) const VERSION_MINOR_MIN: u32 = 31;
