//! The handshake: the kernel's offer, this crate's wishes, and their intersection.
//!
//! Deliberately never agreed to: `ATOMIC_O_TRUNC` (together with a no-op open it loses truncations), `AUTO_INVAL_DATA`
//! (the kernel is the only writer; other changes are notified).

use bitflags::bitflags;
use thiserror::Error;

use crate::abi::{self, InHeader, InitIn, InitOut, Opcode, VERSION_MAJOR, VERSION_MINOR};
use crate::buffer::page_size;

bitflags! {
    /// Capabilities in the INIT handshake.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct InitFlags: u64 {
        /// Several reads of one file at once.
        const ASYNC_READ = 1 << 0;
        /// Nodes that the kernel has forgotten are found again by number and generation: LOOKUP of `.` and `..`.
        const EXPORT_SUPPORT = 1 << 4;
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
        /// SETXATTR says when an ACL costs the file its set-group-id.
        const SETXATTR_EXT = 1 << 29;
        /// The upper half of these flags is valid.
        const INIT_EXT = 1 << 30;
        /// Shared mappings of files opened for direct I/O.
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// Requests may travel over io_uring.
        const OVER_IO_URING = 1 << 41;
    }
}

/// The parameters to ask for in the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitConfig {
    /// Largest write request, bytes; also the largest read. Whole pages between 64 KiB and 16 MiB.
    pub max_write: u32,
    /// Largest read-ahead, bytes. Takes effect together with the mount's read-ahead setting.
    pub max_readahead: u32,
    /// Background requests in flight.
    pub max_background: u16,
    /// Background requests in flight from which on the kernel holds back read-ahead.
    pub congestion_threshold: u16,
    /// Keep writes in the page cache until written back. The kernel then owns size and modification time.
    pub writeback_cache: bool,
    /// Let the kernel check POSIX ACLs, and with them all permissions.
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

/// The transport of requests.
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

/// The result of the handshake.
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

impl Negotiated {
    /// Returns true if the kernel passes `sync` and `syncfs` on to every server of a block-device mount. Older ones
    /// surely do so for virtiofs only, though a distributor may have added it.
    pub fn passes_syncfs(&self) -> bool {
        self.kernel_minor >= VERSION_MINOR_SYNCFS
    }

    /// Returns true if the kernel tells old attributes in a listing from those of later changes, also of an inode that
    /// it dropped and loads again by that listing. Linux 6.13 was the first to do so; its version is that of 6.12.
    pub fn orders_listed_attributes(&self) -> bool {
        self.kernel_minor >= VERSION_MINOR_ORDERED
    }
}

/// The reason for which a handshake failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InitError {
    /// The device could not be read or written.
    #[error("/dev/fuse: {0}")]
    Device(#[from] std::io::Error),
    /// The first request was not INIT.
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

/// Minor version of the first kernel that passes `sync` on to servers of block devices (Linux 6.18).
const VERSION_MINOR_SYNCFS: u32 = 45;

/// Minor version of the first kernel that surely orders attributes of listings (Linux 6.14).
const VERSION_MINOR_ORDERED: u32 = 42;

/// Size and count limits the protocol sets.
const MAX_WRITE_MIN: u32 = 64 << 10;
const MAX_WRITE_MAX: u32 = 16 << 20;
/// The limit of a kernel that does not know `MAX_PAGES`: 32 pages of 4 KiB.
const MAX_WRITE_OLD: u32 = 128 << 10;
/// The protocol counts request pages in units of the machine's page, of which there are at most this many.
const MAX_PAGES_MAX: usize = u16::MAX as usize;

impl InitConfig {
    /// Returns the capabilities wanted, before the kernel's offer is considered.
    fn wanted(&self, keeps_open_state: bool, uring: bool) -> InitFlags {
        let mut flags = InitFlags::ASYNC_READ
            | InitFlags::BIG_WRITES
            | InitFlags::DONT_MASK
            | InitFlags::DO_READDIRPLUS
            | InitFlags::READDIRPLUS_AUTO
            | InitFlags::ASYNC_DIO
            | InitFlags::PARALLEL_DIROPS
            | InitFlags::MAX_PAGES
            | InitFlags::CACHE_SYMLINKS
            | InitFlags::EXPLICIT_INVAL_DATA
            | InitFlags::HANDLE_KILLPRIV_V2
            | InitFlags::EXPORT_SUPPORT
            | InitFlags::SETXATTR_EXT
            | InitFlags::INIT_EXT
            | InitFlags::DIRECT_IO_ALLOW_MMAP;
        flags.set(InitFlags::NO_OPEN_SUPPORT | InitFlags::NO_OPENDIR_SUPPORT, !keeps_open_state);
        flags.set(InitFlags::WRITEBACK_CACHE, self.writeback_cache);
        flags.set(InitFlags::POSIX_ACL, self.posix_acl);
        flags.set(InitFlags::OVER_IO_URING, uring);
        flags
    }

    /// Returns the largest write in bytes, whole pages.
    pub(crate) fn max_write(&self) -> u32 {
        let page = page_size();
        let clamped = self.max_write.clamp(MAX_WRITE_MIN, MAX_WRITE_MAX) as usize;
        let pages = (clamped / page).clamp(1, MAX_PAGES_MAX);
        (pages * page) as u32
    }
}

/// The answer to an INIT request.
pub(crate) enum InitStep {
    /// The reply to send; the session can begin.
    Agreed(Box<InitOut>, Negotiated),
    /// The kernel speaks a newer major version: the reply names ours, and it will ask again.
    AskAgain(Box<InitOut>),
}

/// Answers the arguments of an INIT request.
pub(crate) fn negotiate(
    offer: &InitIn,
    config: &InitConfig,
    keeps_open_state: bool,
    uring: bool,
) -> Result<InitStep, InitError> {
    if offer.major > VERSION_MAJOR {
        return Ok(InitStep::AskAgain(Box::new(InitOut {
            major: VERSION_MAJOR,
            minor: VERSION_MINOR,
            ..InitOut::default()
        })));
    }
    if offer.major < VERSION_MAJOR || offer.minor < VERSION_MINOR_MIN {
        return Err(InitError::TooOld { major: offer.major, minor: offer.minor });
    }
    let flags = offered(offer) & config.wanted(keeps_open_state, uring);
    let max_write =
        if flags.contains(InitFlags::MAX_PAGES) { config.max_write() } else { config.max_write().min(MAX_WRITE_OLD) };
    let out = InitOut {
        major: VERSION_MAJOR,
        minor: VERSION_MINOR.min(offer.minor),
        max_readahead: config.max_readahead,
        flags: flags.bits() as u32,
        max_background: config.max_background,
        congestion_threshold: config.congestion_threshold,
        max_write,
        time_gran: 1,
        max_pages: (max_write as usize / page_size()) as u16,
        flags2: (flags.bits() >> 32) as u32,
        ..InitOut::default()
    };
    let transport = if flags.contains(InitFlags::OVER_IO_URING) { Transport::Uring } else { Transport::Dev };
    let negotiated =
        Negotiated { kernel_minor: offer.minor, flags, max_write, max_readahead: config.max_readahead, transport };
    Ok(InitStep::Agreed(Box::new(out), negotiated))
}

/// Returns the kernel's capabilities. The upper half counts only if the kernel says that it is valid.
fn offered(offer: &InitIn) -> InitFlags {
    let low = InitFlags::from_bits_retain(u64::from(offer.flags));
    if low.contains(InitFlags::INIT_EXT) {
        low | InitFlags::from_bits_retain(u64::from(offer.flags2) << 32)
    } else {
        low
    }
}

/// Decodes an INIT request, whose arguments are shorter in older kernels; missing fields are zero.
pub(crate) fn parse_init(request: &[u8]) -> Result<(InHeader, InitIn), InitError> {
    let not_init = |opcode| InitError::NotInit { opcode, len: request.len() };
    let header: InHeader = abi::parse(request).ok_or(not_init(0))?;
    let args = &request[size_of::<InHeader>()..];
    if Opcode::from_number(header.opcode) != Some(Opcode::Init) || args.len() < INIT_IN_LEN_MIN {
        return Err(not_init(header.opcode));
    }
    let mut whole = [0; size_of::<InitIn>()];
    let len = args.len().min(whole.len());
    whole[..len].copy_from_slice(&args[..len]);
    let init = abi::parse(&whole).ok_or(not_init(header.opcode))?;
    Ok((header, init))
}

/// Length of INIT's arguments before they grew a second word of flags.
const INIT_IN_LEN_MIN: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(minor: u32, flags: u64) -> InitIn {
        InitIn { major: 7, minor, flags: flags as u32, flags2: (flags >> 32) as u32, ..InitIn::default() }
    }

    fn agree(offer: &InitIn, config: &InitConfig, open: bool, uring: bool) -> (InitOut, Negotiated) {
        match negotiate(offer, config, open, uring) {
            Ok(InitStep::Agreed(out, negotiated)) => (*out, negotiated),
            _ => panic!("no agreement"),
        }
    }

    #[test]
    fn only_what_is_offered_and_wanted_is_agreed() {
        const ATOMIC_O_TRUNC: u64 = 1 << 3;
        const AUTO_INVAL_DATA: u64 = 1 << 12;
        let (out, negotiated) = agree(&kernel(45, u64::MAX), &InitConfig::default(), false, true);
        assert_eq!(u64::from(out.flags) & (ATOMIC_O_TRUNC | AUTO_INVAL_DATA), 0);
        assert!(!negotiated.flags.contains(InitFlags::WRITEBACK_CACHE));
        assert!(negotiated.flags.contains(InitFlags::NO_OPEN_SUPPORT | InitFlags::OVER_IO_URING));
        assert_eq!((out.max_write, out.time_gran, negotiated.transport), (1 << 20, 1, Transport::Uring));
        let (out, negotiated) = agree(&kernel(45, 0), &InitConfig::default(), false, true);
        assert_eq!((out.flags, out.flags2, negotiated.transport), (0, 0, Transport::Dev));
        assert_eq!(out.max_write, 128 << 10);
    }

    #[test]
    fn the_upper_flags_count_only_with_init_ext() {
        let without = !InitFlags::INIT_EXT.bits();
        let (out, negotiated) = agree(&kernel(45, without), &InitConfig::default(), false, true);
        assert_eq!((out.flags2, negotiated.transport), (0, Transport::Dev));
    }

    #[test]
    fn a_file_system_with_open_state_keeps_its_opens() {
        let (_, negotiated) = agree(&kernel(45, u64::MAX), &InitConfig::default(), true, false);
        assert!(!negotiated.flags.intersects(InitFlags::NO_OPEN_SUPPORT | InitFlags::NO_OPENDIR_SUPPORT));
    }

    #[test]
    fn sync_reaches_the_server_from_linux_6_18_on() {
        let passes = |minor| agree(&kernel(minor, 0), &InitConfig::default(), false, false).1.passes_syncfs();
        assert_eq!([31, 36, 38, 44, 45, 46].map(passes), [false, false, false, false, true, true]);
    }

    #[test]
    fn attributes_of_listings_are_ordered_surely_from_linux_6_14_on() {
        let orders =
            |minor| agree(&kernel(minor, 0), &InitConfig::default(), false, false).1.orders_listed_attributes();
        assert_eq!([31, 38, 41, 42, 45].map(orders), [false, false, false, true, true]);
    }

    #[test]
    fn old_kernels_are_refused_and_newer_majors_asked_again() {
        let config = InitConfig::default();
        let refused = negotiate(&kernel(30, u64::MAX), &config, false, false);
        assert!(matches!(refused, Err(InitError::TooOld { major: 7, minor: 30 })));
        let newer = InitIn { major: 8, ..InitIn::default() };
        assert!(matches!(negotiate(&newer, &config, false, false), Ok(InitStep::AskAgain(out)) if out.major == 7));
        let (out, _) = agree(&kernel(40, 0), &config, false, false);
        assert_eq!(out.minor, 40);
    }

    #[test]
    fn the_short_init_of_older_kernels_is_understood() {
        let header = InHeader { len: 56, opcode: 26, ..InHeader::default() };
        let mut request = abi::bytes_of(&header).to_vec();
        let init = InitIn { major: 7, minor: 31, max_readahead: 4096, flags: 1, ..InitIn::default() };
        request.extend_from_slice(&abi::bytes_of(&init)[..INIT_IN_LEN_MIN]);
        let (_, init) = parse_init(&request).expect("an INIT");
        assert_eq!((init.minor, init.flags, init.flags2), (31, 1, 0));
        assert!(parse_init(&request[..50]).is_err());
        assert!(parse_init(&request[..8]).is_err());
    }

    #[test]
    fn sizes_are_whole_pages_within_the_protocols_limits() {
        for (asked, got) in [(0, MAX_WRITE_MIN), (100_000, 98_304), (1 << 20, 1 << 20), (u32::MAX, MAX_WRITE_MAX)] {
            let config = InitConfig { max_write: asked, ..InitConfig::default() };
            let rounded = got / page_size() as u32 * page_size() as u32;
            assert_eq!(config.max_write(), rounded, "{asked}");
        }
    }
}
